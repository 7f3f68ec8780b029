"""What the harnesses of published files share: code out of a file, rows, wrapped builtins, planted faults.

Functions are taken by their syntax trees and compiled unmodified. A fake that is used in a
way it does not know raises, and the file is reported as of another shape.
"""

import __future__

import ast
import builtins
import copy
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar, NoReturn

from routeproof_reference.proofs.target import Number, Truth

from routeproof_conformance.prove.shape import Functions, Source, refuse_swallowing, unknown

Change = Callable[[ast.AST], ast.AST]
"""Plants a fault into a syntax tree."""

STRANGE = (
    AttributeError,
    IndexError,
    KeyError,
    NameError,
    TypeError,
    ImportError,
    RuntimeError,
    ArithmeticError,
)
"""What code of another shape raises over fakes."""


def same(left: Number, right: Number) -> bool:
    """Whether two numbers are equal; forks where that depends on the case."""
    return bool(left == right)


def takes(nodes: Functions, label: str, holder: str, name: str, number: int) -> None:
    """Refuse a class without a method, or whose method takes another number of arguments."""
    if name not in nodes:
        unknown(f"{label}: {holder} has no method {name}")
    arguments = [item.arg for item in nodes[name].args.args]
    if len(arguments) != number:
        unknown(f"{label}: {name} takes {arguments}, expected {number}")


def compiled(node: ast.FunctionDef, source: Source, change: Change | None) -> CodeType:
    """Compile a function on its own; its annotations are not evaluated."""
    refuse_swallowing(node, source.label)
    body = copy.deepcopy(node) if change is None else change(copy.deepcopy(node))
    module = ast.fix_missing_locations(ast.Module([body], []))  # type: ignore[list-item]
    flags = __future__.annotations.compiler_flag
    try:
        code: CodeType = compile(module, str(source.path), "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        unknown(f"{source.label}: {source.path.name} cannot be compiled: {error}")
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


def layer_of(index: Number, layers: Number) -> Number:
    """Give the layer that an index means, which may count from the end."""
    found = index + layers if index < 0 else index
    if found < 0 or found >= layers:
        unknown("the buffer has no such layer")
    return found


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

    def bring(name: str, *_: object) -> NoReturn:
        unknown(f"the code imports {name} as it runs")

    return {**vars(builtins), "int": integer, "len": length, "sum": add, "__import__": bring}


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


class LayerBefore(ast.NodeTransformer):
    """The layer before is written."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Change the place of a write."""
        if isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Tuple):
            node.slice.elts[1] = ast.BinOp(node.slice.elts[1], ast.Sub(), ast.Constant(1))
        return node
