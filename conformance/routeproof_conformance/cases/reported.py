"""Inputs from public bug reports, with exactly their numbers.

What is right is worked out by hand in `tests/test_reported.py`, not here.
"""

from collections.abc import Iterator

from routeproof_spec import Call, CaptureConfig, Case, CaseStep, Layout, Topology

from routeproof_conformance.cases.build import accepted, config, context, filling, halves, rejected, step

Row = tuple[int, ...]

_TP2, _TP4 = Topology(tp=2), Topology(tp=4)
_SMALL = CaptureConfig(max_tokens=8, layers=1, top_k=2, experts=8)
_61388 = "vLLM #61388"
STALE: tuple[Row, ...] = ((7, 5), (7, 4), (7, 3), (7, 2), (7, 1), (7, 0), (6, 5), (6, 4))
"""Rows that an earlier step of full size left; none is a right row of a case below."""


def given(
    rows: tuple[Row, ...],
    emitted: Layout,
    n: int | None = None,
) -> CaseStep:
    """Give a step of one layer at DP 1 whose true rows are given."""
    told = context((len(rows),), 1)
    return CaseStep.model_validate(
        {
            "context": told,
            "emitted": emitted,
            "ids": (tuple((row,) for row in rows),),
            "calls": None if n is None else (Call(layer=0, n=n),),
        }
    )


_BEFORE = (given(STALE, Layout.FULL),)
SIX: tuple[Row, ...] = ((0, 1), (2, 3), (4, 5), (6, 7), (1, 0), (3, 2))


def tp_shards_at_dp1() -> Iterator[Case]:
    """C1a to C1e, C1g: token shards of a TP group without DP metadata."""
    rules = ("LAY-03", "BUF-01")
    shards = (
        ("LAY-02/six-tokens", _TP2, SIX),
        ("LAY-05/three-tokens", _TP2, ((0, 1), (2, 3), (4, 5))),
        ("LAY-03/two-tokens-of-four-ranks", _TP4, ((1, 2), (3, 4))),
        ("COL-02/one-token", _TP2, ((0, 1),)),
    )
    for name, topology, rows in shards:
        steps = (*_BEFORE, given(rows, Layout.TP_SHARD))
        yield accepted(name, topology, steps, rules, settings=_SMALL, source=_61388, at={"N": len(rows)})
    yield rejected(
        "LAY-01/one-row-of-six",
        _TP2,
        given(SIX, Layout.FULL, n=1),
        given(SIX, Layout.FULL),
        settings=_SMALL,
        source=_61388,
        before=_BEFORE,
        at={"N": 6, "n": 1},
    )
    for rows in (SIX[:3], SIX[:5]):
        steps = (*_BEFORE, given(rows, Layout.PADDED_LOCAL))
        name = "LAY-05/gathered-and-padded"
        yield accepted(name, _TP2, steps, settings=_SMALL, source=_61388, at={"N": len(rows)})


