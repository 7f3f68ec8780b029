"""The capturer of SGLang, driven on the CPU out of its own files.

SGLang infers no layout: a server is started for one. The adapter starts it for the layouts
that the configuration names (see `EngineProfile.deployments`):

- plain: tensor parallelism alone, DP ranks are replicas. Layout FULL, with or without a graph.
- DP attention: all DP ranks' tokens lie in one batch. Layout CROSS_DP; a step in which every
  DP rank has as many rows, some of them padding, is the replay of a decode graph of that size.
- DeepEP: every TP rank routes its own shard. Layout TP_SHARD.

At the end of a step the adapter calls `on_forward_end` with what the model runner hands over.
What is published is what a client is sent: the rows read back from the host cache by slot.
"""

import hashlib
import importlib.metadata
import importlib.util
import re
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from routeproof_spec import CaptureConfig, ElementType, EngineProfile, Layout, Rank, StepContext, Surface

from routeproof_conformance.contexts.engine import Probe
from routeproof_conformance.engine import Array, Communicator
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached
from routeproof_conformance.engines.sglang_source import CALLERS, FILES, Seat
from routeproof_conformance.engines.stubs import StubObject
from routeproof_conformance.engines.vllm import require_torch, writable

PACKAGE = "sglang"
FETCHED = (*FILES, *CALLERS)
"""What `engines fetch` keeps of a wheel."""
PUBLISHED = ("0.5.23",)
"""Versions of which the published files are checked regularly."""

_SUPPORTED = re.compile(r"0\.5\.23(?![0-9])")


class Deployment(Enum):
    """How the server is started, as the layouts that its producers then emit."""

    PLAIN = frozenset({Layout.FULL, Layout.UNCOUNTED})
    DP_ATTENTION = frozenset({Layout.CROSS_DP})
    DEEPEP = frozenset({Layout.TP_SHARD})


def _deployment(config: CaptureConfig) -> Deployment:
    if config.layouts is None:
        return Deployment.PLAIN
    for deployment in Deployment:
        if config.layouts <= deployment.value:
            return deployment
    names = ", ".join(sorted(config.layouts))
    raise ValueError(f"no SGLang server emits {names} together")


def _check(version: str) -> None:
    if not _SUPPORTED.match(version):
        raise EngineError(f"SGLang {version} has no adapter: supported is {', '.join(PUBLISHED)}")


