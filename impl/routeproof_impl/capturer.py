"""The capturer of one rank."""

from dataclasses import dataclass, field

import torch
from routeproof_spec import (
    CapacityError,
    CaptureConfig,
    LayerIndexError,
    LayoutError,
    Rank,
    StepContext,
    StepError,
    WidthError,
)

from routeproof_impl.communicator import Communicator
from routeproof_impl.figures import Figures, decide, figures_of
from routeproof_impl.layout import Plan
from routeproof_impl.snapshot import Snapshot, element_type, take

_NARROW = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16})
_UNSIGNED = frozenset({torch.uint32, torch.uint64})
_ROOMY = frozenset({torch.int32, torch.int64})
_INTEGERS = _NARROW | _UNSIGNED | _ROOMY
_MOVED_AS_IS = _ROOMY | {torch.uint8, torch.int8}
_SHORT_MARK = 32_766


@dataclass
class _Part:
    """A microbatch, or the whole step where there are none."""

    offset: int
    figures: Figures


@dataclass
class _OpenStep:
    """What the host knows about the step that is open."""

    context: StepContext
    parts: tuple[_Part, ...]
    captured: dict[tuple[int, int], int] = field(default_factory=dict)
    """Rows written, by (layer, microbatch)."""
    rejected: str | None = None
    """The first error of a capture call: such a step publishes nothing."""


