"""The capturer of vLLM, driven on the CPU out of its one file.

The file is executed with stand-ins for what it imports. They hold what the model runner
of that version would put there, with physical counts, and nothing else: no check, no
trimming and no repair is added around the engine's own class.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from routeproof_spec import CaptureConfig, ElementType, EngineProfile, Rank, StepContext, Surface

from routeproof_conformance.contexts.engine import Probe
from routeproof_conformance.engine import Array, Communicator
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached
from routeproof_conformance.engines.stubs import StubModule, StubObject, load_source

PACKAGE = "vllm"
FILE = "vllm/model_executor/layers/fused_moe/routed_experts_capturer.py"
PUBLISHED = ("0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""Versions of which the published file is checked regularly."""


@dataclass(frozen=True)
class _Generation:
    """Versions whose file is driven alike: first <= version < until."""

    first: tuple[int, int]
    until: tuple[int, int]
    annotations: tuple[tuple[str, str], ...]
    """What the file imports to name types alone: module and class."""
    offsets: bool = False
    """Whether the file asks for the token offset of the microbatch."""
    slots: bool = False
    """Whether rows are narrowed and kept by the scheduler, by KV slot; else by the capturer."""

    @property
    def surfaces(self) -> frozenset[Surface]:
        """What is driven beside the capturer: of the versions whose second model runner captures."""
        others = frozenset() if self.slots else {Surface.CONTEXT_BUILDER, Surface.ROUTER}
        return frozenset({Surface.CAPTURER}) | others


_CONFIG = ("vllm.config", "VllmConfig")
_MOE_CONFIG = ("vllm.model_executor.layers.fused_moe.config", "FusedMoEConfig")
_CONTEXT = ("vllm.forward_context", "ForwardContext")
_CACHE_CONFIG = ("vllm.v1.kv_cache_interface", "KVCacheConfig")
_GENERATIONS = (
    _Generation((0, 28), (0, 31), annotations=(_CONFIG, _CACHE_CONFIG), slots=True),
    _Generation((0, 31), (0, 32), annotations=(_CONFIG,)),
    _Generation((0, 32), (0, 33), annotations=(_CONFIG, _MOE_CONFIG)),
    _Generation((0, 33), (0, 34), annotations=(_CONFIG, _MOE_CONFIG, _CONTEXT), offsets=True),
)


def _generation(version: str) -> _Generation:
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else None
    for generation in _GENERATIONS:
        if found is not None and generation.first <= found < generation.until:
            return generation
    (major, first), (_, until) = _GENERATIONS[0].first, _GENERATIONS[-1].until
    known = ", ".join(f"{major}.{minor}.*" for minor in range(first, until))
    raise EngineError(f"vLLM {version} has no adapter: supported are {known}")


def require_torch(engine: str) -> Any:  # noqa: ANN401 (torch is optional)
    """Give torch, which the capturer of `engine` needs; raise EngineError without it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise EngineError(
            f"the capturer of {engine} needs torch (`pip install 'routeproof[torch]'`): {error}"
        ) from error


class VllmEngine:
    """One file of vLLM under test; `create` makes its capturer on one rank."""

    def __init__(self, path: Path, version: str, optimize: bool = False) -> None:
        """Take the file at `path` as that of `version`; `optimize` drops its assertions."""
        self._path = Path(path)
        self._version = version
        self._optimize = optimize
        self._generation = _generation(version)
        try:
            digest = hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError as error:
            raise EngineError(f"the capturer of vLLM {version} cannot be read: {error}") from error
        self.profile = EngineProfile(
            name=PACKAGE,
            version=version,
            digest=digest,
            surfaces=self._generation.surfaces,
            capabilities=frozenset({"microbatches", "device-tensors", "expert-load-balancing"}),
            element_types=(
                ElementType(dtype="uint8", experts=256),
                ElementType(dtype="uint16", experts=None),
            ),
            uncounted="pass-through",
            fill=0,
            missing=None,
            declined={"SNP-04": "the publisher is chosen by the connector, outside the capturer's file"},
            sources=(),
        )

    @classmethod
    def published(cls, version: str, optimize: bool = False) -> "VllmEngine":
        """Take the file of a published version, fetched before."""
        _generation(version)
        return cls(cached(PACKAGE, version, (FILE,)).path(FILE), version, optimize)

    @classmethod
    def installed(cls, optimize: bool = False) -> "VllmEngine":
        """Take the file of the vLLM that is installed here, without importing vLLM."""
        try:
            spec = importlib.util.find_spec(PACKAGE)
            version = importlib.metadata.version(PACKAGE)
        except (ImportError, ValueError, importlib.metadata.PackageNotFoundError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise EngineError(
                "vLLM is not installed here; name a published one, such as vllm==" + PUBLISHED[-1]
            )
        _generation(version)
        for folder in spec.submodule_search_locations:
            path = Path(folder).parent / FILE
            if path.is_file():
                return cls(path, version, optimize)
        raise EngineError(f"the installed vLLM {version} has no {FILE}")

    def without_assertions(self) -> "VllmEngine":
        """Give the same file compiled without assertions (GAT-03)."""
        return VllmEngine(self._path, self._version, optimize=True)

    def __reduce__(self) -> tuple[type["VllmEngine"], tuple[Path, str, bool]]:
        """Travel to another process as what it was made from."""
        return VllmEngine, (self._path, self._version, self._optimize)

    def probe(self, surface: Surface) -> Probe:
        """Give what drives another surface, out of the files beside the capturer's."""
        from routeproof_conformance.contexts import published  # noqa: PLC0415 - it imports this package

        root = published.package_root(self._path, FILE)
        return published.vllm_probe(root, self._version, surface, require_torch("vLLM"))

    def create(self, config: CaptureConfig, rank: Rank, comm: Communicator) -> "VllmRankEngine":
        """Make the capturer of one rank, in a module of its own (executing the file takes 0.1 ms)."""
        torch = require_torch("vLLM")
        device = getattr(comm, "device", "cpu")
        seat = _Seat(self._path, self._generation, self._optimize, rank, device)
        seat.group = _group(comm)
        return VllmRankEngine(torch, seat, config, rank)


