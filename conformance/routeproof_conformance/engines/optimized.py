"""Importing modules again with their assertions compiled away (GAT-03)."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType


class _Loader(SourceFileLoader):
    """Compiles from source, never from a cache, without assertions."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=1)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules named, and those below them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _within(fullname, self.names):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _within(name: str, names: tuple[str, ...]) -> bool:
    return any(name == item or name.startswith(f"{item}.") for item in names)


@contextmanager
def without_assertions(names: tuple[str, ...]) -> Iterator[None]:
    """Import the named modules anew inside the block; afterwards all is as before.

    Objects made inside keep the modules that they came from.
    """
    kept = {name: module for name, module in sys.modules.items() if _within(name, names)}
    attributes = [
        (parent, last, vars(parent)[last])
        for above, _, last in (name.rpartition(".") for name in kept)
        if (parent := sys.modules.get(above)) is not None and last in vars(parent)
    ]
    for name in kept:
        del sys.modules[name]
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _within(name, names)]:
            del sys.modules[name]
        sys.modules.update(kept)
        for parent, last, module in attributes:
            setattr(parent, last, module)
