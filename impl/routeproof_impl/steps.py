"""The step that is open: what its calls did, and what follows for its end. Host work only."""

from dataclasses import dataclass, field
from zlib import crc32

from routeproof_spec import LayoutError, Rank, StepContext, StepError

from routeproof_impl.packing import Block
from routeproof_impl.plans import Captured, Descriptor


@dataclass(slots=True, eq=False)
class OpenStep:
    """A step of one rank."""

    context: StepContext
    descriptor: Descriptor
    captured: Captured = field(default_factory=dict)
    rejected: str | None = None
    """The first error of a capture call: such a step publishes nothing."""

    def check_whole(self, rank: Rank) -> None:
        """Refuse a step that cannot be published, from what all ranks of the group know alike.

        Raise StepError for a rejected call, or a layer captured for some of the microbatches
        only; LayoutError if, without counts, a layer got fewer rows than are to be published.
        """
        if self.rejected is not None:
            raise StepError(f"a call of this step was rejected ({self.rejected}): nothing is published")
        parts = len(self.descriptor.parts)
        if parts > 1:
            layers = sorted({layer for layer, _ in self.captured})
            wanted = [(layer, part) for layer in layers for part in range(parts)]
            missing = [item for item in wanted if item not in self.captured]
            if missing:
                raise StepError(
                    f"not captured, though other microbatches were: (layer, microbatch) {missing}"
                )
        if self.context.counts is None and self.captured:
            real = self.context.real[rank.dp]
            least = min(call.plan.length for call in self.captured.values())
            if real > least:
                raise LayoutError(f"{real} rows to publish, of which a layer got {least} only")

    def blocks(self, rank: Rank) -> tuple[Block, ...]:
        """List the (micro)batches of which layers handed over shards that wait for the gather."""
        waiting = {part: call for (_, part), call in self.captured.items() if call.deferred}
        real = [part.real[rank.dp] for part in self.context.microbatches] or [self.context.real[rank.dp]]
        return tuple(
            Block(part, waiting[part].offset, waiting[part].rows, waiting[part].plan.length, real[part])
            for part in sorted(waiting)
        )

    def waiting_layers(self, part: int) -> list[int]:
        """List the layers of a (micro)batch that handed over shards."""
        return sorted(layer for (layer, at), call in self.captured.items() if at == part and call.deferred)

    @property
    def mixed(self) -> bool:
        """Whether some calls handed over whole rows, beside others that handed over shards."""
        return any(call.rows and not call.deferred for call in self.captured.values())

    def digest(self) -> int:
        """Sum up which layers were captured and which of them wait: alike on all ranks of the group."""
        parts = len(self.descriptor.parts)
        marks = bytearray(parts * (1 + max((layer for layer, _ in self.captured), default=0)))
        for (layer, part), call in self.captured.items():
            marks[layer * parts + part] = 1 + call.deferred
        return crc32(marks) & 0x7FFF_FFFF
