"""What decides a scenario: what was told against what the tensors have."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

from routeproof_reference import Tensors, logical_ids, plan, tensors
from routeproof_spec import (
    Batch,
    CaptureConfig,
    CaptureError,
    Layout,
    Rank,
    Routing,
    Scenario,
    StepContext,
    Verdict,
)

from routeproof_conformance.contexts.engine import ContextBuilder, Mask, Probe, RouterProbe, Told
from routeproof_conformance.judge.view import PASSED, Outcome, failed

SHOWN = 4
"""Ranks that a message lists."""


class Asked(NamedTuple):
    """A scenario and what is to answer it."""

    scenario: Scenario
    probe: Probe


def _batch(asked: Asked) -> tuple[ContextBuilder, Batch]:
    if not isinstance(asked.scenario.given, Batch):
        raise TypeError(f"{asked.scenario.id} is no scenario of a context builder")
    return cast("ContextBuilder", asked.probe), asked.scenario.given


def counts_are_physical(asked: Asked) -> Outcome:
    """LAY-11: every rank is told what its tensors have, or needs no telling.

    The offset of a microbatch is such a count too: the rows of the microbatches before it.
    """
    builder, batch = _batch(asked)
    topology = asked.scenario.topology
    found: list[str] = []
    for rank in topology.ranks():
        truth = tensors(topology, batch, rank)
        told = builder.tell(topology, batch, rank, truth[0].mask if len(truth) == 1 else None)
        if len(told) != len(truth):
            return failed(f"{rank}: a context for {len(told)} of {len(truth)} microbatches")
        for seen, true in zip(told, truth, strict=True):
            where = f"{rank}" if len(truth) == 1 else f"{rank}, microbatch at {true.part.offset}"
            stray = _model(true, seen, rank)
            if stray:
                return Outcome(Verdict.ERROR, f"{where}: the model does not fit the engine: {stray}")
            wrong = "; ".join(_wrong(true, seen, rank, batch.emitted))
            if wrong:
                found.append(f"{where}: {wrong}{_consequence(true, seen, rank, batch.emitted)}")
    return failed("\n  ".join(found[:SHOWN])) if found else PASSED


def _model(true: Tensors, seen: Told, rank: Rank) -> str:
    """Say where the engine's own padding or sharding is not what the reference's model says."""
    own = (true.part.counts or ())[rank.dp]
    if seen.rows not in (None, own):
        return f"{seen.rows} own rows after padding, {own} by the model"
    if seen.handed not in (None, true.handed):
        return f"shards of {seen.handed} rows, {true.handed} by the model"
    if seen.mask is not None and seen.mask != true.mask:
        return f"a mask of {list(seen.mask)}, {list(true.mask)} by the model"
    return ""


def _wrong(true: Tensors, seen: Told, rank: Rank, emitted: Layout) -> Iterator[str]:
    """Say each thing told that is not so, and each left out that is needed."""
    counts, sizes = true.part.counts or (), true.part.shard_sizes
    real = f"the tensors have T {list(counts)} rows (R {list(true.part.real)})"
    if seen.counts is None and true.counted:
        yield f"{real}, and no count is told, though the {true.handed} rows here are {emitted}"
    if seen.counts is not None and seen.counts != counts:
        yield f"{real}, told is T {list(seen.counts)}"
    if seen.own not in (None, counts[rank.dp]):
        yield f"{real}, told beside is {seen.own} for the own DP rank"
    if seen.shard_sizes is None and emitted is Layout.GATHERED_SHARDS:
        yield f"the shards have {list(sizes or ())} rows, and no size is told"
    if seen.shard_sizes is not None and sizes is not None and seen.shard_sizes != sizes:
        yield f"the shards have {list(sizes)} rows, told is {list(seen.shard_sizes)}"
    if seen.offset != true.part.offset and (seen.offset is not None or true.part.offset > 0):
        told = "no offset is told" if seen.offset is None else f"told is offset {seen.offset}"
        yield f"{true.part.offset} rows of the step come before, and {told}"
    if seen.start not in (None, true.start):
        yield f"the own rows begin at row {true.start} of all; it takes {seen.start}"


def _consequence(true: Tensors, seen: Told, rank: Rank, emitted: Layout) -> str:
    """Say what a right capturer makes of the rows if it believes what is told."""
    config = CaptureConfig(max_tokens=2**31, layers=1, top_k=1, experts=1)
    none = (0,) * rank.topology.dp

    def read(counts: tuple[int, ...] | None, sizes: tuple[int, ...] | None) -> str:
        step = StepContext(counts=counts, real=none, shard_sizes=sizes)
        try:
            found = plan(config, rank, step, 0, 0, true.handed, 1)
        except CaptureError as error:
            return f"refused ({type(error).__name__})"
        gathered = " of the gathered ones" if found.gather else ""
        return f"{found.layout}, rows [{found.start}, {found.start + found.rows}){gathered}"

    right = read(true.part.counts, true.part.shard_sizes)
    believed = read(seen.counts, seen.shard_sizes)
    if right == believed:
        return ""
    return f"; {true.handed} rows handed over ({emitted}) are then read as {believed}; right is {right}"


def count_source(asked: Asked) -> Outcome:
    """LAY-07: whatever padding mask is handed over, the counts told stay the same."""
    builder, batch = _batch(asked)
    topology = asked.scenario.topology
    for rank in topology.ranks():
        true = tensors(topology, batch, rank)[0].mask
        without = _facts(builder.tell(topology, batch, rank, None))
        masks: tuple[Mask, ...] = (true, (True,) * len(true), (False,) * (len(true) + 1), (False,))
        for mask in masks:
            told = _facts(builder.tell(topology, batch, rank, mask))
            if told != without:
                return failed(
                    f"{rank}: with a mask of {len(mask)} rows, {sum(mask)} of them padding, told is "
                    f"{_spell(told)}; with none {_spell(without)}"
                )
    return PASSED


_Facts = tuple[tuple[object, ...], ...]


def _facts(told: tuple[Told, ...]) -> _Facts:
    """Give what is context, and not how it came about."""
    return tuple((item.counts, item.own, item.shard_sizes, item.offset, item.start) for item in told)


def _spell(facts: _Facts) -> str:
    names = ("T", "own T", "shard sizes", "offset", "start")
    parts = (
        " ".join(f"{name} {value}" for name, value in zip(names, part, strict=True) if value is not None)
        for part in facts
    )
    return ", then ".join(parts)


def ids_are_logical(asked: Asked) -> Outcome:
    """IDS-01: what is captured are the router's ids, though the kernel gets physical ones."""
    routing = asked.scenario.given
    if not isinstance(routing, Routing):
        raise TypeError(f"{asked.scenario.id} is no scenario of a router")
    logical = logical_ids(routing)
    routed = cast("RouterProbe", asked.probe).route(routing, logical)
    if routed.kernel != routing.kernel:
        got, want = _ids(routed.kernel), _ids(routing.kernel)
        return Outcome(
            Verdict.ERROR, f"the map was not in effect: the kernel was given {got}, expected {want}"
        )
    if routed.captured != logical:
        whose = "the physical ids of the kernel" if routed.captured == routed.kernel else "neither kind"
        return failed(f"captured {_ids(routed.captured)}, {whose}; expected {_ids(logical)}")
    return PASSED


def _ids(rows: tuple[tuple[int, ...], ...]) -> str:
    return str([list(row) for row in rows])


PREDICATES: Mapping[str, Callable[[Asked], Outcome]] = {
    "LAY-07": count_source,
    "LAY-11": counts_are_physical,
    "IDS-01": ids_are_logical,
}
"""What decides a rule; a scenario may list only rules that are here."""
