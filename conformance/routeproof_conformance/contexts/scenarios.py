"""The scenarios: data only. Every one is under the rule that it was written for."""

from collections.abc import Iterator, Mapping
from functools import cache

from routeproof_spec import Batch, BatchPath, Layout, Routing, Scenario, Topology

from routeproof_conformance.cases import matches
from routeproof_conformance.cases.build import axes
from routeproof_conformance.contexts.judge import PREDICATES

_RULES = ("LAY-11", "LAY-07")
_TP1, _TP2, _TP4 = Topology(), Topology(tp=2), Topology(tp=4)
_DP2, _BOTH = Topology(dp=2), Topology(tp=2, dp=2)
_GRAPHS = (4, 8, 16)

_STEPS: tuple[tuple[Topology, tuple[int, ...], Layout], ...] = (
    (_TP1, (7,), Layout.FULL),
    (_TP2, (7,), Layout.FULL),
    (_TP2, (6,), Layout.TP_SHARD),
    (_TP2, (7,), Layout.TP_SHARD),
    (_TP2, (1,), Layout.TP_SHARD),
    (_TP4, (5,), Layout.TP_SHARD),
    (_TP4, (2,), Layout.TP_SHARD),
    (_DP2, (3, 7), Layout.FULL),
    (_DP2, (3, 7), Layout.CROSS_DP),
    (_DP2, (7, 3), Layout.CROSS_DP),
    (_BOTH, (5, 3), Layout.TP_SHARD),
    (_BOTH, (5, 3), Layout.GATHERED_SHARDS),
    (_BOTH, (1, 7), Layout.GATHERED_SHARDS),
)
"""Topology, real tokens and layout: whole, sharded, over DP ranks, and both."""


def _scenario(
    name: str,
    topology: Topology,
    batch: Batch,
    twin: Batch | None = None,
    rules: tuple[str, ...] = _RULES,
    source: str = "",
    at: Mapping[str, object] | None = None,
) -> Scenario:
    """Give a scenario and its twin; `at` are the further axes of its id."""
    more = {"R": batch.real, "emitted": batch.emitted, **(at or {})}
    fields = {
        "id": f"{name}[{axes(topology, more)}]",
        "rules": tuple(dict.fromkeys((name[:6], *rules))),
        "topology": topology,
        "source": source,
    }
    accepted = None if twin is None else Scenario.model_validate({**fields, "given": twin})
    return Scenario.model_validate({**fields, "given": batch, "twin": accepted})


def steps() -> Iterator[Scenario]:
    """Whole steps: the builder's function alone, eager, and in graphs."""
    for topology, real, emitted in _STEPS:
        piecewise = Batch(path=BatchPath.PIECEWISE_GRAPH, real=real, emitted=emitted, graphs=_GRAPHS)
        alone = Batch(path=BatchPath.FUNCTION, real=real, emitted=emitted)
        yield _scenario("LAY-11/eager-function", topology, alone, piecewise, source="vLLM #61388")
        eager = Batch(path=BatchPath.EAGER, real=real, emitted=emitted)
        yield _scenario("LAY-11/eager-step", topology, eager)
        yield _scenario("LAY-11/piecewise-graph", topology, piecewise)
        full = Batch(path=BatchPath.FULL_GRAPH, real=real, emitted=emitted, graphs=_GRAPHS)
        yield _scenario("LAY-11/full-graph", topology, full, piecewise, source="vLLM #61388")


def speculative() -> Iterator[Scenario]:
    """Graphs whose size is known in requests, each of which verifies several rows."""
    for width in (1, 2, 4):
        for requests in ((3, 2), (2, 4)):
            real = tuple(count * width for count in requests)
            batch = Batch(
                path=BatchPath.FULL_GRAPH, real=real, emitted=Layout.CROSS_DP, graphs=(2, 4), width=width
            )
            plain = batch.model_copy(update={"real": requests, "width": 1})
            yield _scenario("LAY-11/verified-rows", _DP2, batch, plain, at={"width": width})


def prefill() -> Iterator[Scenario]:
    """Give a prefill graph after no decode graph, after a smaller one, and after one of the same size."""
    for earlier in (None, 2, 8):
        batch = Batch(
            path=BatchPath.PREFILL_GRAPH, real=(5, 7), emitted=Layout.CROSS_DP, graphs=(2, 8), earlier=earlier
        )
        same = batch.model_copy(update={"earlier": 8})
        yield _scenario("LAY-11/prefill-graph", _DP2, batch, same, at={"earlier": earlier or "none"})


