"""What surrounds code that is taken out of a published file: nothing there may change what it does.

Functions and classes are run on their own, with names that the harness gives. That is the
published code only where the file leaves them as they are defined, and gets the names from
where the harness believes; all else is of another shape.
"""

import ast
import builtins
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from routeproof_reference.proofs.obligation import UnknownShapeError

REACHING = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "__import__"})
"""Builtins with which import-time code can change anything."""

HARMLESS = frozenset({"staticmethod", "classmethod", "property"})
"""Decorators that leave the other methods alone; methods that have one are not run."""

HOOKS = frozenset(
    {"__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__new__", "__init_subclass__"}
)

Functions = dict[str, ast.FunctionDef]


def unknown(what: str) -> NoReturn:
    """Refuse: the code has another shape than the harness knows."""
    raise UnknownShapeError(what)


class Source:
    """A published file, parsed."""

    def __init__(self, path: Path, label: str) -> None:
        """Parse it; raise UnknownShapeError where it is no Python."""
        self.path, self.label = path, label
        try:
            self.tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
            unknown(f"{label}: {path.name} cannot be parsed: {type(error).__name__}: {error}")
        self.bound = list(_bound(self.tree.body))

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        """Refuse at a line."""
        unknown(f"{self.label}: {self.path.name}, line {getattr(node, 'lineno', '?')}: {what}")

    def methods(self, name: str, bases: tuple[str, ...] = (), decorators: tuple[str, ...] = ()) -> Functions:
        """Give the methods of a class, whose bases and decorators must be these, and which stays as it is.

        Methods with a decorator are left out, so that nothing runs them.
        """
        found = [node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        if len(found) != 1:
            unknown(f"{self.label}: the file has {len(found)} classes {name}, expected one")
        node = found[0]
        for what, given, expected in (
            ("bases", [ast.unparse(item) for item in (*node.bases, *node.keywords)], bases),
            ("decorators", [ast.unparse(item) for item in node.decorator_list], decorators),
        ):
            if tuple(given) != expected:
                self.refuse(node, f"class {name} has the {what} {given}, expected {list(expected)}")
        self._single(name)
        self._untouched(name)
        self._unused(name)
        return {item.name: item for item in self._body(node) if not item.decorator_list}

    def _body(self, node: ast.ClassDef) -> list[ast.FunctionDef]:
        """Give the functions of a class body, which may hold annotations and plain constants besides."""
        found: Functions = {}
        constants: list[tuple[str, ast.stmt]] = []
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                if item.name in found:
                    self.refuse(item, f"class {node.name} defines {item.name} twice")
                strange = [ast.unparse(one) for one in item.decorator_list]
                if item.name in HOOKS or not HARMLESS.issuperset(strange):
                    self.refuse(item, f"{node.name}.{item.name} is decorated {strange}, or a hook")
                found[item.name] = item
            elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
                constants += [(ast.unparse(target), item) for target in item.targets]
            elif isinstance(item, ast.AnnAssign) and (
                item.value is None or isinstance(item.value, ast.Constant)
            ):
                constants.append((ast.unparse(item.target), item))
            elif not (isinstance(item, ast.Pass) or _is_text(item)):
                self.refuse(item, f"class {node.name} has a statement {ast.unparse(item)[:60]!r}")
        for name, item in constants:
            if name in found or name.startswith("__") or not name.isidentifier():
                self.refuse(item, f"class {node.name} assigns to {name}")
        return list(found.values())

    def functions(self, names: tuple[str, ...]) -> Functions:
        """Give functions, and those of the same file that they name; all stay as they are defined."""
        known = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        missing = [name for name in names if name not in known]
        if missing:
            unknown(f"{self.label}: {self.path.name} has no function {', '.join(missing)}")
        found: Functions = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            node = found[name] = known[name]
            if node.decorator_list:
                self.refuse(node, f"{name} is decorated")
            self._single(name)
            self._untouched(name)
            named = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
            waiting += sorted(named & set(known) - set(found))
        return found

    def imported(self, origins: Mapping[str, str]) -> frozenset[str]:
        """Give which names the file imports from where the harness believes; refuse other bindings of them.

        No builtin may be bound either, and no import-time code may reach further than its own names.
        """
        found = set()
        for name, node in self.bound:
            if name in origins:
                origin = f"{'.' * node.level}{node.module}" if isinstance(node, ast.ImportFrom) else ""
                if origin != origins[name] or not _plainly(node, name):
                    self.refuse(node, f"{name} is bound, expected its import from {origins[name]}")
                found.add(name)
            elif name == "*":
                self.refuse(node, "everything of a module is imported")
            elif name == "builtins" or hasattr(builtins, name):
                self.refuse(node, f"{name} is bound")
        for node in _at_import(self.tree):
            if isinstance(node, ast.Name) and node.id in REACHING:
                self.refuse(node, f"{node.id} is used at import")
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.modules", "sys._getframe"):
                self.refuse(node, f"{ast.unparse(node)} is used at import")
        return frozenset(found)

    def _single(self, name: str) -> None:
        nodes = [node for found, node in self.bound if found == name]
        if len(nodes) != 1:
            self.refuse(nodes[-1], f"{name} is bound {len(nodes)} times")

    def _untouched(self, name: str) -> None:
        """Refuse changes of an object's attributes, anywhere in the file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
                special = node.attr.startswith("__") and node.attr != "__name__"
                if special or not isinstance(node.ctx, ast.Load):
                    self.refuse(node, f"{ast.unparse(node)} is changed")
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in REACHING or not node.args:
                continue
            if ast.unparse(node.args[0]) == name:
                self.refuse(node, f"{ast.unparse(node)[:60]} changes {name}")

    def _unused(self, name: str) -> None:
        """Refuse import-time code that has a class in its hands."""
        for node in _at_import(self.tree):
            if isinstance(node, ast.Name) and node.id == name:
                self.refuse(node, f"{name} is used at import")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _plainly(node: ast.AST, name: str) -> bool:
    """Whether an import gives the name its own meaning."""
    aliases = node.names if isinstance(node, ast.ImportFrom) else []
    return all(item.name == name for item in aliases if (item.asname or item.name) == name)


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Give what runs as the file is imported: no bodies of functions, no annotations."""
    for name, value in ast.iter_fields(node):
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if (function and name in ("body", "returns")) or name == "annotation":
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield item
                yield from _at_import(item)


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Give the names that a module's statements bind, by whatever means, and where."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            whole = isinstance(node, ast.ImportFrom)
            yield from (
                (item.asname or (item.name if whole else item.name.split(".")[0]), node)
                for item in node.names
            )
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
            yield from (
                (name, item) for item in ast.walk(node) if isinstance(item, ast.Global) for name in item.names
            )
            waiting += node.decorator_list
            continue
        elif isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id, node
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, node
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest, node
        waiting += ast.iter_child_nodes(node)


def refuse_swallowing(node: ast.FunctionDef, label: str) -> None:
    """Refuse a function that could keep a refusal of the harness to itself."""
    ways_out = (ast.Return, ast.Break, ast.Continue)
    for item in ast.walk(node):
        found = False
        if isinstance(item, ast.ExceptHandler):
            found = item.type is None or "Base" in ast.unparse(item.type)
        elif isinstance(item, (ast.Try, ast.TryStar)):
            found = any(isinstance(one, ways_out) for last in item.finalbody for one in ast.walk(last))
        if found:
            unknown(f"{label}: {node.name} swallows exceptions of any kind, in {ast.unparse(item)[:60]!r}")