def accepted_sizes() -> Iterator[Case]:
    """C1f: exactly these n are accepted; every other one up to 8 is rejected."""
    for topology, count in ((_TP2, 3), (_TP2, 5), (_TP2, 6), (_TP4, 2)):
        s = -(-count // topology.tp)
        right = step(topology, (count,), Layout.FULL)
        fitting = {count: Layout.FULL, s: Layout.TP_SHARD, s * topology.tp: Layout.PADDED_LOCAL}
        for n in range(9):
            at = {"N": count, "n": n}
            if n in fitting:
                steps = (filling(topology), step(topology, (count,), fitting[n]))
                yield accepted("LAY-01/fits", topology, steps, source=_61388, at=at)
            else:
                wrong = step(topology, (count,), Layout.FULL, calls=(Call(layer=0, n=n),))
                yield rejected("LAY-01/fits-not", topology, wrong, right, source=_61388, at=at)


def other_shards() -> Iterator[Case]:
    """C1h and C9: shards of one row; more ranks than tokens."""
    topology = Topology(tp=8)
    steps = (filling(topology), step(topology, (5,), Layout.TP_SHARD))
    yield accepted("LAY-02/one-row-shards", topology, steps, source="vllm-ascend #15451", at={"N": 5})
    for count in range(1, 17):
        steps = (filling(_TP4), step(_TP4, (count,), Layout.TP_SHARD))
        yield accepted("LAY-03/few-tokens", _TP4, steps, source="torchtitan #3622", at={"N": count})


def data_parallel() -> Iterator[Case]:
    """C2, C3, C3x and C4: several DP ranks."""
    counts = (3, 5, 2)
    dp3 = Topology(dp=3)
    with_max = config(
        layouts=frozenset({Layout.CROSS_DP, Layout.FULL, Layout.PADDED_TO_MAX, Layout.TP_SHARD})
    )
    cross, full = step(dp3, counts, Layout.CROSS_DP), step(dp3, counts, Layout.FULL)
    at: dict[str, object] = {"T": counts}
    yield accepted("LAY-02/naive-dispatch", dp3, (filling(dp3), cross), source="vLLM #43737", at=at)
    yield accepted(
        "LAY-02/padded-to-max",
        dp3,
        (filling(dp3), step(dp3, counts, Layout.PADDED_TO_MAX)),
        capabilities=("layout-sets", "padded-to-max"),
        settings=with_max,
        source="vLLM #43737",
        at=at,
    )
    yield accepted("LAY-02/local-rows", dp3, (filling(dp3), full), source="vLLM #37879", at=at)
    wrong = step(dp3, counts, Layout.CROSS_DP, calls=(Call(layer=0, n=11),))
    yield rejected("LAY-01/eleven-of-ten", dp3, wrong, cross, source="vLLM #43737", at={"T": counts, "n": 11})

    both = Topology(tp=2, dp=2)
    at = {"T": (5, 3)}
    shards = step(both, (5, 3), Layout.GATHERED_SHARDS)
    steps = (filling(both), shards)
    yield accepted("LAY-04/gathered-groups", both, steps, ("LAY-03",), source="vLLM #50874", at=at)
    pair = config(layouts=frozenset({Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX}))
    declared = step(both, (5, 3), Layout.PADDED_TO_MAX, declared=Layout.PADDED_TO_MAX)
    need = ("layout-sets", "padded-to-max", "declared-layouts")
    blocks = step(both, (24, 24), Layout.GATHERED_SHARDS)
    yield rejected(
        "LAY-06/ten-rows-either-way",
        both,
        step(both, (5, 3), Layout.PADDED_TO_MAX),
        declared,
        capabilities=need,
        settings=pair,
        source="derived from vLLM #50874",
        before=(blocks,),
        at=at,
    )
    steps = (blocks, declared)
    yield accepted(
        "LAY-10/ten-rows-declared",
        both,
        steps,
        capabilities=need,
        settings=pair,
        source="derived from vLLM #50874",
        at=at,
    )
    local = step(both, (1, 3), Layout.PADDED_LOCAL, declared=Layout.PADDED_LOCAL)
    yield accepted(
        "LAY-10/padded-local-at-dp",
        both,
        (filling(both), local),
        capabilities=("declared-layouts",),
        source="derived",
        at={"T": (1, 3)},
    )


def graph_extent() -> Iterator[Case]:
    """C6: four DP ranks, eager, then in a graph of 32 rows a rank."""
    topology, real = Topology(dp=4), (11, 13, 17, 19)
    eager = step(topology, real, Layout.CROSS_DP)
    graph = step(topology, (32,) * topology.dp, Layout.CROSS_DP, real)
    yield accepted(
        "LAY-02/graph-extent",
        topology,
        (filling(topology, 32), eager, graph),
        settings=config(max_tokens=32),
        source="SGLang #30712",
        at={"R": real, "graph": 32},
    )


def microbatches() -> Iterator[Case]:
    """C5 and C5b: two microbatches in one graph, padded inside and not."""
    for topology in (Topology(), _TP2):
        for graph, first, second in ((16, 4, 3), (128, 32, 31)):
            half = graph // 2
            parts = tuple(
                part.model_copy(update={"real": (real,)})
                for part, real in zip(halves((0, half), ((half,), (half,)), 1), (first, second), strict=True)
            )
            layout = Layout.FULL if topology.tp == 1 else Layout.TP_SHARD
            told = step(topology, (graph,), layout, (first + second,), microbatches=parts)
            yield accepted(
                "BUF-05/staged-graph",
                topology,
                (filling(topology, graph), told),
                capabilities=("microbatches", "staged-microbatches"),
                settings=config(max_tokens=graph),
                source="vLLM #57184",
                at={"graph": graph, "R": (first, second)},
            )


def capacity() -> Iterator[Case]:
    """C7 and C8: buffers sized from something smaller than the step."""
    dp2 = Topology(dp=2)
    sixteen = config(max_tokens=16)
    steps = (filling(dp2, 16), step(dp2, (16, 16), Layout.CROSS_DP))
    source = "SGLang #23999"
    yield accepted("BUF-04/graph-batch-at-dp2", dp2, steps, settings=sixteen, source=source, at={"n": 32})
    one = Topology()
    yield rejected(
        "BUF-04/unchunked-prefill",
        one,
        step(one, (8192,), Layout.FULL),
        step(one, (2048,), Layout.FULL),
        settings=config(max_tokens=2048, layers=1),
        source="SGLang #26860",
        before=(),
        at={"T": 8192},
    )


def ids() -> Iterator[Case]:
    """C10 and C11: ids that one byte does not hold, and a shared expert's column."""
    source = "prime-rl #3051, ms-swift #9981"
    kept: tuple[tuple[int, tuple[Row, ...]], ...] = (
        (256, ((255, 0), (1, 255))),
        (512, ((255, 256), (300, 511))),
    )
    for experts, rows in kept:
        settings = CaptureConfig(max_tokens=4, layers=1, top_k=2, experts=experts)
        steps = (given(rows, Layout.FULL),)
        yield accepted("SNP-02/kept", Topology(), steps, settings=settings, source=source, at={"E": experts})
    byte = CaptureConfig(max_tokens=4, layers=1, top_k=2, experts=256)
    right = given(((255, 0), (1, 2)), Layout.FULL)
    for wrong in (300, 256, -1):
        case = rejected(
            "IDS-02/no-wrap",
            Topology(),
            given(((255, 0), (1, wrong)), Layout.FULL),
            right,
            settings=byte,
            source=source,
            before=(right,),
            at={"E": 256, "id": wrong},
        )
        yield case.model_copy(update={"rules": ("IDS-02", "COL-01", "GAT-03")})
    shared = CaptureConfig(max_tokens=4, layers=1, top_k=6, experts=384, shared_columns=1)
    yield accepted(
        "BUF-09/shared-column",
        Topology(),
        (given(((343, 178, 114, 6, 141, 378, 384),), Layout.FULL),),
        ("IDS-04",),
        capabilities=("shared-columns",),
        settings=shared,
        source="SGLang #9499, #38963",
        at={"E": 384},
    )


FAMILIES = (
    tp_shards_at_dp1,
    accepted_sizes,
    other_shards,
    data_parallel,
    graph_extent,
    microbatches,
    capacity,
    ids,
)
