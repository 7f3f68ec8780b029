"""Pieces of an engine's file, taken out of its syntax tree as they stand and run with stand-ins.

A function or a statement of a file that imports most of an engine often needs only a few
names. It is compiled unmodified, under the file's own name and line numbers; a name that it
needs and was not given is a NameError, which the judge reads as a broken adapter.
"""

import __future__

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from routeproof_conformance.engines.errors import EngineError

_FLAGS = __future__.annotations.compiler_flag
"""Annotations name types of the rest of the engine, so they stay text."""


class ShapeError(EngineError):
    """The file has not the piece that is driven: an engine that changed, which an adapter has to follow."""


_T = TypeVar("_T")
Wanted = Callable[[ast.stmt], bool]


@lru_cache(maxsize=64)
def tree(path: Path) -> ast.Module:
    """Parse a file; raise EngineError if it cannot be read."""
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise EngineError(f"the engine's file {path} cannot be read: {error}") from error
    except (SyntaxError, ValueError) as error:
        raise EngineError(f"the engine's file {path} does not compile here: {error}") from error


def calls(node: ast.AST, name: str) -> bool:
    """Whether a node is a call of a function, or of a method, of this name."""
    if not isinstance(node, ast.Call):
        return False
    target = node.func
    return (isinstance(target, ast.Name) and target.id == name) or (
        isinstance(target, ast.Attribute) and target.attr == name
    )


def define(path: Path, names: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Execute functions and classes of a file, wherever they stand; give all names afterwards."""
    return _run(_definitions(path, names), given)


@lru_cache(maxsize=256)
def _definitions(path: Path, names: tuple[str, ...]) -> CodeType:
    kinds = (ast.FunctionDef, ast.ClassDef)
    found: dict[str, list[ast.stmt]] = {name: [] for name in names}
    for node in ast.walk(tree(path)):
        if isinstance(node, kinds) and node.name in found:
            found[node.name].append(node)
    return _compile(path, [_one(path, f"definition of {name}", found[name]) for name in names])


def execute(path: Path, wanted: Wanted, before: int, given: dict[str, Any]) -> dict[str, Any]:
    """Execute the one statement that is wanted, with some before it; give all names afterwards."""
    return _run(_statement(path, wanted, before), given)


@lru_cache(maxsize=256)
def _statement(path: Path, wanted: Wanted, before: int) -> CodeType:
    found = [
        block[max(0, number - before) : number + 1]
        for block in _blocks(tree(path))
        for number, item in enumerate(block)
        if wanted(item)
    ]
    return _compile(path, _one(path, wanted.__doc__ or wanted.__name__, found))


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for inner in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(inner, field, None)
            if isinstance(block, list):  # of a lambda it is an expression
                yield block


def evaluate(path: Path, function: str, given: dict[str, Any]) -> Any:  # noqa: ANN401
    """Evaluate the one call of a function in a file, as it stands there."""
    return eval(_call(path, function), dict(given))  # noqa: S307 (the engine under test)


@lru_cache(maxsize=256)
def _call(path: Path, function: str) -> CodeType:
    found = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and calls(n, function)]
    expression = ast.Expression(_one(path, f"call of {function}", found))
    code: CodeType = compile(expression, str(path), "eval", _FLAGS, dont_inherit=True, optimize=0)
    return code


def _one(path: Path, what: str, found: list[_T]) -> _T:
    if len(found) != 1:
        raise ShapeError(f"the engine's file {path} has {len(found)} of: {what.strip('.')}; expected one")
    return found[0]


def _compile(path: Path, statements: list[ast.stmt]) -> CodeType:
    module = ast.Module(body=statements, type_ignores=[])
    code: CodeType = compile(module, str(path), "exec", _FLAGS, dont_inherit=True, optimize=0)
    return code


def _run(code: CodeType, given: dict[str, Any]) -> dict[str, Any]:
    space = dict(given)
    exec(code, space)  # noqa: S102 (the engine under test)
    return space
