"""The capturer of one rank."""

from typing import Literal, get_args

import torch
from routeproof_spec import (
    CapacityError,
    CaptureConfig,
    LayerIndexError,
    Rank,
    StepContext,
    StepError,
    WidthError,
)

from routeproof_impl.communicator import Communicator
from routeproof_impl.exchange import Received
from routeproof_impl.figures import decide
from routeproof_impl.packing import Packer
from routeproof_impl.plans import Call, Part, Plans
from routeproof_impl.publishing import Publisher
from routeproof_impl.snapshot import Snapshot, element_type
from routeproof_impl.steps import OpenStep

Mode = Literal["deferred", "per-layer"]

_STEPS = 2**31
"""Steps until their numbers start anew."""

_WIDE = frozenset({torch.int64, torch.uint64})
_PLAIN = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32})
_MOVED_AS_IS = frozenset({torch.int32, torch.int64, torch.uint8, torch.int8})


class RoutedExpertsCapturer:
    """Records the expert ids that a router chose, for every token and captured layer of a step.

    Calls on every rank of a TP group, in this order: `begin_step`, `capture` once per layer and
    microbatch, `end_step`; then `snapshot` gives the rows at the publisher, TP rank 0. Steps are
    counted by `begin_step`, and rows of another number are refused (COL-01). All
    checks of a call come before its first collective and its first write (COL-05), so that a
    rejected call leaves the buffer as it was (BUF-02); its step publishes nothing, and the next
    `begin_step` starts afresh. `capture` and `end_step` only queue device work (COL-07).

    Modes. "deferred": a layer's call is one copy; where layers handed over shards, `end_step`
    moves all of them to the publisher in one gather, in the published element type (COL-04).
    "per-layer": a layer's call gathers its shards to every rank at once, for an engine that
    needs own rows inside the step.

    CUDA graphs: `begin_step`, the calls under capture, `end_recording`; for each replay
    `begin_step(step, replayed=True)`, the replay, `end_step`.
    """

    def __init__(
        self,
        config: CaptureConfig,
        rank: Rank,
        comm: Communicator,
        device: torch.device | str = "cpu",
        *,
        mode: Mode = "deferred",
        snapshots: int = 8,
    ) -> None:
        """Allocate all that steps without microbatches need.

        Args:
            config: sizes; the buffer is [max_tokens, L, K] in int32, filled with 0.
            rank: which rank this is.
            comm: its TP group.
            device: where the ids tensors are.
            mode: when shards are gathered.
            snapshots: how many may be in flight before `end_step` refuses to make another.

        Raise ExpertIdError for E > 65,536 (SNP-02) and ValueError for a communicator of another
        group than the TP group of `rank`, another mode, or no snapshots.

        """
        dtype = element_type(config.experts)
        if (comm.rank, comm.size) != (rank.tp, rank.topology.tp):
            raise ValueError(
                f"communicator is rank {comm.rank} of {comm.size}, expected {rank.tp} of {rank.topology.tp}"
            )
        if mode not in get_args(Mode) or snapshots < 1:
            raise ValueError(f"mode {mode!r}, {snapshots} snapshots: expected {get_args(Mode)}, at least 1")
        self._config = config
        self._rank = rank
        self._comm = comm
        self._deferred = mode == "deferred"
        self._layouts = config.layouts_at(rank.topology.dp)
        self._plans = Plans(config, rank)
        self._step: OpenStep | None = None
        self._snapshot: Snapshot | None = None
        self._received: Received | None = None
        self._written: set[int] = set()
        self._begun = 0
        self._scratch: torch.Tensor | None = None
        shape = (config.max_tokens, config.layers, config.top_k)
        with torch.inference_mode(mode=False):
            storage = torch.zeros(shape, dtype=torch.int32, device=device)
            self._storage: torch.Tensor | None = storage
            self._packer = Packer(config, rank, comm, dtype, storage.device)
            self._publisher: Publisher | None = None
            if rank.publishes:
                self._publisher = Publisher(config, rank, self._packer, storage.device, snapshots)

    def begin_step(self, step: StepContext, *, replayed: bool = False) -> None:
        """Open a step; one that is still open is dropped and publishes nothing.

        `replayed`: its layer calls are those of the graph recorded with the same counts, shard
        sizes, microbatches and declaration; other calls may be added.

        Raise LayoutError for counts of another number of DP ranks, CapacityError for more rows
        than the buffer has (BUF-04): T of this DP rank, a microbatch's offset + T, or R where no
        counts are known. StepError after `close`, and for a replay of what was not recorded.
        """
        self._open_storage()
        self._received = None
        self._begun = (self._begun + 1) % _STEPS
        if self._step is not None:
            self._drop(self._step)
        try:
            opened = self._opened(step, replayed=replayed)
        except Exception:
            self._snapshot = None
            raise
        self._step = opened

    def capture(self, layer: int, ids: torch.Tensor, microbatch: int = 0) -> None:
        """Record the ids of one layer: integers [n, K (+ shared columns)] on the capturer's device.

        What n means follows from the step's counts or its declaration. Shared columns, after
        the K routed ones, are dropped. Layers may come in any order; a layer captured twice
        holds the later rows. Nothing at all happens where T = 0 (LAY-12).

        Raise, judged in this order: StepError (no step open), LayerIndexError (BUF-03),
        StepError (no such microbatch), WidthError (no 2-D integers of that width, or another
        device; BUF-09), LayoutError (LAY-01, LAY-06, LAY-10), ShardGroupError (LAY-08),
        CapacityError (more rows than the buffer has, where no counts are known; BUF-04).
        """
        step = self._step
        if step is not None and type(layer) is int and type(microbatch) is int:
            try:
                call = step.descriptor.calls[ids.shape, ids.dtype, ids.device, microbatch]
                target = call.targets[layer]
            except (KeyError, AttributeError, TypeError):
                pass
            else:
                if call.direct:
                    target.copy_(ids)
                else:
                    self._write_known(step, call, target, ids)
                step.captured[layer, microbatch] = call
                return
        self._capture_new(layer, ids, microbatch)

    def end_step(self, *, real: int | None = None) -> None:
        """Close the step and, at the publisher, take its snapshot; every rank calls it.

        One gather to the publisher where a layer's shards wait for it, else no collective.
        `real`: R of this DP rank, from an engine that learns it only now; the same on every TP rank.

        Raise ValueError for an R that does not fit the counts, or beside microbatches; StepError
        if no step is open, if one of its calls was rejected, or if a layer was captured for some
        of the microbatches only; LayoutError if, without counts, a layer got fewer rows than are
        to be published. Nothing is published then, and no collective issued.
        CapacityError at the publisher if too many snapshots are in flight, after the collective,
        in which the other ranks wait for it. A step in which nothing was captured publishes the
        fill.
        """
        storage = self._open_storage()
        step = self._close_step("end_step")
        if real is not None:
            step.settle(real, self._rank, storage.shape[0])
        summary = step.whole(self._rank)
        publisher, blocks = self._publisher, step.blocks(self._rank, summary)
        if blocks or (publisher is not None and step.context.real[self._rank.dp] > 0):
            self._blank(storage, summary.layers)
        if publisher is not None:
            publisher.before_reuse()
        digest = summary.digest_on(storage.device)
        received = self._packer.gather(storage, blocks, digest, self._begun) if blocks else None
        if publisher is None:
            return
        if received is not None and summary.mixed:
            layers = [summary.waiting_layers(block.part) for block in blocks]
            self._packer.restore(storage, received, layers)
            received = None
        self._received = received
        self._snapshot = publisher.publish(storage, step, received, digest)

    def end_recording(self) -> None:
        """Close a step whose layer calls a graph has captured; it publishes nothing.

        What the calls did is kept with the step's descriptor, for its replays. Raise StepError
        as `end_step` does.
        """
        self._open_storage()
        step = self._close_step("end_recording")
        step.whole(self._rank)
        step.descriptor.recorded = dict(step.captured)

    def snapshot(self) -> Snapshot | None:
        """Give what the last ended step published.

        None on a rank that does not publish (SNP-04), before the first step, and where the
        last step was rejected or dropped.
        """
        self._open_storage()
        return self._snapshot

    @property
    def buffer(self) -> torch.Tensor:
        """The storage itself, [max_tokens, L, K].

        Between `end_step` and the next `begin_step` it holds the own rows: on every rank, or, of
        shards gathered in mode "deferred", at the publisher alone, where reading this property
        puts them there. Rows from R to T are not checked for ids out of range.
        """
        storage = self._open_storage()
        if self._received is not None:
            self._packer.restore(storage, self._received)
            self._received = None
        return storage

    @property
    def device_bytes(self) -> int:
        """Device memory that the capturer holds."""
        storage = self._open_storage()
        scratch = 0 if self._scratch is None else self._scratch.nbytes
        return storage.nbytes + self._packer.nbytes + scratch

    def close(self) -> None:
        """Release the buffer; every later call but this one raises StepError."""
        self._storage, self._step, self._snapshot, self._received = None, None, None, None
        self._publisher, self._scratch = None, None
        self._plans.clear()
        self._packer.clear()

    def _open_storage(self) -> torch.Tensor:
        if self._storage is None:
            raise StepError("the capturer is closed")
        return self._storage

    def _open_step(self, call: str) -> OpenStep:
        if self._step is None:
            raise StepError(f"{call}: no step is open")
        return self._step

    def _close_step(self, call: str) -> OpenStep:
        step = self._open_step(call)
        self._drop(step)
        return step

    def _drop(self, step: OpenStep) -> None:
        self._written.update([layer for layer, _ in step.captured])
        self._step, self._snapshot = None, None

    def _opened(self, step: StepContext, *, replayed: bool) -> OpenStep:
        """Find the descriptor and check what is no part of it."""
        descriptor = self._plans.of(step)
        needed = descriptor.needed
        if step.counts is None:
            needed = max(needed, step.real[self._rank.dp])
        if needed > self._config.max_tokens:
            raise CapacityError(
                f"the step has {needed} rows on {self._rank}, the buffer has {self._config.max_tokens}"
            )
        if replayed and descriptor.recorded is None:
            raise StepError(f"no graph was recorded with counts {step.counts}, and the same shards")
        return OpenStep(step, descriptor, dict(descriptor.recorded or {}) if replayed else {})

    def _blank(self, storage: torch.Tensor, captured: frozenset[int]) -> None:
        """Fill layers that hold rows of an earlier step and were not captured in this one (BUF-08)."""
        stale = self._written - captured
        for layer in stale:
            storage.select(1, layer).zero_()
        self._written -= stale

    # --- a layer's call

    def _capture_new(self, layer: int, ids: torch.Tensor, microbatch: int) -> None:
        """Do a call that is wrong, or of a shape or layer that the descriptor does not know yet."""
        storage = self._open_storage()
        step = self._open_step("capture")
        try:
            part = self._judged(step, layer, ids, microbatch)
            key = (ids.shape, ids.dtype, ids.device, microbatch)
            call = step.descriptor.calls.get(key)
            if call is None:
                call = self._planned(storage, step, part, layer, ids)
                step.descriptor.calls[key] = call
            with torch.inference_mode(mode=False):
                target = storage.narrow(0, part.offset, call.rows).select(1, layer)
            self._write(call, target, ids)
            call.targets[layer] = target
            step.captured[layer, microbatch] = call
        except Exception as error:
            self._reject(step, error)
            raise

    def _write_known(self, step: OpenStep, call: Call, target: torch.Tensor, ids: torch.Tensor) -> None:
        try:
            self._write(call, target, ids)
        except Exception as error:
            self._reject(step, error)
            raise

    def _reject(self, step: OpenStep, error: Exception) -> None:
        self._snapshot = None
        step.rejected = step.rejected or str(error)

    def _judged(self, step: OpenStep, layer: int, ids: torch.Tensor, microbatch: int) -> Part:
        """Check the arguments, n aside; nothing of the ids but their form is looked at."""
        parts, where = step.descriptor.parts, f"layer {layer!r} on {self._rank}"
        if not _is_index(layer, self._config.layers):
            raise LayerIndexError(f"{where} is outside [0, {self._config.layers})")
        if not _is_index(microbatch, len(parts)):
            raise StepError(f"{where}: microbatch {microbatch!r} is outside [0, {len(parts)})")
        if not isinstance(ids, torch.Tensor):
            raise TypeError(f"{where}: ids is a {type(ids).__name__}, not a tensor")
        width = self._config.width
        if tuple(ids.shape[1:]) != (width,) or ids.dtype not in _PLAIN | _WIDE:
            raise WidthError(f"{where}: ids {ids.dtype} {tuple(ids.shape)}, expected integers (n, {width})")
        device = self._open_storage().device
        if ids.device != device:
            raise WidthError(f"{where}: ids are on {ids.device}, the buffer is on {device}")
        return parts[microbatch]

    def _planned(
        self, storage: torch.Tensor, step: OpenStep, part: Part, layer: int, ids: torch.Tensor
    ) -> Call:
        """Decide what n means, and from it what a call with such ids does."""
        n = ids.shape[0]
        try:
            plan = decide(n, part.figures, step.descriptor.declared, self._layouts)
        except ValueError as error:
            raise type(error)(f"layer {layer} on {self._rank}: {error}") from None
        if plan.length > storage.shape[0]:
            raise CapacityError(
                f"layer {layer} on {self._rank}: {plan.length} rows, the buffer has {storage.shape[0]}"
            )
        deferred = plan.gather and self._deferred
        rows = n if deferred else plan.length
        wide = ids.dtype in _WIDE
        if wide and self._scratch is None:
            with torch.inference_mode(mode=False):
                self._scratch = storage.new_empty((storage.shape[0], storage.shape[2]), dtype=torch.int64)
        whole = rows == n and rows > 0 and self._config.shared_columns == 0
        scratch = self._scratch.narrow(0, part.offset, rows) if wide and self._scratch is not None else None
        direct = whole and not wide and (deferred or not plan.gather)
        return Call(plan, part.offset, rows, deferred, direct, scratch)

    def _write(self, call: Call, target: torch.Tensor, ids: torch.Tensor) -> None:
        """Write the rows that a call takes of the ids; gathered first in mode "per-layer"."""
        if not call.rows:
            return
        rows = ids
        if self._config.shared_columns:
            rows = rows.narrow(1, 0, self._config.top_k)
        if call.plan.gather and not call.deferred:
            rows = self._gathered(rows)
        if rows.shape[0] != call.rows:
            rows = rows.narrow(0, call.plan.start, call.rows)
        if call.scratch is not None:
            if rows.dtype is torch.int64:
                torch.clamp(rows, -1, self._config.experts, out=call.scratch)
            else:
                call.scratch.copy_(rows)
                call.scratch.clamp_(-1, self._config.experts)
            rows = call.scratch
        target.copy_(rows)

    def _gathered(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather shards [s, K] over the TP group into [tp * s, K], in TP-rank order (LAY-03)."""
        if rows.dtype not in _MOVED_AS_IS:
            rows = rows.to(torch.int64 if rows.dtype in _WIDE | {torch.uint32} else torch.int32)
        gathered = self._comm.all_gather(rows.contiguous())
        expected = (rows.shape[0] * self._rank.topology.tp, rows.shape[1])
        if tuple(gathered.shape) != expected:
            raise RuntimeError(f"the communicator gathered {tuple(gathered.shape)}, expected {expected}")
        return gathered


def _is_index(value: object, stop: int) -> bool:
    """Whether `value` is a true int (a bool is none, a tensor would be read) in [0, stop)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop
