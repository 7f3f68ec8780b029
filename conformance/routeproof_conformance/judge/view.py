"""What a predicate looks at: one case, what is right, and what each rank did."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routeproof_reference import Expectation, Kind, Origin, Producer, StepExpectation
from routeproof_spec import Case, EngineProfile, Failure, Observation, Rank, StepObservation, Verdict

from routeproof_conformance.arrays import unpack

BROKEN = frozenset(
    {"AttributeError", "NameError", "ImportError", "TypeError", "NotImplementedError", "SystemExit"}
)
"""What a broken adapter or stub raises; never a rejection."""

Rows = NDArray[np.int64]


class Outcome(NamedTuple):
    """What a predicate says."""

    verdict: Verdict
    message: str = ""


PASSED = Outcome(Verdict.PASSED)
NOTHING_TO_JUDGE = Outcome(Verdict.SKIPPED, "nothing was published, so no row tells; LAY-02 reports why")


def failed(message: str) -> Outcome:
    """Give a failure."""
    return Outcome(Verdict.FAILED, message)


class WrongRow(NamedTuple):
    """A row that is not what it should be."""

    step: int
    dp: int
    where: str
    """published or buffer"""
    layer: int
    row: int
    expected: Rows | None
    """None: there should be no such row."""
    got: Rows
    origin: Origin | None
    """Whose row it is; None: no rank was ever handed it."""

    def __str__(self) -> str:
        """Say what was expected and what came out."""
        want = "no row" if self.expected is None else str(self.expected.tolist())
        whose = "a row that no rank was handed" if self.origin is None else str(self.origin)
        got = self.got.tolist()
        return f"{self.where} row {self.row}, layer {self.layer}: expected {want}, got {got} ({whose})"


class Slot(NamedTuple):
    """One step at one DP rank."""

    step: int
    dp: int
    expected: StepExpectation
    ranks: tuple[StepObservation, ...]
    """By TP rank."""

    @property
    def publisher(self) -> StepObservation:
        """TP rank 0."""
        return self.ranks[0]

    @property
    def refusals(self) -> tuple[tuple[int, Failure], ...]:
        """TP ranks that raised, and what."""
        return tuple((tp, seen.failure) for tp, seen in enumerate(self.ranks) if seen.failure is not None)


@dataclass(frozen=True)
class View:
    """All that predicates need."""

    case: Case
    profile: EngineProfile
    producers: tuple[Producer, ...]
    expectation: Expectation
    observations: tuple[Observation, ...]

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every step at every DP rank that all its TP ranks reached."""
        tp = self.case.topology.tp
        found = []
        for dp in range(self.case.topology.dp):
            group = self.observations[dp * tp : (dp + 1) * tp]
            for step in range(min(len(seen.steps) for seen in group)):
                ranks = tuple(seen.steps[step] for seen in group)
                found.append(Slot(step, dp, self.expectation[step][dp], ranks))
        return tuple(found)

    @property
    def complete(self) -> bool:
        """Whether every rank reached the last step."""
        return all(len(seen.steps) == len(self.case.steps) for seen in self.observations)

    @cached_property
    def accepted(self) -> tuple[Slot, ...]:
        """Slots that must be accepted; not those without a count if the profile rejects them (LAY-09)."""
        return tuple(
            slot
            for slot in self.slots
            if slot.expected.error is None
            and not (self.profile.uncounted == "reject" and self.case.steps[slot.step].context.counts is None)
        )

    @cached_property
    def rejected(self) -> tuple[Slot, ...]:
        """Slots that must be rejected."""
        return tuple(slot for slot in self.slots if slot.expected.error is not None)

    def failures(self) -> Iterator[tuple[Rank, int, Failure]]:
        """Every exception and fault, with its rank and step (-1: at creation)."""
        for seen in self.observations:
            if seen.create is not None:
                yield seen.rank, -1, seen.create
            for step, result in enumerate(seen.steps):
                if result.failure is not None:
                    yield seen.rank, step, result.failure

    def handed(self, step: int, layer: int) -> dict[bytes, Origin]:
        """Map each row handed over in a step at a layer, cut to K columns, to its origin."""
        table: dict[bytes, Origin] = {}
        producer = self.producers[step]
        for call in producer.calls:
            if call.layer % self.case.config.layers != layer or call.width is not None:
                continue
            for rank in self.case.topology.ranks():
                rows, origins = producer.handed(rank, call)
                for row, origin in zip(rows[:, : self.case.config.top_k], origins.tolist(), strict=True):
                    known = Origin(*origin)
                    table.setdefault(np.ascontiguousarray(row).tobytes(), known)
        return table

    def whose(self, row: Rows, step: int, layer: int) -> Origin | None:
        """Find whose row it is, the latest step first."""
        key = np.ascontiguousarray(row, dtype=np.int64).tobytes()
        for earlier in range(step, -1, -1):
            origin = self.handed(earlier, layer).get(key)
            if origin is not None:
                return origin
        return None

    @cached_property
    def wrong_rows(self) -> tuple[WrongRow, ...]:
        """All rows of captured layers that are not as expected, at publishers."""
        return tuple(wrong for slot in self.accepted for wrong in self._wrong(slot))

    def _wrong(self, slot: Slot) -> Iterator[WrongRow]:
        if slot.publisher.published is not None and slot.expected.published is not None:
            got = unpack(slot.publisher.published)
            yield from self._differ(slot, "published", got, slot.expected.published, exact=True)
        if slot.publisher.buffer is not None and slot.expected.own is not None and not slot.refusals:
            got = unpack(slot.publisher.buffer)
            yield from self._differ(slot, "buffer", got, slot.expected.own, exact=False)

    def _differ(
        self, slot: Slot, where: str, got: NDArray[Any], want: Rows, *, exact: bool
    ) -> Iterator[WrongRow]:
        if got.ndim != want.ndim or got.shape[1:] != want.shape[1:]:
            return
        got = got.astype(np.int64)
        common = min(len(got), len(want))
        same = ((got[:common] == want[:common]) | (want[:common] == -1)).all(axis=2)
        if same.all() and (not exact or len(got) <= len(want)):
            return
        for layer in sorted(slot.expected.captured):
            rows = [int(row) for row in np.flatnonzero(~same[:, layer])]
            rows += list(range(common, len(got))) if exact else []
            for row in rows:
                value = got[row, layer]
                origin = self.whose(value, slot.step, layer)
                right = want[row, layer] if row < common else None
                yield WrongRow(slot.step, slot.dp, where, layer, row, right, value, origin)

    def real(self, origin: Origin | None) -> bool:
        """Whether a row stands for a real token."""
        return origin is not None and origin.kind == Kind.REAL
