"""Engines by name: `routeproof`, `reference`, `vllm==X`, `sglang==X`, `package.module:Class`."""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from routeproof_spec import EngineProfile

from routeproof_conformance.contexts.files import SGLANG_FILES, VLLM_FILES
from routeproof_conformance.engine import Engine
from routeproof_conformance.engines import fetch, sglang
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.optimized import without_assertions
from routeproof_conformance.engines.own import PerLayerEngine, ReferenceEngine, RouteproofEngine
from routeproof_conformance.engines.sglang import SglangEngine
from routeproof_conformance.engines.vllm import FILE, PACKAGE, PUBLISHED, VllmEngine

__all__ = ["BUILT_IN", "PUBLISHED_ENGINES", "EngineError", "Loaded", "fetch_engine", "load"]

BUILT_IN = {
    "routeproof": "this project's capturer, in torch",
    "reference": "the executable spec as a capturer, in numpy",
    "vllm": "the capturer of the vLLM installed here",
    **{f"vllm=={version}": "the capturer file of the published wheel" for version in PUBLISHED},
    "sglang": "the capturer of the SGLang installed here",
    **{f"sglang=={version}": "the capturer files of the published wheel" for version in sglang.PUBLISHED},
    "routeproof-per-layer": "this project's capturer, gathering at each layer's call",
    "package.module:Class": "your adapter: see CONTRIBUTING.md",
}
"""What `--engine` takes, with a few words on each."""

PUBLISHED_ENGINES: dict[str, tuple[str, ...]] = {PACKAGE: (FILE,), sglang.PACKAGE: sglang.FETCHED}
"""Engines of which `engines fetch` knows the files."""

VLLM_DELIVERY = tuple(
    f"vllm/distributed/aux_output_connector/{name}.py"
    for name in ("connector", "store", "routed_experts", "worker")
)
"""What takes the rows from the capturer to the requests, from 0.31 on."""

_BESIDE: dict[str, tuple[str, ...]] = {
    PACKAGE: (*VLLM_FILES, *VLLM_DELIVERY),
    sglang.PACKAGE: SGLANG_FILES,
}
"""What it keeps for other surfaces and for our plugin, where the version has it."""

_OWN: dict[str, Callable[[], Engine]] = {
    "routeproof": RouteproofEngine,
    "routeproof-per-layer": PerLayerEngine,
    "reference": ReferenceEngine,
}


def fetch_engine(name: str) -> fetch.FetchedFiles:
    """Fetch the files of `package==version`; raise EngineError with one clear message."""
    package, _, version = name.partition("==")
    if package not in PUBLISHED_ENGINES or not version:
        known = ", ".join(f"{item}==X" for item in PUBLISHED_ENGINES)
        raise EngineError(f"cannot fetch {name!r}: expected {known}, such as vllm=={PUBLISHED[-1]}")
    return fetch.fetch(package, version, PUBLISHED_ENGINES[package], _BESIDE[package])


@dataclass(frozen=True)
class Loaded:
    """An engine, and its twin whose source has no assertions (GAT-03)."""

    name: str
    """As given on the command line."""
    engine: Engine
    unasserted: Engine | None
    why_not: str = ""
    """Why there is no twin."""

    @property
    def profile(self) -> EngineProfile:
        """What the engine claims."""
        return self.engine.profile


def load(name: str) -> Loaded:
    """Make the engine of a name; raise EngineError with one clear message if that fails."""
    package, _, version = name.partition("==")
    if name in _OWN:
        return _reimported(name, _OWN[name])
    if package == PACKAGE:
        made = VllmEngine.published(version) if version else VllmEngine.installed()
        return Loaded(name, made, made.without_assertions())
    if package == sglang.PACKAGE:
        files = SglangEngine.published(version) if version else SglangEngine.installed()
        return Loaded(name, files, files.without_assertions())
    if ":" in name:
        return _reimported(name, _adapter(name), (name.partition(":")[0],))
    known = ", ".join(BUILT_IN)
    raise EngineError(f"unknown engine {name!r}: expected one of {known}")


def _adapter(name: str) -> Callable[[], Engine]:
    """Find `package.module:Class`, anew at every call."""
    module_name, _, class_name = name.partition(":")

    def make() -> Engine:
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            raise EngineError(
                f"engine {name!r}: module {module_name!r} cannot be imported: "
                f"{type(error).__name__}: {error} (is it on PYTHONPATH?)"
            ) from error
        found = getattr(module, class_name, None)
        if not inspect.isclass(found):
            raise EngineError(f"engine {name!r}: module {module_name!r} has no class {class_name!r}")
        try:
            engine = cast("Engine", found())
        except (Exception, SystemExit) as error:
            raise EngineError(
                f"engine {name!r}: {class_name}() raised {type(error).__name__}: {error}"
            ) from error
        profile = getattr(engine, "profile", None)
        if not isinstance(profile, EngineProfile) or not callable(getattr(engine, "create", None)):
            raise EngineError(
                f"engine {name!r}: {class_name}() needs `profile`, an EngineProfile "
                f"(got {type(profile).__name__}), and a method `create`"
            )
        return engine

    return make


def _reimported(name: str, make: Callable[[], Engine], adapter: tuple[str, ...] = ()) -> Loaded:
    """Make the engine, and its twin out of its sources and its adapter imported anew."""
    engine = make()
    sources = engine.profile.sources
    if not sources:
        return Loaded(name, engine, None, "the profile names no `sources` to import without assertions")
    with without_assertions((*sources, *adapter)):
        try:
            twin = make()
        except EngineError as error:
            return Loaded(name, engine, None, f"its sources cannot be imported again: {error}")
        unused = [item for item in sources if item not in sys.modules]
    if unused:
        return Loaded(name, engine, None, f"its profile names sources that it does not import: {unused}")
    return Loaded(name, engine, twin)