class _Seat:
    """A loaded module, and what its stand-ins give at the moment."""

    def __init__(self, path: Path, generation: _Generation, optimize: bool, rank: Rank, device: str) -> None:
        self.device = device
        self.context: StubObject | None = None
        self.group: StubObject | None = None
        self.offset = 0
        name = f"routeproof_engine_vllm_rank{rank.index}"
        self.generation = generation
        self.module = load_source(path, name, self._stubs(generation), optimize)

    def _stubs(self, generation: _Generation) -> dict[str, ModuleType]:
        given: dict[str, dict[str, object]] = {
            "vllm.distributed.parallel_state": {"get_tp_group": self._get_tp_group},
            "vllm.forward_context": {"get_forward_context": self._get_forward_context},
            "vllm.platforms": {"current_platform": StubObject("current_platform", device_type=self.device)},
        }
        if generation.offsets:
            given["vllm.v1.worker.ubatching"] = {"dbo_current_ubatch_token_offset": lambda: self.offset}
        if generation.slots:
            given["vllm.v1.kv_cache_interface"] = {
                "FullAttentionSpec": _FullAttention,
                "is_full_attention_spec": lambda spec: isinstance(spec, _FullAttention),
            }
            given["vllm.v1.outputs"] = {"RoutedExpertsTensors": _Tensors}
        for module, name in generation.annotations:
            given.setdefault(module, {})[name] = type(name, (), {})
        return {module: StubModule(module, **attributes) for module, attributes in given.items()}

    def _get_tp_group(self) -> StubObject:
        return _given(self.group, "TP group")

    def _get_forward_context(self) -> StubObject:
        return _given(self.context, "forward context")


class _FullAttention(StubObject):
    """The kind of KV cache whose slots routed experts go by."""


class _Tensors(StubObject):
    """What a step hands to the scheduler, up to 0.30."""

    def __init__(self, **tensors: object) -> None:
        super().__init__("RoutedExpertsTensors", **tensors)


def _given(value: StubObject | None, what: str) -> StubObject:
    if value is None:
        raise RuntimeError(f"no {what} is set: capture was called outside a step")
    return value


