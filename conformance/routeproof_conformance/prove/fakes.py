"""What the harnesses of published files share: code out of a file, rows, wrapped builtins, planted faults.

Functions are taken by their syntax trees and compiled unmodified. A fake that is used in a
way it does not know raises, and the file is reported as of another shape.
"""

import __future__

import ast
import builtins
import copy
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar, NoReturn

from routeproof_reference.proofs.obligation import UnknownShapeError
from routeproof_reference.proofs.target import Number, Truth

Change = Callable[[ast.AST], ast.AST]
"""Plants a fault into a syntax tree."""

STRANGE = (AttributeError, IndexError, KeyError, NameError, TypeError, ImportError, RuntimeError)
"""What code of another shape raises over fakes."""


def unknown(what: str) -> NoReturn:
    """Refuse: the code has another shape than the harness knows."""
    raise UnknownShapeError(what)


def same(left: Number, right: Number) -> bool:
    """Whether two numbers are equal; forks where that depends on the case."""
    return bool(left == right)


def methods_of(path: Path, label: str, name: str) -> dict[str, ast.FunctionDef]:
    """Give the methods of the one class of this name in a file."""
    tree = ast.parse(path.read_bytes())
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if len(found) != 1:
        unknown(f"{label}: the file has {len(found)} classes {name}, expected one")
    return {node.name: node for node in found[0].body if isinstance(node, ast.FunctionDef)}


def functions_of(path: Path, label: str, names: tuple[str, ...]) -> dict[str, ast.FunctionDef]:
    """Give functions of a file, and those of the same file that they name."""
    tree = ast.parse(path.read_bytes())
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in names if name not in known]
    if missing:
        unknown(f"{label}: {path.name} has no function {', '.join(missing)}")
    found: dict[str, ast.FunctionDef] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        found[name] = known[name]
        named = {node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)}
        waiting += sorted(named & set(known) - set(found))
    return found


def takes(nodes: dict[str, ast.FunctionDef], label: str, holder: str, name: str, number: int) -> None:
    """Refuse a class without a method, or whose method takes another number of arguments."""
    if name not in nodes:
        unknown(f"{label}: {holder} has no method {name}")
    arguments = [item.arg for item in nodes[name].args.args]
    if len(arguments) != number:
        unknown(f"{label}: {name} takes {arguments}, expected {number}")


def compiled(node: ast.FunctionDef, path: Path, change: Change | None) -> CodeType:
    """Compile a function on its own; its annotations are not evaluated."""
    body = copy.deepcopy(node) if change is None else change(copy.deepcopy(node))
    module = ast.fix_missing_locations(ast.Module([body], []))  # type: ignore[list-item]
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(module, str(path), "exec", flags, dont_inherit=True)
    return code


class Attributes:
    """An object with the given attributes and no others."""

    def __init__(self, what: str, **attributes: object) -> None:
        """Name it, for messages."""
        self.__dict__.update(attributes, _what=what)

    def __getattr__(self, name: str) -> NoReturn:
        unknown(f"the code reads {name!r} of the {self.__dict__['_what']}")


class Rows:
    """An ids tensor: which rows of what is handed over, or gathered, it holds."""

    def __init__(self, start: Number, stop: Number, gathered: Truth) -> None:
        """Hold rows [start, stop)."""
        self.start, self.stop, self.gathered = start, stop, gathered

    @property
    def shape(self) -> tuple[Number, ...]:
        """Rows, and a width that nobody may compute with."""
        return (self.length(),)

    def length(self) -> Number:
        """Give the number of rows."""
        return self.stop - self.start

    def contiguous(self) -> "Rows":
        """Give the same rows."""
        return self

    def __getitem__(self, key: object) -> "Rows":
        if not isinstance(key, slice) or key.step is not None:
            unknown(f"a tensor is indexed with {key!r}, not with a plain slice")
        length = self.length()
        first = clip(0 if key.start is None else key.start, length)
        last = clip(length if key.stop is None else key.stop, length)
        return Rows(self.start + first, self.start + last, self.gathered)

    def __len__(self) -> NoReturn:  # noqa: PLE0303
        unknown("the builtin len of a tensor, out of the harness's reach")


def clip(index: Number, length: Number) -> Number:
    """Bring an index of a slice into [0, length], as tensors do without a word."""
    if index < 0:
        index = index + length
    if index < 0:
        return 0
    return min(index, length)


def wrapped() -> dict[str, Any]:
    """Give the builtins, of which `int`, `len` and `sum` let numbers and fakes through.

    A fake says its length and its sum by methods `length` and `total`.
    """

    def integer(value: Any = 0) -> Any:  # noqa: ANN401
        return value if not isinstance(value, str) else builtins.int(value)

    def length(value: Any) -> Any:  # noqa: ANN401
        return value.length() if hasattr(type(value), "length") else builtins.len(value)

    def add(value: Any) -> Any:  # noqa: ANN401
        return value.total() if hasattr(type(value), "total") else builtins.sum(value)

    return {**vars(builtins), "int": integer, "len": length, "sum": add}


class Moved(ast.NodeTransformer):
    """Slices with a lower bound begin `first` rows later and end `last` rows later."""

    first: ClassVar[int] = 0
    last: ClassVar[int] = 0

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Move the bounds."""
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts if isinstance(node.ctx, ast.Load) else []:
            if isinstance(part, ast.Slice) and part.lower:
                part.lower = ast.BinOp(part.lower, ast.Add(), ast.Constant(self.first))
                if part.upper:
                    part.upper = ast.BinOp(part.upper, ast.Add(), ast.Constant(self.last))
        return node


class Shift(Moved):
    """Slices begin one row later."""

    first = 1