def graph_extent() -> Iterator[Scenario]:
    """Four DP ranks, eager and in a graph of 32 rows a rank (C6)."""
    topology, real = Topology(dp=4), (11, 13, 17, 19)
    for path, graphs in ((BatchPath.EAGER, ()), (BatchPath.FULL_GRAPH, (32,))):
        batch = Batch(path=path, real=real, emitted=Layout.CROSS_DP, graphs=graphs)
        more = {"graph": graphs[0] if graphs else "none"}
        yield _scenario("LAY-11/graph-extent", topology, batch, source="SGLang #30712", at=more)


def microbatches() -> Iterator[Scenario]:
    """Give steps cut in two, eager and padded for a graph; the second begins where the first ends."""
    for topology, real, emitted in (
        (_DP2, (7, 6), Layout.FULL),
        (_DP2, (8, 8), Layout.CROSS_DP),
        (_BOTH, (7, 6), Layout.TP_SHARD),
        (_BOTH, (9, 8), Layout.GATHERED_SHARDS),
    ):
        for graphs in ((), (8, 16)):
            batch = Batch(
                path=BatchPath.MICROBATCHES, real=real, emitted=emitted, graphs=graphs, microbatches=2
            )
            whole = Batch(path=BatchPath.EAGER, real=real, emitted=emitted)
            more = {"graph": graphs[0] if graphs else "none"}
            yield _scenario("LAY-11/microbatches", topology, batch, whole, source="vLLM #57184", at=more)


def compact_replay() -> Iterator[Scenario]:
    """Give a decoder run again on fewer rows: the count is the replay's own."""
    for topology, real, kept, emitted in (
        (_TP1, (9,), (3,), Layout.FULL),
        (_TP2, (9,), (3,), Layout.TP_SHARD),
        (_DP2, (9, 6), (3, 5), Layout.CROSS_DP),
        (_BOTH, (9, 6), (3, 5), Layout.TP_SHARD),
    ):
        for graphs in ((), _GRAPHS):
            batch = Batch(path=BatchPath.COMPACT_REPLAY, real=real, emitted=emitted, graphs=graphs, kept=kept)
            more = {"kept": kept, "graph": int(bool(graphs))}
            yield _scenario("LAY-11/compact-replay", topology, batch, source="vLLM #61643", at=more)


def sharded_masks() -> Iterator[Scenario]:
    """Hand over a padding mask that is a shard: neither its length nor its content counts."""
    for topology, real in ((_TP2, (5,)), (_TP4, (9,)), (_TP4, (3,)), (_BOTH, (5, 3))):
        for path, graphs in (
            (BatchPath.FUNCTION, ()),
            (BatchPath.EAGER, ()),
            (BatchPath.FULL_GRAPH, _GRAPHS),
        ):
            batch = Batch(path=path, real=real, emitted=Layout.TP_SHARD, graphs=graphs)
            yield _scenario("LAY-07/sharded-mask", topology, batch, rules=(), at={"path": path})


def logical_ids() -> Iterator[Scenario]:
    """Two replicas of experts 0 and 2: the kernel's ids, and the router's (C12)."""
    routing = Routing(physical_to_logical=(0, 1, 2, 3, 0, 2), kernel=((4, 1), (5, 3)))
    yield Scenario(
        id="IDS-01/before-the-map[tp=1,dp=1]",
        rules=("IDS-01",),
        topology=_TP1,
        given=routing,
        source="vLLM #33013",
    )


FAMILIES = (
    steps,
    graph_extent,
    speculative,
    prefill,
    microbatches,
    compact_replay,
    sharded_masks,
    logical_ids,
)


@cache
def all_scenarios() -> tuple[Scenario, ...]:
    """Give every scenario, in a fixed order; raise ValueError for an id given twice."""
    found: dict[str, Scenario] = {}
    for scenario in (item for family in FAMILIES for item in family()):
        if scenario.id in found:
            raise ValueError(f"two scenarios have the id {scenario.id}")
        unknown = set(scenario.rules) - set(PREDICATES)
        if unknown:
            raise ValueError(f"scenario {scenario.id} lists rules that nothing judges: {sorted(unknown)}")
        found[scenario.id] = scenario
    return tuple(found.values())


def select_scenarios(
    case: str | None = None, rule: str | None = None, topologies: tuple[Topology, ...] | None = None
) -> Iterator[Scenario]:
    """Give the scenarios that match, by the same rules as `select` gives cases."""
    return (item for item in all_scenarios() if matches(item, case, rule, topologies))
