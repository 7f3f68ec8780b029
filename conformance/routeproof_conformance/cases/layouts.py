"""Families of the group LAY."""

from collections.abc import Iterator

from routeproof_spec import Call, Case, CaseStep, Layout, Topology

from routeproof_conformance.cases.build import (
    FEW_RANKS,
    MANY_RANKS,
    MAX_TOKENS,
    accepted,
    config,
    filling,
    rejected,
    step,
    topologies,
    unfit,
)

COUNTS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,), (9,), (11,), (13,), (24,)),
    2: (
        (1, 1),
        (0, 1),
        (1, 0),
        (1, 3),
        (3, 1),
        (2, 2),
        (5, 3),
        (3, 5),
        (4, 0),
        (0, 4),
        (7, 2),
        (6, 6),
        (1, 8),
    ),
    3: ((3, 5, 2), (1, 1, 1), (0, 4, 0), (2, 0, 7), (4, 4, 4), (1, 2, 6), (5, 1, 0)),
}
"""Odd, even, single, empty and unequal counts, by DP size."""

WHOLE = (Layout.FULL, Layout.CROSS_DP)


def _counts(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Give the counts of a DP size; every second one beyond 8 ranks, which take longest."""
    return COUNTS[topology.dp][:: 1 if topology.size <= MANY_RANKS else 2]


def _real(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Give fewer real tokens than physical ones: all but one, at least none."""
    return tuple(max(0, count - 1) for count in counts)


def _sized(
    topology: Topology, counts: tuple[int, ...], layout: Layout, *, padded: bool
) -> tuple[CaseStep, ...]:
    real = _real(counts) if padded else None
    return filling(topology), step(topology, counts, layout, real)


def own_rows() -> Iterator[Case]:
    """LAY-02 to LAY-05: every layout, all real or with graph padding, after a full step."""
    families = {
        Layout.FULL: ("LAY-02/full", ()),
        Layout.CROSS_DP: ("LAY-02/cross-dp", ("LAY-04",)),
        Layout.TP_SHARD: ("LAY-03/shards", ("BUF-01", "COL-06")),
        Layout.GATHERED_SHARDS: ("LAY-04/gathered-shards", ("LAY-03",)),
        Layout.PADDED_LOCAL: ("LAY-05/padded-local", ()),
    }
    for topology in topologies():
        for layout, (name, rules) in families.items():
            if layout is Layout.PADDED_LOCAL and topology.dp > 1:
                continue
            if layout in (Layout.CROSS_DP, Layout.GATHERED_SHARDS) and topology.dp == 1:
                continue
            for number, counts in enumerate(_counts(topology)):
                for padded in (False, True)[: 1 + (number % 2 or topology.size <= FEW_RANKS)]:
                    steps = _sized(topology, counts, layout, padded=padded)
                    yield accepted(name, topology, steps, rules, at={"T": counts, "padded": int(padded)})


def unfit_counts() -> Iterator[Case]:
    """LAY-01: every n that fits no layout, up to 3 past the largest; some of them on many ranks."""
    settings = config()
    for topology in topologies():
        few = topology.size > MANY_RANKS
        chosen = COUNTS[1][2:9:2] if topology.dp == 1 else _counts(topology)[2 : 3 if few else 4]
        for counts in chosen:
            right = step(topology, counts, Layout.FULL)
            for n in unfit(topology, counts, settings)[:: 3 if few else 1 + (topology.size > FEW_RANKS)]:
                calls = tuple(Call(layer=layer, n=n) for layer in range(settings.layers))
                wrong = step(topology, counts, Layout.FULL, calls=calls)
                yield rejected("LAY-01/unfit", topology, wrong, right, at={"T": counts, "n": n})


def coincidences() -> Iterator[Case]:
    """LAY-06: n fits several members of the set, harmlessly or not."""
    for topology in topologies(dp=(2, 3)):
        lone = tuple(6 if dp == topology.dp - 1 else 0 for dp in range(topology.dp))
        for layout in (Layout.CROSS_DP, Layout.FULL, Layout.GATHERED_SHARDS):
            steps = (filling(topology), step(topology, lone, layout))
            yield accepted("LAY-06/lone-dp-rank", topology, steps, at={"T": lone, "emitted": layout})
    for topology in topologies(tp=(2, 3, 4, 8)):
        ones = (1,) * topology.dp
        steps = (filling(topology), step(topology, ones, Layout.TP_SHARD))
        yield accepted("LAY-06/single-token-shard", topology, steps, at={"T": ones})
    ambiguous = config(layouts=frozenset({Layout.CROSS_DP, Layout.FULL, Layout.PADDED_LOCAL}))
    for tp, counts in ((2, (1, 1)), (3, (1, 2)), (4, (3, 5))):
        topology = Topology(tp=tp, dp=2)
        total = step(topology, counts, Layout.CROSS_DP)
        right = step(topology, counts, Layout.FULL)
        yield rejected(
            "LAY-06/ambiguous",
            topology,
            total,
            right,
            capabilities=("layout-sets",),
            settings=ambiguous,
            at={"T": counts},
        )


def masks() -> Iterator[Case]:
    """LAY-07: the padding mask at hand is a shard and no count; the twin has none."""
    for topology in topologies(tp=(2, 3, 4, 8)):
        for counts in COUNTS[topology.dp][3 : 5 if topology.size > MANY_RANKS else 7]:
            for layout in (Layout.TP_SHARD, Layout.FULL):
                sharded = step(topology, counts, layout, _real(counts), mask=True)
                steps = (filling(topology), sharded)
                case = accepted("LAY-07/mask", topology, steps, at={"T": counts, "emitted": layout})
                bare = (steps[0], sharded.model_copy(update={"mask": False}))
                twin = case.model_copy(update={"rules": ("LAY-07", "LAY-02"), "steps": bare})
                yield case.model_copy(update={"twin": twin})


def malformed_groups() -> Iterator[Case]:
    """LAY-08: shard sizes that form no groups, where n is read by them."""
    forms = {
        (2, 2): (
            ((5, 3), (3, 3, -2, 6), "negative"),
            ((5, 3), (4, 4, 2), "uneven"),
            ((5, 1), (3, 3, 1, 1, -1, 1), "negative"),
        ),
        (4, 2): (((5, 3), (2, 2, 2, 2, 1, 1, 1, 1, -3, 3), "negative"), ((5, 3), (4, 4, 4), "uneven")),
        (3, 2): (((4, 2), (2, 2, 2, 1, 1, -1, 2, 0), "negative"), ((4, 2), (9,), "uneven")),
        (2, 3): (((3, 5, 2), (4, 4, 2, 2), "uneven"), ((3, 5, 2), (2, 2, 3, 3, -2, 4), "negative")),
        (8, 2): (((5, 3), (1,) * 14 + (-1, 3), "negative"), ((5, 3), (4, 4, 8), "uneven")),
    }
    for (tp, dp), rows in forms.items():
        topology = Topology(tp=tp, dp=dp)
        for counts, malformed, what in rows:
            n = sum(malformed)
            calls = tuple(Call(layer=layer, n=n) for layer in range(2))
            wrong = step(topology, counts, Layout.GATHERED_SHARDS, shard_sizes=malformed, calls=calls)
            right = step(topology, counts, Layout.GATHERED_SHARDS)
            yield rejected(f"LAY-08/{what}", topology, wrong, right, at={"T": counts, "sizes": malformed})
            unread = step(topology, counts, Layout.FULL, shard_sizes=malformed)
            steps = (filling(topology), unread)
            yield accepted(
                f"LAY-02/{what}-sizes-unread", topology, steps, at={"T": counts, "sizes": malformed}
            )
    both = Topology(tp=2, dp=2)
    for counts, malformed in (((5, 3), (4, 4, -2, 2)), ((1, 2), (1, 1, 1))):
        total = step(both, counts, Layout.CROSS_DP, shard_sizes=malformed)
        at = {"T": counts, "sizes": malformed}
        yield accepted("LAY-06/total-before-sizes", both, (filling(both), total), ("LAY-04",), at=at)


def uncounted() -> Iterator[Case]:
    """LAY-09: no count is known."""
    for topology in topologies(tp=(1, 2, 4)):
        for n in (0, 1, 4, 7):
            steps = (
                filling(topology),
                CaseStep.model_validate(
                    {
                        "context": {"counts": None, "real": (n,) * topology.dp},
                        "emitted": Layout.UNCOUNTED,
                    }
                ),
            )
            yield accepted("LAY-09/uncounted", topology, steps, at={"n": n})


def declared() -> Iterator[Case]:
    """LAY-10: a declaration is obeyed, outside the set too, and rejected where n contradicts it."""
    need = ("declared-layouts",)
    for topology in topologies(tp=(2, 3, 4)):
        for counts in COUNTS[topology.dp][3:6]:
            for layout in Layout:
                if layout is Layout.UNCOUNTED or (layout is Layout.GATHERED_SHARDS and topology.dp == 1):
                    continue
                told = step(topology, counts, layout, declared=layout)
                steps = (filling(topology), told)
                more = {"T": counts, "layout": layout}
                yield accepted("LAY-10/obeyed", topology, steps, capabilities=need, at=more)
                if counts != COUNTS[topology.dp][3]:
                    continue
                calls = tuple(Call(layer=layer, n=3 * MAX_TOKENS + 1) for layer in range(2))
                wrong = step(topology, counts, layout, declared=layout, calls=calls)
                yield rejected("LAY-10/contradicted", topology, wrong, told, capabilities=need, at=more)


def empty() -> Iterator[Case]:
    """LAY-12: no token at all, or at one DP rank only."""
    for topology in topologies():
        for layout in (*WHOLE, Layout.TP_SHARD):
            none = (0,) * topology.dp
            steps = (filling(topology), step(topology, none, layout))
            yield accepted("LAY-12/empty", topology, steps, at={"T": none, "emitted": layout})
            if topology.dp > 1:
                one = (*none[1:], 3)
                steps = (filling(topology), step(topology, one, layout))
                yield accepted("LAY-12/empty-dp-rank", topology, steps, at={"T": one, "emitted": layout})


FAMILIES = (
    own_rows,
    unfit_counts,
    coincidences,
    masks,
    malformed_groups,
    uncounted,
    declared,
    empty,
)
