"""Strict stand-ins for what an engine's file imports, and the loading of that file.

A stand-in has the attributes it was given and no others: an engine that asks for more
gets an AttributeError that names both, which the judge reads as a broken adapter.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from routeproof_conformance.engines.errors import EngineError


class StubModule(ModuleType):
    """A module with the given attributes and no others."""

    def __init__(self, name: str, **attributes: object) -> None:
        """Name it as the engine imports it."""
        super().__init__(name)
        self.__dict__.update(attributes)

    def __getattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(f"stub module {self.__name__} has no attribute {attribute!r}")


class StubObject:
    """An object with the given attributes and no others; none can be set later."""

    def __init__(self, name: str, **attributes: object) -> None:
        """`name` is for messages."""
        self.__dict__.update(attributes, _stub=name)

    def __getattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(f"stub {self.__dict__.get('_stub', '?')} has no attribute {attribute!r}")

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise AttributeError(f"stub {self.__dict__['_stub']} is read-only: {attribute!r} is not to be set")

    def __repr__(self) -> str:
        """Name it."""
        return f"<stub {self.__dict__['_stub']}>"


_lock = threading.RLock()
_compiled: dict[tuple[str, int, int, bool], CodeType] = {}


def load_source(path: Path, name: str, stubs: dict[str, ModuleType], optimize: bool) -> ModuleType:
    """Execute a file as a new module called `name`, which sees `stubs` as its imports.

    Every call gives a module of its own, absent from `sys.modules`, in which the stubs and
    their parents are while the file runs and no longer. With `optimize` the file is compiled
    without its assertions; otherwise with them, under `python -O` too.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    with _lock:
        code = _code(path, optimize)
        with _visible({**_parents(stubs), **stubs, name: module}):
            exec(code, module.__dict__)  # noqa: S102 (the engine under test)
    return module


def _code(path: Path, optimize: bool) -> CodeType:
    try:
        stat = path.stat()
        key = (str(path), stat.st_mtime_ns, stat.st_size, optimize)
        if key not in _compiled:
            _compiled[key] = compile(
                path.read_bytes(), str(path), "exec", dont_inherit=True, optimize=1 if optimize else 0
            )
    except OSError as error:
        raise EngineError(f"the engine's file {path} cannot be read: {error}") from error
    except (SyntaxError, ValueError) as error:
        raise EngineError(f"the engine's file {path} does not compile here: {error}") from error
    return _compiled[key]


def _parents(stubs: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Give the packages above the stubs, each with what lies in it as attributes."""
    parents: dict[str, ModuleType] = {}
    for full in stubs:
        parts = full.split(".")
        for depth in range(1, len(parts)):
            above = ".".join(parts[:depth])
            if above not in stubs:
                parents.setdefault(above, StubModule(above))
    for full, module in (*parents.items(), *stubs.items()):
        above, _, last = full.rpartition(".")
        if above in parents:
            setattr(parents[above], last, module)
    return parents


@contextmanager
def _visible(modules: dict[str, Any]) -> Iterator[None]:
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)
