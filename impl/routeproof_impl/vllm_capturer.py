"""Our capturer in the shape of vLLM's own: same constructor, methods and attributes.

vLLM calls `capture` from its layers and says nothing of steps. They are found here: a step opens
with the first capture of a forward pass, told by its forward context, and ends where its output
is prepared. A pass that ends nowhere (dummy, profiling and warm-up runs) is dropped by the next.
"""

import importlib
import logging
import weakref
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from routeproof_spec import CaptureConfig, LayoutError, Rank, StepContext, StepError, Topology

from routeproof_impl.capturer import Mode, RoutedExpertsCapturer
from routeproof_impl.communicator import TorchCommunicator
from routeproof_impl.snapshot import Snapshot, element_type

_log = logging.getLogger("vllm.routeproof")

TOKENS = "routeproof_tokens"
"""Attribute of a forward context: its physical tokens, where vLLM does not keep them there itself."""


class VllmGroup:
    """vLLM's TP group as a communicator."""

    def __init__(self, group: Any) -> None:  # noqa: ANN401 - vLLM's GroupCoordinator
        """Take the group that `get_tp_group` gives."""
        self._group = group
        self.rank = int(group.rank_in_group)
        self.size = int(group.world_size)
        self._gathering: TorchCommunicator | None = None

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Concatenate the rows of all ranks, through vLLM's own collective."""
        gathered: torch.Tensor = self._group.all_gather(rows, dim=0)
        return gathered

    def gather(self, rows: torch.Tensor, dst: int = 0) -> torch.Tensor | None:
        """Like `all_gather`, to rank `dst` alone; through torch, on the group that vLLM made."""
        return self._on_torch().gather(rows, dst)

    def gather_into(self, rows: torch.Tensor, out: torch.Tensor | None, dst: int = 0) -> None:
        """Like `gather`, into `out`."""
        self._on_torch().gather_into(rows, out, dst)

    def _on_torch(self) -> TorchCommunicator:
        if self._gathering is None:
            self._gathering = TorchCommunicator(self._group.device_group)
        return self._gathering


class Handle:
    """Rows on their way to the host: stands where vLLM's connector keeps a tensor, then an array.

    Read by `read` once the step's output is consumed, so that nothing waits before.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Hold a snapshot."""
        self._snapshot = snapshot

    def to(self, *_: object, **__: object) -> "Handle":
        """Stand for the copy to the host, which is under way already."""
        return self

    def numpy(self) -> "Handle":
        """Stand for the array."""
        return self

    def read(self) -> np.ndarray[Any, Any]:
        """Wait, check the ids, and copy: whoever gets rows of vLLM keeps them as long as it likes.

        Raise ExpertIdError for an id outside [0, E) and StepError for other layers on other ranks.
        """
        return self._snapshot.numpy().copy()


class Counted(NamedTuple):
    """What a forward context says of its tokens."""

    counts: tuple[int, ...] | None
    """T per DP rank; None: not known."""
    shard_sizes: tuple[int, ...] | None


