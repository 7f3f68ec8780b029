"""The capturer against the reference, on tensors, over every small step and every n.

`python -O -m routeproof_conformance.prove.differential` does the same without assertions
and prints one JSON document.
"""

import json
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routeproof_reference import ReferenceCapturer, plan
from routeproof_reference.proofs.group import GroupError, SequentialGroup
from routeproof_reference.proofs.obligation import Check, OpenError, Status
from routeproof_reference.proofs.scenario import right_sizes
from routeproof_spec import CaptureConfig, CaptureError, Rank, StepContext, Topology

from routeproof_conformance.arrays import concatenate
from routeproof_conformance.engines import EngineError
from routeproof_conformance.engines.own import RouteproofEngine

LAYERS = 132
CONFIG = CaptureConfig(max_tokens=12, layers=LAYERS, top_k=2, experts=65_536)
LARGEST = {1: 12, 2: 7, 3: 4}
"""Largest count, by DP size."""
TP_SIZES = (1, 2, 3, 4, 8)
BEYOND = 8
"""n is swept to this far past the largest layout."""
FORMS = 22
"""Every accepted n is handed over this often: in int32 and int64, contiguous and not."""
LEAST = 200_000
"""Calls that a full run must make."""


class Step(NamedTuple):
    """One step at one DP rank."""

    topology: Topology
    dp: int
    context: StepContext

    def n_values(self) -> range:
        """Give every n up to some past the largest layout."""
        counts, tp = self.context.counts or (), self.topology.tp
        largest = max(sum(-(-count // tp) * tp for count in counts), len(counts) * max(counts))
        return range(largest + BEYOND)


def steps(tp: int) -> Iterator[Step]:
    """Give all steps of a TP size."""
    for dp, largest in LARGEST.items():
        for counts in product(range(largest + 1), repeat=dp):
            sizes = right_sizes(counts, tp) if dp > 1 else None
            context = StepContext(counts=counts, real=counts, shard_sizes=sizes)
            for rank in range(dp):
                yield Step(Topology(tp=tp, dp=dp), rank, context)


def ids(n: int, layer: int, tp: int) -> NDArray[Any]:
    """Give rows that differ by rank, layer and row; type and strides follow from the layer."""
    row = np.arange(n) + 50 * layer + 2_500 * tp
    rows = np.stack([row, row + 20_000], axis=1).astype(np.int32 if layer % 2 else np.int64)
    strided: NDArray[Any] = np.repeat(rows, 2, axis=1)[:, ::2]
    return strided if layer // 2 % 2 else rows


class Pair:
    """The engine's ranks and the reference's publisher, for one topology and DP rank."""

    def __init__(self, topology: Topology, dp: int, fault: str) -> None:
        """Make all ranks once; buffers are used again and again."""
        self.fault = fault
        reverse = fault == "shards in another order"
        engine = RouteproofEngine()
        self.group = SequentialGroup(topology.tp, concatenate, reverse)
        self.ranks = [Rank(topology=topology, dp=dp, tp=tp) for tp in range(topology.tp)]
        self.subjects: list[Any] = [
            engine.create(CONFIG, rank, member)
            for rank, member in zip(self.ranks, self.group.members, strict=True)
        ]
        self.model_group = SequentialGroup(topology.tp)
        self.models = [
            ReferenceCapturer(CONFIG, rank, member)
            for rank, member in zip(self.ranks, self.model_group.members, strict=True)
        ]

    def compare(self, step: Step) -> tuple[int, str]:
        """Give the calls made, and the first difference or ""."""
        alone, gathered, refused = self._sort(step)
        for chosen, ranks in ((alone, 1), (gathered, len(self.ranks))):
            wrong = self._accepted(step, chosen, ranks) if chosen else ""
            if wrong:
                return 0, wrong
        wrong = self._refused(step, refused)
        return len(alone) + len(gathered) + len(refused), wrong

    def _sort(self, step: Step) -> tuple[list[int], list[int], dict[int, str]]:
        alone: list[int] = []
        gathered: list[int] = []
        refused: dict[int, str] = {}
        for n in step.n_values():
            try:
                found = plan(CONFIG, self.ranks[0], step.context, 0, 0, n, CONFIG.width)
            except CaptureError as error:
                refused[n] = type(error).__name__
            else:
                (gathered if found.gather else alone).extend([n] * FORMS)
        return alone, gathered, refused

    def _accepted(self, step: Step, chosen: list[int], ranks: int) -> str:
        own = (step.context.counts or ())[step.dp]
        before = self.subjects[0].buffer()
        for tp in reversed(range(ranks)):
            for engine in (self.subjects[tp], self.models[tp]):
                engine.begin_step(step.context)
                for layer, n in enumerate(chosen):
                    engine.capture(layer, ids(n, layer, tp))
                    if self.fault == "a row too many" and engine is self.subjects[0] and own < n:
                        engine.capturer.buffer[own, layer] = 1
                engine.end_step()
        return self._collectives(chosen) or self._left(chosen, own, before)

    def _collectives(self, chosen: list[int]) -> str:
        issued = sum(len(member.sent) for member in self.group.members[:1])
        needed = len(self.model_group.members[0].sent)
        if issued > needed or bool(issued) != bool(needed):
            return f"{issued} collectives for n = {chosen}, the reference needs {needed}"
        if any(member.strided for member in self.group.members):
            return f"a strided gather for n = {chosen}"
        for group in (self.group, self.model_group):
            for member in group.members:
                member.sent.clear()
        return ""

    def _left(self, chosen: list[int], own: int, before: NDArray[np.integer]) -> str:
        after, used = self.subjects[0].buffer(), len(chosen)
        if not np.array_equal(after[:own, :used], self.models[0].buffer[:own, :used]):
            return f"other rows are in the buffer after n = {chosen}"
        rest = before[:, used:]
        if not np.array_equal(after[own:, :used], before[own:, :used]):
            return f"rows behind the own ones have changed after n = {chosen}"
        if not ((after[:, used:] == rest) | (after[:, used:] == 0)).all():
            return f"layers that were not captured have changed after n = {chosen}"
        published, expected = self.subjects[0].published(), self.models[0].published()
        if expected is None or not np.array_equal(published, expected):
            return f"other rows are published after n = {chosen}"
        return "" if published.flags.c_contiguous else f"what is published is strided after n = {chosen}"

    def _refused(self, step: Step, refused: dict[int, str]) -> str:
        subject = self.subjects[0]
        before = subject.buffer()
        subject.begin_step(step.context)
        for n, expected in refused.items():
            try:
                subject.capture(0, ids(n, 0, 0))
            except CaptureError as error:
                if type(error).__name__ != expected:
                    return f"n = {n} raises {type(error).__name__}, expected {expected}"
            else:
                return f"n = {n} is accepted, expected {expected}"
        if self.group.members[0].sent:
            return f"a collective is issued by a rejected n of {sorted(refused)}"
        return "" if np.array_equal(before, subject.buffer()) else f"a rejected n of {sorted(refused)} writes"


def run(fault: str = "") -> Check:
    """Compare all steps; raise OpenError without torch."""
    calls = 0
    for tp in TP_SIZES:
        pairs: dict[tuple[int, int], Pair] = {}
        for step in steps(tp):
            key = (step.topology.dp, step.dp)
            try:
                if key not in pairs:
                    pairs[key] = Pair(step.topology, step.dp, fault)
                made, wrong = pairs[key].compare(step)
            except EngineError as error:
                raise OpenError(str(error)) from error
            except (GroupError, CaptureError) as error:
                made, wrong = 0, f"{type(error).__name__}: {error}"
            calls += made
            if wrong:
                where = f"counts {step.context.counts}, tp {tp}, DP rank {step.dp}"
                return Check(Status.REFUTED, f"after {calls:,} calls: {where}: {wrong}")
    if calls < LEAST:
        return Check(Status.OPEN, f"{calls:,} calls, fewer than {LEAST:,}")
    return Check(Status.ESTABLISHED, f"{calls:,} calls")


def main() -> None:
    """Print the check of the fault named on the command line, if any."""
    check = run(sys.argv[1] if len(sys.argv) > 1 else "")
    optimised = sys.flags.optimize > 0
    document = {"status": check.status, "detail": check.detail, "optimised": optimised}
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
