"""Adapters of the project's own engines: the reference, and the capturer in torch."""

import hashlib
import importlib
import importlib.util
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routeproof_spec import CaptureConfig, ElementType, EngineProfile, Rank, StepContext, Surface

from routeproof_conformance.contexts.engine import Probe
from routeproof_conformance.contexts.own import ReferenceContexts
from routeproof_conformance.engine import Array, Communicator, RankEngine
from routeproof_conformance.engines.errors import EngineError

_ELEMENTS = (ElementType(dtype="uint8", experts=256), ElementType(dtype="uint16", experts=65_536))
_CAPABILITIES = frozenset(
    {
        "microbatches",
        "staged-microbatches",
        "declared-layouts",
        "layout-sets",
        "padded-to-max",
        "shared-columns",
    }
)


def package_digest(package: str) -> str:
    """Give the sha256 over the names and contents of a package's Python files."""
    spec = importlib.util.find_spec(package)
    digest = hashlib.sha256()
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _profile(name: str, package: str, *more: str, contexts: bool = False) -> EngineProfile:
    return EngineProfile(
        name=name,
        version=version("routeproof"),
        digest=package_digest(package),
        surfaces=frozenset({Surface.CAPTURER} | ({Surface.CONTEXT_BUILDER} if contexts else set())),
        capabilities=_CAPABILITIES | set(more),
        element_types=_ELEMENTS,
        sources=(package,),
    )


class ReferenceEngine:
    """The reference as an engine; needs no torch."""

    def __init__(self) -> None:
        """Import the reference as it is importable now (GAT-03 imports it anew)."""
        self.profile = _profile("reference", "routeproof_reference", contexts=True)
        self._make = importlib.import_module("routeproof_reference").ReferenceCapturer

    def create(self, config: CaptureConfig, rank: Rank, comm: Communicator) -> RankEngine:
        """Make the reference capturer of one rank."""
        return _Reference(self._make(config, rank, comm))

    def probe(self, surface: Surface) -> Probe:  # noqa: ARG002 - it has one other surface
        """Give the reference's own context builder."""
        return ReferenceContexts()


class _Reference:
    def __init__(self, capturer: Any) -> None:  # noqa: ANN401 - imported anew for GAT-03
        self.capturer = capturer
        self.begin_step = capturer.begin_step
        self.capture = capturer.capture
        self.end_step = capturer.end_step
        self.published = capturer.published

    def buffer(self) -> NDArray[Any]:
        """Copy the buffer."""
        copy: NDArray[Any] = self.capturer.buffer.copy()
        return copy

    def close(self) -> None:
        """Nothing is held."""


class RouteproofEngine:
    """The capturer in torch, on the device of the world: one gather a step."""

    name = "routeproof"
    mode = "deferred"

    def __init__(self) -> None:
        """Import the capturer as it is importable now; raise EngineError without torch."""
        try:
            self._torch = importlib.import_module("torch")
        except ImportError as error:
            raise EngineError(
                f"engine {self.name} needs torch (`pip install 'routeproof[torch]'`): {error}"
            ) from error
        self.profile = _profile(self.name, "routeproof_impl", "device-tensors")
        self._make = importlib.import_module("routeproof_impl").RoutedExpertsCapturer

    def create(self, config: CaptureConfig, rank: Rank, comm: Communicator) -> RankEngine:
        """Make the capturer of one rank."""
        device = getattr(comm, "device", "cpu")
        return _Routeproof(self._torch, self._make(config, rank, comm, device, mode=self.mode), device)


class PerLayerEngine(RouteproofEngine):
    """The same capturer, gathering at each layer's call."""

    name = "routeproof-per-layer"
    mode = "per-layer"


class _Routeproof:
    def __init__(self, torch: Any, capturer: Any, device: str) -> None:  # noqa: ANN401 - torch is optional
        self.torch = torch
        self.capturer = capturer
        self.device = device

    def begin_step(self, step: StepContext) -> None:
        """Pass on."""
        self.capturer.begin_step(step)

    def capture(self, layer: int, ids: Array, microbatch: int = 0) -> None:
        """Hand over the same memory, with its strides, on the CPU; a copy on another device."""
        self.capturer.capture(layer, self.torch.from_numpy(ids).to(self.device), microbatch)

    def end_step(self) -> None:
        """Pass on."""
        self.capturer.end_step()

    def published(self) -> NDArray[Any] | None:
        """Read the snapshot, in the memory that it has."""
        snapshot = self.capturer.snapshot()
        if snapshot is None:
            return None
        rows: NDArray[Any] = snapshot.numpy()
        return rows

    def buffer(self) -> NDArray[np.integer]:
        """Copy the storage: at the publisher it is in own-row order, and only there need it be."""
        copy: NDArray[np.integer] = self.capturer.buffer.cpu().numpy().copy()
        return copy

    def close(self) -> None:
        """Pass on."""
        self.capturer.close()
