"""The capturer against the reference, on tensors, over every small step and every n.

`python -O -m routeproof_conformance.prove.differential` does the same without assertions
and prints one JSON document for each fault named on the command line, after one for none.
"""

import importlib
import json
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routeproof_reference import ReferenceCapturer, plan
from routeproof_reference.proofs.group import GroupError, SequentialGroup
from routeproof_reference.proofs.obligation import Check, OpenError, Status
from routeproof_reference.proofs.scenario import right_sizes
from routeproof_spec import CaptureConfig, CaptureError, Layout, Rank, ShardGroupError, StepContext, Topology

from routeproof_conformance.arrays import concatenate
from routeproof_conformance.engines import EngineError
from routeproof_conformance.engines.own import PerLayerEngine, RouteproofEngine

FORMS = 4
"""Every accepted n is handed over in int32 and int64, contiguous and not."""
LAYERS = 4 * FORMS
WIDTH = 2
CONFIG = CaptureConfig(max_tokens=12, layers=LAYERS, top_k=WIDTH, experts=65_536)
MODEL = CaptureConfig(max_tokens=12, layers=LAYERS // FORMS, top_k=WIDTH * FORMS, experts=65_536)
"""The reference gets all forms of an n in one call, side by side: it knows no types and strides."""
LARGEST = {1: 12, 2: 7, 3: 6}
"""Largest count, by DP size."""
LARGEST_GATHERED = {1: 12, 2: 7, 3: 3}
"""The same where shards are gathered: there all ranks take part."""
ROUNDS = 2
"""A step is made twice: its calls are planned at first, and known then."""
ROUNDS_GATHERED = {1: 2, 2: 2, 3: 1}
"""The same where shards are gathered."""
TP_SIZES = (8, 4, 3, 2, 1)
"""The largest first: a planted fault of the gather is found at once."""
BEYOND = 3
"""n is swept to this far past the largest layout."""
ROWS = BEYOND + max(dp * -(-most // tp) * tp for dp, most in LARGEST.items() for tp in TP_SIZES)
"""More than any n."""
STAMPS = 8
"""Ids of as many steps in a row all differ."""
LEAST = 200_000
"""Calls that a full run must make."""
LEAST_PER_LAYER = 20_000
"""Calls that one in mode "per-layer" must make."""
LEAST_MALFORMED = 500
"""Calls that must be refused for their shard sizes."""
LARGEST_PER_LAYER = {1: 12, 2: 4, 3: 1}
"""Largest count in mode "per-layer", by DP size."""
LARGEST_TOLD = {1: 4, 2: 3, 3: 1}
"""Largest count of the steps with a declaration or malformed shard sizes, by DP size."""
OUTSIDE: Final = (Layout.PADDED_TO_MAX, Layout.PADDED_LOCAL)
"""Layouts that only a declaration can name."""


class Step(NamedTuple):
    """One step at one DP rank."""

    topology: Topology
    dp: int
    context: StepContext
    told: bool = False
    """It has a declaration or malformed shard sizes."""

    def where(self) -> str:
        """Name it."""
        context = self.context
        told = f", shard sizes {context.shard_sizes}, declared {context.declared}" if self.told else ""
        return f"counts {context.counts}, tp {self.topology.tp}, DP rank {self.dp}{told}"

    def n_values(self) -> Collection[int]:
        """Give every n up to some past the largest layout; of a told step those of the layouts."""
        counts, tp = self.context.counts or (), self.topology.tp
        local = -(-counts[self.dp] // tp) * tp
        if self.told:
            total = sum(self.context.shard_sizes or ())
            least = {0, local, counts[self.dp], sum(counts), len(counts) * max(counts)}
            return {n for n in (*least, total - 1, total, total + 1) if 0 <= n < ROWS}
        largest = max(sum(-(-count // tp) * tp for count in counts), len(counts) * max(counts))
        return range(largest + BEYOND)


def steps(tp: int, most: dict[int, int]) -> Iterator[Step]:
    """Give all steps of a TP size, up to a count by DP size."""
    for dp, largest in most.items():
        topology = Topology(tp=tp, dp=dp)
        for counts in product(range(largest + 1), repeat=dp):
            sizes = right_sizes(counts, tp) if dp > 1 else None
            real = tuple(count - count // 3 for count in counts)
            context = StepContext(counts=counts, real=real, shard_sizes=sizes)
            for rank in range(dp):
                yield Step(topology, rank, context)
            if max(counts) <= LARGEST_TOLD[dp]:
                yield from _told(topology, counts)


def _told(topology: Topology, counts: tuple[int, ...]) -> Iterator[Step]:
    """Give steps that declare a layout, and steps with malformed shard sizes (LAY-08)."""
    right = right_sizes(counts, topology.tp)
    for rank in range(topology.dp):
        sizes: list[tuple[tuple[int, ...], Layout | None]] = [(right, declared) for declared in OUTSIDE]
        for wrong in malformed(right, counts, rank):
            sizes += [(wrong, None), (wrong, Layout.GATHERED_SHARDS)]
        for told, declared in sizes:
            context = StepContext(counts=counts, real=counts, shard_sizes=told, declared=declared)
            yield Step(topology, rank, context, told=True)


def malformed(right: tuple[int, ...], counts: tuple[int, ...], rank: int) -> Iterator[tuple[int, ...]]:
    """Give shard sizes with a negative one, of another number, and with an own group that is too small.

    Where there are several DP ranks, their sum stays, so that n is found among the layouts as before.
    """
    group, dp = len(right) // len(counts), len(counts)
    at, last = rank * group, len(right) - 1
    if last:
        other = at + 1 if group > 1 else (at + 1) % dp
        yield _moved(right, at, other, right[at] + 1)
    if dp > 1:
        yield (*right, 0)
        yield right[:-1]
    own = sum(right[at : at + group])
    short = max(0, counts[rank] - 1)
    sizes = [*right[:at], short, *[0] * (group - 1), *right[at + group :]]
    if dp > 1:
        sizes[(rank + 1) % dp * group] += own - short
    yield tuple(sizes)


def _moved(sizes: tuple[int, ...], source: int, target: int, rows: int) -> tuple[int, ...]:
    found = list(sizes)
    found[source] -= rows
    found[target] += rows
    return tuple(found)


class Tables:
    """Ids of all steps to come: rows that differ by stamp, TP rank, layer, token and column."""

    def __init__(self) -> None:
        """Make them once; type and strides follow from the layer."""
        self.torch: Any = importlib.import_module("torch")
        shape = (STAMPS, max(TP_SIZES), LAYERS, ROWS, WIDTH)
        self.whole = np.arange(np.prod(shape)).reshape(shape)
        self.parts: dict[tuple[int, int, int, int], Any] = {}
        self.joint: dict[tuple[int, int, int, int], NDArray[Any]] = {}

    def ids(self, stamp: int, tp: int, layer: int, n: int) -> Any:  # noqa: ANN401 - a tensor
        """Give n rows for the subject."""
        key = (stamp, tp, layer, n)
        found = self.parts.get(key)
        if found is None:
            rows = self.whole[stamp, tp, layer].astype(np.int32 if layer % 2 else np.int64)
            found = np.repeat(rows, 2, axis=1)[:, ::2] if layer // 2 % 2 else rows
            found = self.parts[key] = self.torch.from_numpy(found[:n])
        return found

    def model_ids(self, stamp: int, tp: int, layer: int, n: int) -> NDArray[Any]:
        """Give n rows for the reference: those of `FORMS` layers side by side."""
        key = (stamp, tp, layer, n)
        found = self.joint.get(key)
        if found is None:
            layers = self.whole[stamp, tp, FORMS * layer : FORMS * (layer + 1), :n]
            found = self.joint[key] = np.hstack(list(layers))
        return found

    def changed(self) -> str:
        """Say whether somebody has written to the ids."""
        for (stamp, tp, layer, n), rows in self.parts.items():
            if not np.array_equal(rows.numpy(), self.whole[stamp, tp, layer, :n]):
                return f"the ids handed over were written to, n = {n}"
        return ""


class Pair:
    """The engine's ranks and the reference's publisher, for one topology and DP rank."""

    def __init__(
        self, engine: RouteproofEngine, topology: Topology, dp: int, tables: Tables, fault: str
    ) -> None:
        """Make all ranks once; buffers are used again and again."""
        self.fault, self.tables, self.stamp, self.malformed = fault, tables, 0, 0
        reverse = fault == "shards in another order"
        self.group = SequentialGroup(topology.tp, concatenate, reverse)
        self.ranks = [Rank(topology=topology, dp=dp, tp=tp) for tp in range(topology.tp)]
        self.subjects: list[Any] = [
            engine.create(CONFIG, rank, member)
            for rank, member in zip(self.ranks, self.group.members, strict=True)
        ]
        self.model_group = SequentialGroup(topology.tp)
        self.models = [
            ReferenceCapturer(MODEL, rank, member)
            for rank, member in zip(self.ranks, self.model_group.members, strict=True)
        ]

    def compare(self, step: Step) -> tuple[int, str]:
        """Give the calls made, and the first difference or ""."""
        alone, gathered, refused = self._sort(step)
        calls, once, again = 0, 1 if step.told else ROUNDS, ROUNDS_GATHERED[step.topology.dp]
        for chosen, ranks, rounds in ((alone, 1, once), (gathered, len(self.ranks), again)):
            for _ in range(rounds if chosen else 0):
                wrong = self._accepted(step, chosen, ranks)
                if wrong:
                    return calls, wrong
                calls += FORMS * len(chosen)
        return calls + len(refused), self._refused(step, refused)

    def _sort(self, step: Step) -> tuple[list[int], list[int], dict[int, str]]:
        alone: list[int] = []
        gathered: list[int] = []
        refused: dict[int, str] = {}
        for n in step.n_values():
            try:
                found = plan(MODEL, self.ranks[0], step.context, 0, 0, n, MODEL.width)
            except CaptureError as error:
                refused[n] = type(error).__name__
            else:
                (gathered if found.gather else alone).append(n)
        if step.told or max(step.context.counts or ()) > LARGEST_GATHERED[step.topology.dp]:
            gathered = []
        return alone, gathered, refused

    def _accepted(self, step: Step, chosen: list[int], ranks: int) -> str:
        counts = step.context.counts or ()
        own, before = counts[step.dp], self.subjects[0].buffer()
        self.stamp = (self.stamp + 1) % STAMPS
        self._begin(step)
        for tp in reversed(range(ranks)):
            subject, model = self.subjects[tp], self.models[tp]
            model.begin_step(step.context)
            for number, n in enumerate(chosen):
                for layer in range(FORMS * number, FORMS * (number + 1)):
                    subject.capturer.capture(layer, self.tables.ids(self.stamp, tp, layer, n))
                model.capture(number, self.tables.model_ids(self.stamp, tp, number, n))
            if self.fault == "a row too many" and tp == 0:
                subject.capturer.buffer[own : own + 1, 0] = 1
            subject.end_step()
            model.end_step()
        return self._collectives(chosen) or self._left(chosen, own, before) or self._published(step, chosen)

    def _begin(self, step: Step) -> None:
        """Begin on all ranks, those that do nothing more in this step too."""
        for subject in self.subjects:
            subject.begin_step(step.context)

    def _collectives(self, chosen: list[int]) -> str:
        issued, needed = len(self.group.members[0].sent), FORMS * len(self.model_group.members[0].sent)
        if issued > needed or bool(issued) != bool(needed):
            return f"{issued} collectives for n = {chosen}, the reference needs {needed}"
        for member in (*self.group.members, *self.model_group.members):
            if member.strided:
                return f"a strided gather for n = {chosen}"
            member.sent.clear()
        return ""

    def _left(self, chosen: list[int], own: int, before: NDArray[np.integer]) -> str:
        after, used = self.subjects[0].buffer(), FORMS * len(chosen)
        wanted = before.copy()
        wanted[:own, :used] = self.models[0].buffer.reshape(before.shape)[:own, :used]
        right = after == wanted
        if not right[:own, :used].all():
            return f"other rows are in the buffer after n = {chosen}"
        if not right[own:, :used].all():
            return f"rows behind the own ones have changed after n = {chosen}"
        if not (right[:, used:] | (after[:, used:] == 0)).all():
            return f"layers that were not captured have changed after n = {chosen}"
        return ""

    def _published(self, step: Step, chosen: list[int]) -> str:
        published, expected = self.subjects[0].published(), self.models[0].published()
        shape = (step.context.real[step.dp], LAYERS, WIDTH)
        if expected is None or not np.array_equal(published, expected.reshape(shape)):
            return f"other rows are published after n = {chosen}"
        return "" if published.flags.c_contiguous else f"what is published is strided after n = {chosen}"

    def _refused(self, step: Step, refused: dict[int, str]) -> str:
        subject = self.subjects[0]
        before = subject.buffer()
        self._begin(step)
        for n, expected in refused.items():
            try:
                subject.capturer.capture(0, self.tables.ids(0, 0, 0, n))
            except CaptureError as error:
                self.malformed += isinstance(error, ShardGroupError)
                if self.fault == "malformed sizes pass" and isinstance(error, ShardGroupError):
                    return f"n = {n} is accepted, expected {expected}"
                if type(error).__name__ != expected:
                    return f"n = {n} raises {type(error).__name__}, expected {expected}"
            else:
                return f"n = {n} is accepted, expected {expected}"
        if self.group.members[0].sent:
            return f"a collective is issued by a rejected n of {sorted(refused)}"
        return "" if np.array_equal(before, subject.buffer()) else f"a rejected n of {sorted(refused)} writes"


def run(fault: str = "") -> Check:
    """Compare all steps; raise OpenError without torch."""
    return _run(RouteproofEngine, LARGEST, LEAST, fault)


def per_layer(fault: str = "") -> Check:
    """Compare fewer steps in mode "per-layer"."""
    return _run(PerLayerEngine, LARGEST_PER_LAYER, LEAST_PER_LAYER, fault)


def _run(make: Callable[[], RouteproofEngine], most: dict[int, int], least: int, fault: str) -> Check:
    try:
        engine = make()
    except EngineError as error:
        raise OpenError(str(error)) from error
    calls = malformed_calls = 0
    tables = Tables()
    for tp in TP_SIZES:
        pairs: dict[tuple[int, int], Pair] = {}
        for step in steps(tp, most):
            key = (step.topology.dp, step.dp)
            try:
                if key not in pairs:
                    pairs[key] = Pair(engine, step.topology, step.dp, tables, fault)
                made, wrong = pairs[key].compare(step)
            except (GroupError, ValueError, IndexError, RuntimeError) as error:
                made, wrong = 0, f"{type(error).__name__}: {error}"
            calls += made
            if wrong:
                return Check(Status.REFUTED, f"after {calls:,} calls: {step.where()}: {wrong}")
        malformed_calls += sum(pair.malformed for pair in pairs.values())
    if calls < least or malformed_calls < LEAST_MALFORMED:
        return Check(
            Status.OPEN, f"{calls:,} calls, fewer than {least:,}, or {malformed_calls:,} malformed ones"
        )
    wrong = tables.changed()
    if wrong:
        return Check(Status.REFUTED, wrong)
    return Check(
        Status.ESTABLISHED, f"{calls:,} calls, {malformed_calls:,} of them refused for their shard sizes"
    )


def main() -> None:
    """Print a check without fault, then those of the faults named on the command line."""
    for fault in ("", *sys.argv[1:]):
        check = run(fault)
        optimised = sys.flags.optimize > 0
        document = {"status": check.status, "detail": check.detail, "optimised": optimised}
        sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
