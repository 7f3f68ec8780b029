"""What the host knows of a step, worked out once from its descriptor and kept."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

import torch
from routeproof_spec import CaptureConfig, Layout, LayoutError, Rank, StepContext

from routeproof_impl.figures import Figures, figures_of
from routeproof_impl.layout import Plan

KEPT: Final = 256
"""Descriptors kept beside those of recorded graphs."""


class Part(NamedTuple):
    """A microbatch, or the whole step where there are none."""

    offset: int
    figures: Figures


@dataclass(slots=True, eq=False)
class Call:
    """How rows of one shape, type and microbatch get from a layer into the storage."""

    plan: Plan
    offset: int
    rows: int
    """Rows written: own rows, or a shard that the end of the step will gather."""
    deferred: bool
    """Whether they are such a shard."""
    direct: bool
    """Whether one copy of the ids as they are does it."""
    scratch: torch.Tensor | None
    """Where ids of 64 bits are clamped."""
    targets: dict[int, torch.Tensor] = field(default_factory=dict)
    """Views of the storage by layer."""


Calls = dict[tuple[Hashable, ...], Call]
Captured = dict[tuple[int, int], Call]
"""Calls of a step by (layer, microbatch)."""


class Summary:
    """What follows from the calls of a step, all of them; kept for the next step with the same calls."""

    __slots__ = ("_digest_on_device", "captured", "digest", "layers", "least", "mixed", "waiting")

    def __init__(self, captured: Captured, parts: int) -> None:
        """Sum up `captured`, of a step with so many (micro)batches."""
        self.captured = captured
        self.layers = frozenset(layer for layer, _ in captured)
        self.waiting = {part: call for (_, part), call in captured.items() if call.deferred}
        """By number: the (micro)batches with layers whose shards wait for the gather."""
        self.mixed = any(call.rows and not call.deferred for call in captured.values())
        """Whether some calls handed over whole rows."""
        self.least = min((call.plan.length for call in captured.values()), default=None)
        """Fewest own rows of a call."""
        marks = bytearray(parts * (1 + max(self.layers, default=0)))
        for (layer, part), call in captured.items():
            marks[layer * parts + part] = 1 + call.deferred
        self.digest = crc32(marks) & 0x7FFF_FFFF
        """Which layers were captured and which of them wait: alike on all ranks of the group."""
        self._digest_on_device: torch.Tensor | None = None

    def digest_on(self, device: torch.device) -> torch.Tensor:
        """Give the digest on a device, without a copy from the host."""
        if self._digest_on_device is None:
            with torch.inference_mode(mode=False):
                self._digest_on_device = torch.full((), self.digest, dtype=torch.int32, device=device)
        return self._digest_on_device

    def waiting_layers(self, part: int) -> list[int]:
        """List the layers of a (micro)batch that handed over shards."""
        return sorted(layer for (layer, at), call in self.captured.items() if at == part and call.deferred)


@dataclass(slots=True, eq=False)
class Descriptor:
    """What follows from a step's counts, shard sizes, offsets and declaration; its real rows aside."""

    parts: tuple[Part, ...]
    declared: Layout | None
    needed: int
    """Rows of the buffer."""
    calls: Calls = field(default_factory=dict)
    recorded: Captured | None = None
    """What a recorded graph does when it is replayed."""
    summary: Summary | None = None
    """Of the last step."""

    def summed_up(self, captured: Captured) -> Summary:
        """Sum up the calls of a step; found again if they are those of the last one."""
        if self.summary is None or self.summary.captured != captured:
            self.summary = Summary(captured, len(self.parts))
        return self.summary


class Plans:
    """Descriptors by what they are made from: the latest ones, and all that have a recording."""

    def __init__(self, config: CaptureConfig, rank: Rank) -> None:
        """Keep none yet."""
        self._rank = rank
        self._limit = config.max_tokens
        self._kept: dict[Hashable, Descriptor] = {}

    def of(self, step: StepContext) -> Descriptor:
        """Find or make the descriptor of a step; raise LayoutError for another number of DP ranks."""
        parts = tuple((part.offset, part.counts, part.shard_sizes) for part in step.microbatches)
        key = (len(step.real), step.counts, step.shard_sizes, step.declared, parts)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._make(step)
            if len(self._kept) >= KEPT:
                self._forget()
        self._kept[key] = found
        return found

    def clear(self) -> None:
        """Forget all of them, and with them their views of the storage."""
        self._kept.clear()

    def _forget(self) -> None:
        """Drop the one that was not used for the longest time."""
        oldest = next((key for key, known in self._kept.items() if known.recorded is None), None)
        self._kept.pop(oldest, None)

    def _make(self, step: StepContext) -> Descriptor:
        rank = self._rank
        ranks = {len(step.real)} if step.counts is None else {len(step.real), len(step.counts)}
        if ranks != {rank.topology.dp}:
            raise LayoutError(
                f"the step has counts of {max(ranks)} DP ranks, the topology has {rank.topology.dp}"
            )
        if step.microbatches:
            parts = tuple(
                Part(part.offset, figures_of(part.counts, part.shard_sizes, rank))
                for part in step.microbatches
            )
        else:
            parts = (Part(0, figures_of(step.counts, step.shard_sizes, rank)),)
        own = 0 if step.counts is None else step.counts[rank.dp]
        needed = max(own, *(part.offset + part.figures.own for part in parts))
        return Descriptor(parts, step.declared, needed)
