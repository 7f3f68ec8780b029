"""What a capturer is told about one step."""

from itertools import pairwise
from typing import Self

from pydantic import Field, NonNegativeInt, model_validator

from routeproof_spec.base import Model
from routeproof_spec.layout import Layout

Counts = tuple[NonNegativeInt, ...]


def _check_real(counts: Counts, real: Counts, where: str) -> None:
    if len(counts) != len(real) or any(r > c for r, c in zip(real, counts, strict=True)):
        msg = f"{where}: real {real} does not fit counts {counts}: one per DP rank, real <= count"
        raise ValueError(msg)


class Microbatch(Model):
    """A part of a step whose rows go to [offset, offset + T_d) of the buffer (BUF-05)."""

    offset: int = Field(ge=0, description="first buffer row, the same on every rank")
    counts: Counts = Field(description="T per DP rank: physical tokens of this microbatch")
    real: Counts = Field(description="R per DP rank: real tokens, a prefix of the counts")
    shard_sizes: tuple[int, ...] | None = Field(
        default=None, description="rows of every gathered shard, DP-major, TP-minor"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_real(self.counts, self.real, "microbatch")
        return self


class StepContext(Model):
    """The counts of one forward pass, as the engine knows them on the host.

    Counts are physical: after graph and DP padding, before sequence-parallel
    sharding (LAY-11). With microbatches, `counts` is the extent of the whole step
    and `real` the sum over them.
    """

    counts: Counts | None = Field(description="T per DP rank; None: unknown (UNCOUNTED)")
    real: Counts = Field(description="R per DP rank: how many rows are published")
    shard_sizes: tuple[int, ...] | None = Field(
        default=None, description="rows of every gathered shard, DP-major, TP-minor"
    )
    microbatches: tuple[Microbatch, ...] = ()
    declared: Layout | None = Field(default=None, description="what the producer says it emits (LAY-10)")
    padding_mask: tuple[bool, ...] | None = Field(
        default=None, description="this rank's mask; may itself be a shard, never a count (LAY-07)"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.counts is not None:
            _check_real(self.counts, self.real, "step")
        if self.microbatches:
            self._check_microbatches(self.microbatches)
        return self

    def _check_microbatches(self, parts: tuple[Microbatch, ...]) -> None:
        if self.counts is None:
            msg = "a step with microbatches needs counts"
            raise ValueError(msg)
        if any(len(part.counts) != len(self.counts) for part in parts):
            msg = f"microbatches name other DP ranks than the step, which has {len(self.counts)}"
            raise ValueError(msg)
        for before, after in pairwise(parts):
            if after.offset < before.offset + max(before.counts):
                msg = f"microbatch at {after.offset} overlaps the one at {before.offset} (BUF-05)"
                raise ValueError(msg)
        for dp, extent in enumerate(self.counts):
            last = parts[-1]
            if last.offset + last.counts[dp] > extent:
                msg = f"microbatches reach past the {extent} rows of DP rank {dp}"
                raise ValueError(msg)
            if sum(part.real[dp] for part in parts) != self.real[dp]:
                msg = f"microbatches of DP rank {dp} do not add up to {self.real[dp]} real tokens"
                raise ValueError(msg)

    def spans(self, dp: int) -> tuple[tuple[int, int], ...]:
        """Give the buffer ranges [start, stop) whose concatenation DP rank `dp` publishes."""
        if not self.microbatches:
            return ((0, self.real[dp]),)
        return tuple((part.offset, part.offset + part.real[dp]) for part in self.microbatches)

    @property
    def staged(self) -> bool:
        """Whether the published rows are no prefix of the buffer on some DP rank."""
        return any(
            after[0] != before[1] and after[1] > after[0]
            for dp in range(len(self.real))
            for before, after in pairwise(self.spans(dp))
        )