class VllmRankEngine:
    """vLLM's capturer on one rank."""

    def __init__(self, torch: Any, seat: _Seat, config: CaptureConfig, rank: Rank) -> None:  # noqa: ANN401
        """Build the engine's own class, as its worker would."""
        self._torch = torch
        self._seat = seat
        self._rank = rank
        self._rows = 0
        self._parts: tuple[tuple[StubObject, int], ...] = ()
        vllm_config = _vllm_config(config, rank)
        cache = {"kv_cache_config": _cache_config(config.max_tokens)} if seat.generation.slots else {}
        self._capturer = seat.module.RoutedExpertsCapturer(
            max_num_batched_tokens=config.max_tokens, vllm_config=vllm_config, **cache
        )
        self._store = seat.module.RoutedExpertsManager(vllm_config, **cache) if cache else None

    def begin_step(self, step: StepContext) -> None:
        """Build the forward context of the step, or one for each microbatch."""
        self._rows = step.real[self._rank.dp]
        if step.microbatches:
            self._parts = tuple(
                (self._context(part.counts, part.shard_sizes), part.offset) for part in step.microbatches
            )
        else:
            self._parts = ((self._context(step.counts, step.shard_sizes), 0),)

    def capture(self, layer: int, ids: Array, microbatch: int = 0) -> None:
        """Hand over the ids in the memory and with the strides that they have."""
        self._seat.context, self._seat.offset = self._parts[microbatch]
        self._capturer.capture(layer, self._torch.from_numpy(writable(ids)).to(self._seat.device))

    def end_step(self) -> None:
        """Nothing: vLLM does no more work at the end of a forward pass."""

    def published(self) -> np.ndarray[Any, Any] | None:
        """Give the engine's own snapshot, in the memory that it has; up to 0.30, what its scheduler keeps."""
        if self._rank.tp != 0:
            return None
        snapshot: np.ndarray[Any, Any]
        if self._store is None:
            snapshot = self._capturer.snapshot_routing_data(self._rows).cpu().numpy()
            return snapshot
        taken = self._capturer.get_routed_experts(self._torch.arange(self._rows)[None], self._rows)
        self._store.store_batch(taken.routing_data.cpu().numpy(), taken.slot_mapping.numpy())
        snapshot = self._store.get([0], self._rows)
        return snapshot

    def buffer(self) -> np.ndarray[Any, Any] | None:
        """Copy the device buffer."""
        copy: np.ndarray[Any, Any] = self._capturer.device_buffer.cpu().numpy().copy()
        return copy

    def close(self) -> None:
        """Let go of the communicator and of the last step."""
        self._seat.context = self._seat.group = None

    def _context(self, counts: tuple[int, ...] | None, shards: tuple[int, ...] | None) -> StubObject:
        """Give what `set_forward_context` would, cut down to the fields that capturers read."""
        metadata = descriptor = None
        if counts is not None:
            descriptor = StubObject("BatchDescriptor", num_tokens=counts[self._rank.dp])
            if len(counts) > 1:
                metadata = StubObject(
                    "DPMetadata",
                    num_tokens_across_dp_cpu=self._torch.tensor(counts, dtype=self._torch.int32),
                    local_sizes=None if shards is None else list(shards),
                )
        return StubObject("ForwardContext", dp_metadata=metadata, batch_descriptor=descriptor)


def _vllm_config(config: CaptureConfig, rank: Rank) -> StubObject:
    model = StubObject(
        "ModelConfig",
        get_total_num_hidden_layers=lambda: config.layers,
        get_num_experts=lambda: config.experts,
        get_num_experts_per_tok=lambda: config.top_k,
        hf_text_config=StubObject("PretrainedConfig", model_type="routeproof"),
    )
    parallel = StubObject("ParallelConfig", data_parallel_rank=rank.dp, tensor_parallel_size=rank.topology.tp)
    return StubObject("VllmConfig", model_config=model, parallel_config=parallel)


def _cache_config(tokens: int) -> StubObject:
    """Give a KV cache of one block, which holds the largest step."""
    spec = _FullAttention("FullAttentionSpec", block_size=tokens)
    group = StubObject("KVCacheGroupSpec", kv_cache_spec=spec)
    return StubObject("KVCacheConfig", kv_cache_groups=[group], num_blocks=1)


def _group(comm: Communicator) -> StubObject:
    def all_gather(input_: Array, dim: int = -1) -> Array:
        if dim != 0:
            _unsupported(dim)
        return comm.all_gather(input_)

    return StubObject("GroupCoordinator", all_gather=all_gather)


def _unsupported(dim: int) -> NoReturn:
    raise NotImplementedError(f"the adapter gathers along dimension 0, not {dim}")


class _SameMemory:
    """An array's memory, said to be writable: the engine only reads it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def writable(ids: Array) -> np.ndarray[Any, Any]:
    """View a read-only array as writable, without a copy: torch warns about others."""
    array: np.ndarray[Any, Any] = np.asarray(ids)
    if min(array.strides, default=0) < 0:
        raise TypeError(f"torch has no negative strides: {array.strides} cannot be handed over")
    return array if array.flags.writeable else np.asarray(_SameMemory(array))