class VllmCapturer:
    """Routed-experts capture for vLLM 0.31 to 0.33."""

    mode: ClassVar[Mode] = "per-layer"

    def __init__(self, max_num_batched_tokens: int, vllm_config: Any) -> None:  # noqa: ANN401
        """Allocate; the sizes are those that vLLM's own capturer takes from its configuration.

        Raise ValueError for microbatches (DBO), of which vLLM does not say at the first layer what
        the others will be, and for sizes that cannot be captured.
        """
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        if getattr(parallel, "use_ubatching", False) or getattr(parallel, "enable_dbo", False):
            raise ValueError(
                "routeproof's capturer does not take vLLM's microbatches: leave --enable-dbo out"
            )
        self.dp_rank = int(parallel.data_parallel_rank)
        self.tp_size = int(parallel.tensor_parallel_size)
        experts = int(model.get_num_experts())
        graphs = getattr(vllm_config, "compilation_config", None)
        largest_graph = getattr(graphs, "max_cudagraph_capture_size", None) or 0
        config = CaptureConfig(
            max_tokens=max(int(max_num_batched_tokens), int(largest_graph)),
            layers=int(model.get_total_num_hidden_layers()),
            top_k=int(model.get_num_experts_per_tok()),
            experts=experts,
        )
        self.shape_per_token = (config.layers, config.top_k)
        self.output_dtype = element_type(experts)
        self.output_dtype_name = str(self.output_dtype).removeprefix("torch.")
        self.hands_over = False
        """Whether snapshots go to the connector, which reads them when the output is consumed."""
        self._dp = int(getattr(parallel, "data_parallel_size", 1))
        self._forward = importlib.import_module("vllm.forward_context")
        group = VllmGroup(importlib.import_module("vllm.distributed.parallel_state").get_tp_group())
        topology = Topology(tp=self.tp_size, dp=self._dp)
        device = importlib.import_module("vllm.platforms").current_platform.device_type
        self._on_gpu = str(device) == "cuda"
        self._capturer = RoutedExpertsCapturer(
            config, Rank(topology=topology, dp=self.dp_rank, tp=group.rank), group, device, mode=self.mode
        )
        _log.info(
            "routeproof's capturer, mode %s: TP rank %d of %d, DP rank %d of %d; buffer [%d, %d, %d]",
            *(self.mode, group.rank, group.size, self.dp_rank, self._dp),
            *(config.max_tokens, config.layers, config.top_k),
        )
        self._context: weakref.ref[Any] | None = None
        self._now = Counted(None, None)
        self._open = self._real = self._recording = False
        self._captured: set[int] = set()
        self._layers: set[int] = set()
        self._recorded: dict[tuple[int, ...], Counted] = {}
        self._snapshot: Snapshot | None = None

    @property
    def device_buffer(self) -> torch.Tensor:
        """The rows [tokens, L, K] in int32, as in vLLM; of the last step, after its end.

        In mode "deferred" gathered shards are there at the publisher alone.
        """
        return self._capturer.buffer

    def begin(self, *, real: bool) -> None:
        """Start a scheduled step (`real`), whose captures belong together up to `end`."""
        self._settle()
        self._real, self._snapshot = real, None

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        """Record the ids of a layer; raises what `RoutedExpertsCapturer` raises."""
        context = self._forward.get_forward_context()
        if self._context is None or self._context() is not context:
            self._enter(context)
        self._capturer.capture(layer_id, topk_ids)
        self._captured.add(layer_id)

    def end(self, real: int, padded: int | None = None) -> None:
        """End the step with `real` tokens; `padded`: its physical tokens, if a graph was replayed.

        Called by every TP rank in mode "deferred". Raise StepError for a step without captures
        that is no replay of a recorded graph, and for one with fewer layers than an earlier pass.
        """
        if self._open:
            self._check_layers()
        else:
            self._replay(real, padded)
        self._open = self._real = False
        self._context = None
        self._capturer.end_step(real=real)
        self._snapshot = self._capturer.snapshot()

    def snapshot_routing_data(self, num_tokens: int) -> torch.Tensor | Handle:
        """Give the rows [num_tokens, L, K] of the step, once; on the host, narrowed and checked.

        Ends the step in mode "per-layer", unless `end` has done so.
        """
        if self._open:
            if self.mode == "deferred":
                raise StepError("the step is open: in mode deferred every TP rank ends it in prepare_output")
            self.end(num_tokens)
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            raise StepError(
                "there is no step to read: nothing was captured since the last one, or this is not TP rank 0"
            )
        if snapshot.shape[0] != num_tokens:
            raise StepError(f"{num_tokens} rows are asked for, of a step that ended with {snapshot.shape[0]}")
        return Handle(snapshot) if self.hands_over else snapshot.tensor()

    def _enter(self, context: Any) -> None:  # noqa: ANN401 - vLLM's ForwardContext
        """Open a step for a forward context that is new; within a scheduled step, go on with it."""
        now = self._counted(context)
        if self._open and self._real:
            if now != self._now:
                raise StepError(
                    f"a forward pass with counts {now.counts} inside a step with {self._now.counts}: "
                    "passes of one step on different rows are not supported"
                )
        else:
            self._settle()
            self._capturer.begin_step(self._step(now, 0))
            self._now, self._open = now, True
            self._captured.clear()
            self._recording = self._on_gpu and torch.cuda.is_current_stream_capturing()
        self._context = weakref.ref(context)

    def _check_layers(self) -> None:
        """Refuse a step in which layers are missing: they would be published as if they held expert 0."""
        missing = self._layers - self._captured
        if missing:
            raise StepError(
                f"layers {sorted(missing)} were not captured in this step, and were in an earlier pass"
            )
        self._layers |= self._captured

    def _settle(self) -> None:
        """Keep what a graph recorded; leave any other open step to be dropped."""
        recorded = self._open and self._recording
        if self._open:
            self._layers |= self._captured
        self._open = self._recording = False
        self._context = None
        if recorded and self._now.counts is not None:
            self._capturer.end_recording()
            self._recorded[self._now.counts] = self._now

    def _replay(self, real: int, padded: int | None) -> None:
        """Open the step of a graph that ran without Python: DP ranks that run graphs are padded alike."""
        counts = () if padded is None else (padded,) * self._dp
        if counts not in self._recorded:
            raise StepError(
                f"nothing was captured in this step, and no graph was recorded with counts {counts}"
            )
        self._capturer.begin_step(self._step(self._recorded[counts], real), replayed=True)

    def _step(self, now: Counted, real: int) -> StepContext:
        others = now.counts or (0,) * self._dp
        reals = (*others[: self.dp_rank], real, *others[self.dp_rank + 1 :])
        return StepContext(counts=now.counts, real=reals, shard_sizes=now.shard_sizes)

    def _counted(self, context: Any) -> Counted:  # noqa: ANN401 - vLLM's ForwardContext
        """Read counts and shard sizes from where vLLM keeps them (LAY-07); never from a padding mask."""
        metadata, descriptor = context.dp_metadata, context.batch_descriptor
        if metadata is not None:
            counts = tuple(int(count) for count in metadata.num_tokens_across_dp_cpu.tolist())
            sizes = metadata.local_sizes
            if sizes is None:  # set around some layers only; these are what it is set to
                sizes = [-(-count // self.tp_size) for count in counts for _ in range(self.tp_size)]
            return Counted(counts, tuple(int(size) for size in sizes))
        tokens = getattr(context, TOKENS, None) if descriptor is None else descriptor.num_tokens
        if tokens is None or self._dp > 1:
            if self._real:
                raise LayoutError(f"vLLM gives no token counts for this forward pass at {self._dp} DP ranks")
            return Counted(None, None)
        return Counted((int(tokens),), None)