class RoutedExpertsCapturer:
    """Records the expert ids that a router chose, for every token and captured layer of a step.

    Calls on every rank of a TP group, in this order: `begin_step`, `capture` once per layer and
    microbatch, `end_step`; then `snapshot` gives the rows at the publisher, TP rank 0. All
    checks of a call come before its first collective and its first write (COL-05), so that a
    rejected call leaves the buffer as it was (BUF-02); its step publishes nothing, and the next
    `begin_step` starts afresh. `capture` and `end_step` only queue device work (COL-07).

    Ids are stored clamped to [-1, E]: -1 and E are marks that stay outside [0, E) in the
    storage's type, whatever the type of the ids was (IDS-02).
    """

    def __init__(
        self, config: CaptureConfig, rank: Rank, comm: Communicator, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate the buffer, [max_tokens, L, K] in int16 (int32 for E > 32,766), filled with 0.

        Raise ExpertIdError for E > 65,536 (SNP-02) and ValueError for a communicator of another
        group than the TP group of `rank`.
        """
        element_type(config.experts)
        if (comm.rank, comm.size) != (rank.tp, rank.topology.tp):
            raise ValueError(
                f"communicator is rank {comm.rank} of {comm.size}, expected {rank.tp} of {rank.topology.tp}"
            )
        self._config = config
        self._rank = rank
        self._comm = comm
        self._layouts = config.layouts_at(rank.topology.dp)
        self._step: _OpenStep | None = None
        self._snapshot: Snapshot | None = None
        with torch.inference_mode(mode=False):
            self._storage: torch.Tensor | None = torch.zeros(
                (config.max_tokens, config.layers, config.top_k),
                dtype=torch.int16 if config.experts <= _SHORT_MARK else torch.int32,
                device=device,
            )

    def begin_step(self, step: StepContext) -> None:
        """Open a step; one that is still open is dropped and publishes nothing.

        Raise LayoutError for counts of another number of DP ranks, CapacityError for more rows
        than the buffer has (BUF-04): T of this DP rank, a microbatch's offset + T, or R where no
        counts are known. StepError after `close`.
        """
        self._open_storage()
        if self._step is not None:
            self._step, self._snapshot = None, None
        try:
            self._step = self._checked(step)
        except Exception:
            self._snapshot = None
            raise

    def capture(self, layer: int, ids: torch.Tensor, microbatch: int = 0) -> None:
        """Record the ids of one layer: integers [n, K (+ shared columns)] on the capturer's device.

        What n means follows from the step's counts or its declaration. Shared columns, after
        the K routed ones, are dropped. Layers may come in any order; a layer captured twice
        holds the later rows. One gather over the TP group where n is a shard and T > 1, none
        otherwise (COL-02, COL-03); nothing at all where T = 0 (LAY-12).

        Raise, judged in this order: StepError (no step open), LayerIndexError (BUF-03),
        StepError (no such microbatch), WidthError (no 2-D integers of that width, or another
        device; BUF-09), LayoutError (LAY-01, LAY-06, LAY-10), ShardGroupError (LAY-08),
        CapacityError (more rows than the buffer has, where no counts are known; BUF-04).
        """
        storage = self._open_storage()
        step = self._open_step("capture")
        try:
            self._capture(storage, step, layer, ids, microbatch)
        except Exception as error:
            self._snapshot = None
            step.rejected = step.rejected or str(error)
            raise

    def end_step(self) -> None:
        """Close the step and, at the publisher, take its snapshot; every rank calls it.

        Raise StepError if no step is open, if one of its calls was rejected, or if a layer was
        captured for some of the microbatches only; LayoutError if, without counts, a layer got
        fewer rows than are to be published. Nothing is published then. A step in which nothing
        was captured publishes the fill.
        """
        storage = self._open_storage()
        step = self._open_step("end_step")
        self._step, self._snapshot = None, None
        if step.rejected is not None:
            raise StepError(f"a call of this step was rejected ({step.rejected}): nothing is published")
        layers = {layer for layer, _ in step.captured}
        missing = [
            (layer, part)
            for layer in sorted(layers)
            for part in range(len(step.parts))
            if (layer, part) not in step.captured
        ]
        if missing:
            raise StepError(f"not captured, though other microbatches were: (layer, microbatch) {missing}")
        real = step.context.real[self._rank.dp]
        if step.context.counts is None and real > min(step.captured.values(), default=real):
            raise LayoutError(
                f"{real} rows to publish, of which a layer got {min(step.captured.values())} only"
            )
        if self._rank.publishes:
            self._snapshot = take(storage, step.context.spans(self._rank.dp), layers, self._config.experts)

    def snapshot(self) -> Snapshot | None:
        """Give what the last ended step published.

        None on a rank that does not publish (SNP-04), before the first step, and where the
        last step was rejected or dropped.
        """
        self._open_storage()
        return self._snapshot

    @property
    def buffer(self) -> torch.Tensor:
        """The storage itself, [max_tokens, L, K]; ids out of range are the marks -1 and E."""
        return self._open_storage()

    def close(self) -> None:
        """Release the buffer; every later call but this one raises StepError."""
        self._storage, self._step, self._snapshot = None, None, None

    def _open_storage(self) -> torch.Tensor:
        if self._storage is None:
            raise StepError("the capturer is closed")
        return self._storage

    def _open_step(self, call: str) -> _OpenStep:
        if self._step is None:
            raise StepError(f"{call}: no step is open")
        return self._step

    def _checked(self, step: StepContext) -> _OpenStep:
        """Check a context against topology and capacity, and work out its figures."""
        rank, limit = self._rank, self._config.max_tokens
        ranks = {len(step.real)} if step.counts is None else {len(step.real), len(step.counts)}
        if ranks != {rank.topology.dp}:
            raise LayoutError(
                f"the step has counts of {max(ranks)} DP ranks, the topology has {rank.topology.dp}"
            )
        if step.microbatches:
            parts = tuple(
                _Part(part.offset, figures_of(part.counts, part.shard_sizes, rank))
                for part in step.microbatches
            )
        else:
            parts = (_Part(0, figures_of(step.counts, step.shard_sizes, rank)),)
        needed = step.real[rank.dp] if step.counts is None else step.counts[rank.dp]
        needed = max(needed, *(part.offset + part.figures.own for part in parts))
        if needed > limit:
            raise CapacityError(f"the step has {needed} rows on {rank}, the buffer has {limit}")
        return _OpenStep(step, parts)

    def _capture(
        self, storage: torch.Tensor, step: _OpenStep, layer: int, ids: torch.Tensor, microbatch: int
    ) -> None:
        """Do all checks, then gather if needed, then write."""
        if not _is_index(layer, self._config.layers):
            raise LayerIndexError(f"layer {layer!r} is outside [0, {self._config.layers})")
        if not _is_index(microbatch, len(step.parts)):
            raise StepError(f"microbatch {microbatch!r} is outside [0, {len(step.parts)})")
        part = step.parts[microbatch]
        plan = self._judged(storage, step, part, ids, layer)
        if plan.length:
            rows = ids.narrow(1, 0, self._config.top_k)
            if plan.gather:
                rows = self._gathered(rows)
            rows = _roomy(rows.narrow(0, plan.start, plan.length))
            target = storage.narrow(0, part.offset, plan.length).select(1, layer)
            target.copy_(rows.clamp(-1, self._config.experts))
        step.captured[layer, microbatch] = plan.length

    def _gathered(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather shards [s, K] over the TP group into [tp * s, K], in TP-rank order (LAY-03)."""
        gathered = self._comm.all_gather(_movable(rows))
        expected = (rows.shape[0] * self._rank.topology.tp, rows.shape[1])
        if tuple(gathered.shape) != expected:
            raise RuntimeError(f"the communicator gathered {tuple(gathered.shape)}, expected {expected}")
        return gathered

    def _judged(
        self, storage: torch.Tensor, step: _OpenStep, part: _Part, ids: torch.Tensor, layer: int
    ) -> Plan:
        """Check the ids tensor and decide its layout, from its shape alone."""
        where = f"layer {layer} on {self._rank}"
        if not isinstance(ids, torch.Tensor):
            raise TypeError(f"{where}: ids is a {type(ids).__name__}, not a tensor")
        width = self._config.width
        if tuple(ids.shape[1:]) != (width,) or ids.dtype not in _INTEGERS:
            raise WidthError(f"{where}: ids {ids.dtype} {tuple(ids.shape)}, expected integers (n, {width})")
        if ids.device != storage.device:
            raise WidthError(f"{where}: ids are on {ids.device}, the buffer is on {storage.device}")
        try:
            plan = decide(ids.shape[0], part.figures, step.context.declared, self._layouts)
        except ValueError as error:
            raise type(error)(f"{where}: {error}") from None
        if plan.length > storage.shape[0]:
            raise CapacityError(f"{where}: {plan.length} rows, the buffer has {storage.shape[0]}")
        return plan


def _is_index(value: object, stop: int) -> bool:
    """Whether `value` is a true int (a bool is none, a tensor would be read) in [0, stop)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop


def _movable(rows: torch.Tensor) -> torch.Tensor:
    """Make rows contiguous, in a type that every backend moves and that holds all their values (COL-06)."""
    return (rows if rows.dtype in _MOVED_AS_IS else _roomy(rows)).contiguous()


def _roomy(rows: torch.Tensor) -> torch.Tensor:
    """Widen to int32 or int64, which hold -1 and E; a uint64 beyond int64 turns negative, no valid id."""
    if rows.dtype in _ROOMY:
        return rows
    return rows.to(torch.int32 if rows.dtype in _NARROW else torch.int64)
