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
from typing import Any

from routeproof_conformance.engines.errors import EngineError


@lru_cache(maxsize=64)
def _tree(path: Path, _stamp: tuple[int, int]) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def tree(path: Path) -> ast.Module:
    """Parse a file; raise EngineError if it cannot be read."""
    try:
        stat = path.stat()
        return _tree(path, (stat.st_mtime_ns, stat.st_size))
    except OSError as error:
        raise EngineError(f"the engine's file {path} cannot be read: {error}") from error
    except (SyntaxError, ValueError) as error:
        raise EngineError(f"the engine's file {path} does not compile here: {error}") from error


def definition(path: Path, name: str) -> ast.stmt:
    """Find the function or class of this name, wherever it stands; raise EngineError if not one does."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(tree(path)) if isinstance(node, kinds) and node.name == name]
    if len(found) != 1:
        raise EngineError(f"the engine's file {path} defines {name} {len(found)} times, expected once")
    return found[0]


def calls(node: ast.AST, name: str) -> bool:
    """Whether a node is a call of a function, or of a method, of this name."""
    if not isinstance(node, ast.Call):
        return False
    target = node.func
    return (isinstance(target, ast.Name) and target.id == name) or (
        isinstance(target, ast.Attribute) and target.attr == name
    )


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Give every list of statements in a node."""
    for inner in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(inner, field, None)
            if isinstance(block, list):  # of a lambda it is an expression
                yield block


def statement(path: Path, wanted: Callable[[ast.stmt], bool], what: str) -> tuple[list[ast.stmt], int]:
    """Find the one statement that is wanted: its block, and its number in it."""
    found = [
        (block, number) for block in blocks(tree(path)) for number, item in enumerate(block) if wanted(item)
    ]
    if len(found) != 1:
        raise EngineError(f"the engine's file {path} has {what} {len(found)} times, expected once")
    return found[0]


def run(path: Path, statements: list[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
    """Execute statements of a file with these names, and give all names afterwards."""
    module = ast.Module(body=list(statements), type_ignores=[])
    flags = __future__.annotations.compiler_flag  # annotations name types of the rest of the engine
    code = compile(module, str(path), "exec", flags, dont_inherit=True, optimize=0)
    space = dict(names)
    exec(code, space)  # noqa: S102 (the engine under test)
    return space


def define(path: Path, name: str, names: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the engine defines
    """Give one function or class of a file."""
    return run(path, [definition(path, name)], names)[name]


def evaluate(path: Path, function: str, names: dict[str, Any]) -> Any:  # noqa: ANN401
    """Evaluate the one call of a function in a file, as it stands there, with these names."""
    found = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and calls(n, function)]
    if len(found) != 1:
        raise EngineError(f"the engine's file {path} calls {function} {len(found)} times, expected once")
    flags = __future__.annotations.compiler_flag
    code = compile(ast.Expression(found[0]), str(path), "eval", flags, dont_inherit=True, optimize=0)
    return eval(code, dict(names))  # noqa: S307 (the engine under test)
