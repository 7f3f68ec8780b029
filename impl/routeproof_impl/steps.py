"""The step that is open: what its calls did, and what follows for its end. Host work only."""

from dataclasses import dataclass, field

from routeproof_spec import LayoutError, Rank, StepContext, StepError

from routeproof_impl.exchange import Block
from routeproof_impl.plans import Captured, Descriptor, Summary


@dataclass(slots=True, eq=False)
class OpenStep:
    """A step of one rank."""

    context: StepContext
    descriptor: Descriptor
    captured: Captured = field(default_factory=dict)
    rejected: str | None = None
    """The first error of a capture call: such a step publishes nothing."""

    def settle(self, real: int, rank: Rank, limit: int) -> None:
        """Set R of this DP rank; raise ValueError beside microbatches, or if R is above T or `limit`."""
        counts = self.context.counts
        most = limit if counts is None else counts[rank.dp]
        if self.context.microbatches or not 0 <= real <= most:
            where = "a step with microbatches" if self.context.microbatches else f"at most {most} rows"
            raise ValueError(f"{real} real rows on {rank}, given at the end of {where}")
        known = (*self.context.real[: rank.dp], real, *self.context.real[rank.dp + 1 :])
        self.context = self.context.model_copy(update={"real": known})

    def whole(self, rank: Rank) -> Summary:
        """Sum up the calls; refuse a step that cannot be published, from what all ranks know alike.

        Raise StepError for a rejected call, or a layer captured for some of the microbatches
        only; LayoutError if, without counts, a layer got fewer rows than are to be published.
        """
        if self.rejected is not None:
            raise StepError(f"a call of this step was rejected ({self.rejected}): nothing is published")
        summary = self.descriptor.summed_up(self.captured)
        parts = len(self.descriptor.parts)
        if len(self.captured) != len(summary.layers) * parts:
            wanted = [(layer, part) for layer in sorted(summary.layers) for part in range(parts)]
            missing = [item for item in wanted if item not in self.captured]
            raise StepError(f"not captured, though other microbatches were: (layer, microbatch) {missing}")
        if self.context.counts is None and summary.least is not None:
            real = self.context.real[rank.dp]
            if real > summary.least:
                raise LayoutError(f"{real} rows to publish, of which a layer got {summary.least} only")
        return summary

    def blocks(self, rank: Rank, summary: Summary) -> tuple[Block, ...]:
        """List the (micro)batches of which layers handed over shards that wait for the gather."""
        waiting = summary.waiting
        real = [part.real[rank.dp] for part in self.context.microbatches] or [self.context.real[rank.dp]]
        return tuple(
            Block(part, waiting[part].offset, waiting[part].rows, waiting[part].plan.length, real[part])
            for part in sorted(waiting)
        )