class SglangEngine:
    """The files of one SGLang under test; `create` makes its capturer on one rank."""

    def __init__(self, root: Path, version: str, optimize: bool = False, overlap: bool = True) -> None:
        """Take the files below `root`, which holds the package, as those of `version`.

        Args:
            root: folder that holds the package `sglang`.
            version: whose files they are.
            optimize: drop their assertions.
            overlap: take the rows as the overlapping scheduler does (SGLang's default).

        """
        _check(version)
        self._root = Path(root)
        self._version = version
        self._optimize = optimize
        self._overlap = overlap
        self.profile = EngineProfile(
            name=PACKAGE,
            version=version,
            digest=_digest(self._root, version),
            surfaces=frozenset({Surface.CAPTURER, Surface.CONTEXT_BUILDER}),
            capabilities=frozenset({"shared-columns", "device-tensors"}),
            element_types=(ElementType(dtype="int32", experts=None),),
            uncounted="pass-through",
            fill=0,
            missing=None,
            declined={"SNP-04": "every rank stores its rows; which one answers is the scheduler's affair"},
            deployments=tuple(deployment.value for deployment in Deployment),
        )

    @classmethod
    def published(cls, version: str, optimize: bool = False) -> "SglangEngine":
        """Take the files of a published version, fetched before."""
        _check(version)
        return cls(cached(PACKAGE, version, FILES).root, version, optimize)

    @classmethod
    def installed(cls, optimize: bool = False) -> "SglangEngine":
        """Take the files of the SGLang that is installed here, without importing it."""
        try:
            spec = importlib.util.find_spec(PACKAGE)
            version = importlib.metadata.version(PACKAGE)
        except (ImportError, ValueError, importlib.metadata.PackageNotFoundError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise EngineError(
                f"SGLang is not installed here; name a published one, such as {PACKAGE}=={PUBLISHED[-1]}"
            )
        _check(version)
        for folder in spec.submodule_search_locations:
            if all((Path(folder).parent / file).is_file() for file in FILES):
                return cls(Path(folder).parent, version, optimize)
        raise EngineError(f"the installed SGLang {version} lacks one of {', '.join(FILES)}")

    def without_assertions(self) -> "SglangEngine":
        """Give the same files compiled without assertions (GAT-03)."""
        return SglangEngine(self._root, self._version, optimize=True, overlap=self._overlap)

    def __reduce__(self) -> tuple[type["SglangEngine"], tuple[Path, str, bool, bool]]:
        """Travel to another process as what it was made from."""
        return SglangEngine, (self._root, self._version, self._optimize, self._overlap)

    def probe(self, surface: Surface) -> Probe:  # noqa: ARG002 - it has one other surface
        """Give what drives the context builder, out of the capturer's callers."""
        from routeproof_conformance.contexts import published  # noqa: PLC0415 - it imports this package

        return published.sglang_probe(self._root.resolve(), self._version)

    def create(self, config: CaptureConfig, rank: Rank, comm: Communicator) -> "SglangRankEngine":
        """Make the capturer of one rank, in modules of its own."""
        torch = require_torch("SGLang")
        deployment = _deployment(config)
        dp_attention = rank.topology.dp > 1 and deployment is not Deployment.PLAIN
        parallel = StubObject(
            "Parallel",
            num_dp_ranks=rank.topology.dp,
            attn_dp_size=rank.topology.dp if dp_attention else 1,
            attn_dp_rank=rank.dp if dp_attention else 0,
            attn_tp_size=rank.topology.tp,
            attn_tp_group=_group(comm),
        )
        seat = Seat(
            self._root,
            f"routeproof_engine_sglang_rank{rank.index}",
            self._optimize,
            parallel,
            dp_attention=dp_attention,
            deepep=deployment is Deployment.DEEPEP,
            chunked_prefill_size=max(1, config.max_tokens // 4),
        )
        device = getattr(comm, "device", "cpu")
        return SglangRankEngine(torch, seat, config, rank, deployment, self._overlap, device)


def _digest(root: Path, version: str) -> str:
    """Give the sha256 over the names and contents of the files, in their order."""
    digest = hashlib.sha256()
    try:
        for file in FILES:
            digest.update(f"{file}\0".encode())
            digest.update((root / file).read_bytes())
    except OSError as error:
        raise EngineError(f"the capturer of SGLang {version} cannot be read: {error}") from error
    return digest.hexdigest()


class _Forward(NamedTuple):
    """What the model runner hands over at the end of a forward pass."""

    batch: StubObject
    graph: bool
    extent: int | None
    """Rows of a DP rank in the graph; None in eager execution."""


class SglangRankEngine:
    """SGLang's capturer on one rank."""

    def __init__(
        self,
        torch: Any,  # noqa: ANN401 - torch is optional
        seat: Seat,
        config: CaptureConfig,
        rank: Rank,
        deployment: Deployment,
        overlap: bool,
        device: str,
    ) -> None:
        """Build the engine's own class, as its model runner would; a decode batch is the largest step."""
        self._torch = torch
        self._rank = rank
        self._deployment = deployment
        self._overlap = overlap
        self._device = device
        self._rows = 0
        self._forward: _Forward | None = None
        self._output: Any = None
        shared = StubObject("SharedExpertsConfig", num_fused_shared_experts=config.shared_columns)
        model = StubObject(
            "PretrainedConfig", num_experts_per_tok=config.top_k, num_hidden_layers=config.layers
        )
        self._capturer = seat.module.RoutedExpertsCapturer.create(
            model=StubObject("Model", shared_experts_config=shared),
            model_config=StubObject("ModelConfig", hf_text_config=model),
            num_tokens=config.max_tokens * rank.topology.dp + 1,
            max_running_requests=config.max_tokens,
            device=device,
        )

    def begin_step(self, step: StepContext) -> None:
        """Build what the model runner knows of the step."""
        self._output = None
        self._rows = step.real[self._rank.dp]
        self._forward = self._plain(step) if self._deployment is Deployment.PLAIN else self._counted(step)

    def _plain(self, step: StepContext) -> _Forward:
        """Give a batch of the own tokens; a graph pads copies of it, not the batch."""
        counts = step.counts
        extent = None if counts is None else counts[self._rank.dp]
        graph = extent is not None and extent > self._rows
        return _Forward(self._batch(self._rows, None), graph, extent if graph else None)

    def _counted(self, step: StepContext) -> _Forward:
        """Give a batch that knows all DP ranks' tokens: the real ones in a graph, padded ones else."""
        counts = step.counts
        if counts is None:
            raise ValueError("with DP attention or DeepEP the scheduler always counts tokens")
        if self._deployment is Deployment.DP_ATTENTION and len(set(counts)) == 1 and step.real != counts:
            return _Forward(self._batch(self._rows, list(step.real)), graph=True, extent=counts[0])
        return _Forward(self._batch(counts[self._rank.dp], list(counts)), graph=False, extent=None)

    def _batch(self, rows: int, counts: list[int] | None) -> StubObject:
        """Give a batch whose tokens have the slots 1, 2, …; slot 0 takes what is padding."""
        slots = self._torch.zeros(rows, dtype=self._torch.int64, device=self._device)
        slots[: self._rows] = self._slots().to(self._device)
        return StubObject(
            "ForwardBatch", out_cache_loc=slots, out_cache_loc_virtual=None, global_num_tokens_cpu=counts
        )

    def _slots(self) -> Any:  # noqa: ANN401
        return self._torch.arange(1, self._rows + 1)

    def capture(self, layer: int, ids: Array, microbatch: int = 0) -> None:  # noqa: ARG002
        """Hand over the ids with their strides; shards in int32, as routers make them."""
        tensor = self._torch.from_numpy(writable(ids)).to(self._device)
        if self._deployment is Deployment.DEEPEP:
            tensor = tensor.to(self._torch.int32)
        self._capturer.capture(layer_id=layer, topk_indices=tensor)

    def end_step(self) -> None:
        """Call what the model runner calls after a forward pass."""
        if self._forward is None:
            raise RuntimeError("end_step outside a step")
        forward, self._forward = self._forward, None
        self._output = self._capturer.on_forward_end(
            forward_batch=forward.batch,
            can_run_graph=forward.graph,
            cuda_graph_batch=forward.extent,
            no_copy_to_cpu=self._overlap,
        )

    def published(self) -> np.ndarray[Any, Any] | None:
        """Store what the step left and read it back, as for a request of these tokens and one more."""
        if self._rank.tp != 0:
            return None
        if self._output is not None:
            self._output.map_device_tensors(lambda tensor: tensor.to("cpu"))
            self._output.finalize()
        pool = StubObject("ReqToTokenPool", req_to_token=self._slots()[None])
        rows: np.ndarray[Any, Any] = self._capturer.get_topk(
            req_pool_idx=0, seqlen=self._rows + 1, req_to_token_pool=pool
        ).numpy()
        return rows

    def buffer(self) -> np.ndarray[Any, Any] | None:
        """Copy the device cache; with DP attention it is in the order of all DP ranks."""
        if self._deployment is Deployment.DP_ATTENTION:
            return None
        rows = self._capturer.device_cache.buffer[..., : self._capturer.topk_size]
        copy: np.ndarray[Any, Any] = rows.cpu().numpy().copy()
        return copy

    def close(self) -> None:
        """Let go of the host cache, as the scheduler does."""
        self._capturer.destroy()


def _group(comm: Communicator) -> StubObject:
    """Give the attention-TP group; what torch.distributed refuses is refused before anything moves."""

    def all_gather_into_tensor(output: Any, input: Any) -> None:  # noqa: A002, ANN401 - as SGLang names them
        if output.dtype != input.dtype:
            raise ValueError(f"all_gather_into_tensor: output {output.dtype}, input {input.dtype}")
        if output.numel() != input.numel() * comm.size:
            raise ValueError(
                f"all_gather_into_tensor: output {list(output.shape)} is not {comm.size} "
                f"times input {list(input.shape)}"
            )
        output.copy_(comm.all_gather(input))

    return StubObject("GroupCoordinator", all_gather_into_tensor=all_gather_into_tensor)
