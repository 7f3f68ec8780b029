"""Families in which every step has one layout, for engines that are started for a layout.

The other families fill the buffer with FULL steps first, which an engine that gathers all DP
ranks' tokens, or shards every step, never emits.
"""

from collections.abc import Iterator

from routeproof_spec import Call, Case, CaseStep, Layout, Topology

from routeproof_conformance.cases.build import (
    LAYERS,
    MAX_TOKENS,
    accepted,
    config,
    rejected,
    step,
    topologies,
    unfit,
)

COUNTS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (2,), (5,), (6,), (13,)),
    2: ((1, 1), (5, 3), (0, 4), (7, 2)),
    3: ((3, 5, 2), (1, 0, 6)),
}
"""Odd, even, single, empty and unequal counts, by DP size."""


def _deployments() -> Iterator[tuple[Topology, Layout]]:
    """Give the topologies and layouts in which rows are not simply the own rows."""
    for topology in topologies(tp=(1, 2, 4)):
        if topology.dp > 1:
            yield topology, Layout.CROSS_DP
        if topology.tp > 1:
            yield topology, Layout.TP_SHARD
        if topology.tp == 2 and topology.dp > 1:  # noqa: PLR2004
            yield topology, Layout.GATHERED_SHARDS


def _full(topology: Topology, layout: Layout, rows: int = MAX_TOKENS) -> CaseStep:
    """Give a step of full size in this layout."""
    return step(topology, (rows,) * topology.dp, layout)


def own_rows() -> Iterator[Case]:
    """LAY-02: all real, or with padding; also where every DP rank has as many rows."""
    for topology, layout in _deployments():
        rules = ("LAY-04", "IDS-05") if layout is Layout.CROSS_DP else ("LAY-03", "COL-04", "COL-06")
        for counts in COUNTS[topology.dp]:
            for padded in (False, True):
                real = tuple(max(0, count - 1) for count in counts) if padded else counts
                steps = (_full(topology, layout), step(topology, counts, layout, real))
                at = {"T": counts, "padded": int(padded), "emitted": layout}
                yield accepted("LAY-02/throughout", topology, steps, rules, at=at)
        real = (5, 8, 0)[: topology.dp]
        slots = step(topology, (8,) * topology.dp, layout, real)
        at = {"R": real, "emitted": layout}
        yield accepted("LAY-05/graph-slots", topology, (_full(topology, layout), slots), rules, at=at)
        turns = [tuple(max(0, size - dp) for dp in range(topology.dp)) for size in (13, 6, 5)]
        smaller = (_full(topology, layout), *(step(topology, counts, layout) for counts in turns))
        yield accepted("BUF-01/throughout", topology, smaller, rules, at={"emitted": layout})
        steps = (_full(topology, layout), step(topology, (0,) * topology.dp, layout))
        name = "LAY-12/throughout" if layout is Layout.CROSS_DP else "LAY-02/empty-throughout"
        yield accepted(name, topology, steps, at={"emitted": layout})
        odd = step(topology, COUNTS[topology.dp][-1], layout, strided=True)
        at = {"strided": 1, "emitted": layout}
        yield accepted("COL-06/throughout", topology, (_full(topology, layout), odd), at=at)


def decode_graph_slots() -> Iterator[Case]:
    """C6: four DP ranks' tokens in one batch, eager; then in a graph of 32 rows a rank."""
    real = (11, 13, 17, 19)
    for tp in (1, 2):
        topology = Topology(tp=tp, dp=4)
        eager = step(topology, real, Layout.CROSS_DP)
        graph = step(topology, (32,) * 4, Layout.CROSS_DP, real)
        steps = (_full(topology, Layout.CROSS_DP, 32), eager, graph)
        yield accepted(
            "LAY-02/graph-after-eager",
            topology,
            steps,
            ("LAY-04",),
            settings=config(max_tokens=32),
            source="SGLang #30712",
            at={"R": real, "extent": 32},
        )


def wrong_calls() -> Iterator[Case]:
    """LAY-01, BUF-03, BUF-04 and BUF-09, between steps of one layout."""
    settings = config()
    for topology, layout in _deployments():
        if topology.tp > 2 or layout is Layout.GATHERED_SHARDS:  # noqa: PLR2004
            continue
        counts = {1: (5,), 2: (5, 3), 3: (3, 5, 2)}[topology.dp]
        right = step(topology, counts, layout)
        before = (_full(topology, layout),)
        for n in unfit(topology, counts, settings)[::2]:
            calls = tuple(Call(layer=layer, n=n) for layer in range(LAYERS))
            wrong = step(topology, counts, layout, calls=calls)
            at = {"T": counts, "n": n, "emitted": layout}
            yield rejected("LAY-01/throughout", topology, wrong, right, before=before, at=at)
        for layer in (-1, LAYERS):
            wrong = step(topology, counts, layout, calls=(Call(layer=layer),))
            at = {"T": counts, "layer": layer, "emitted": layout}
            yield rejected("BUF-03/throughout", topology, wrong, right, before=before, at=at)
        for width in (1, 7, 9):
            wrong = step(topology, counts, layout, calls=(Call(layer=0, width=width),))
            at = {"T": counts, "width": width, "emitted": layout}
            yield rejected("BUF-09/throughout", topology, wrong, right, before=before, at=at)
        wrong = _full(topology, layout, 2 * MAX_TOKENS)
        at = {"T": 2 * MAX_TOKENS, "emitted": layout}
        yield rejected("BUF-04/throughout", topology, wrong, before[0], before=before, at=at)


def shared_columns() -> Iterator[Case]:
    """BUF-09: shared-expert columns, in a batch of all DP ranks and in shards."""
    for topology, layout in _deployments():
        if layout is Layout.GATHERED_SHARDS:
            continue
        counts = COUNTS[topology.dp][1]
        steps = (_full(topology, layout), step(topology, counts, layout))
        yield accepted(
            "BUF-09/shared-throughout",
            topology,
            steps,
            capabilities=("shared-columns",),
            settings=config(shared_columns=1),
            at={"T": counts, "emitted": layout},
        )


FAMILIES = (own_rows, decode_graph_slots, wrong_calls, shared_columns)
