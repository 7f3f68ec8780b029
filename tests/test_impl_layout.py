"""The layout decision of the implementation, against rows built by hand."""

import inspect
from itertools import chain, combinations, product

import pytest
from routeproof_impl import layout as plain
from routeproof_impl.figures import CODES, decide, figures_of
from routeproof_spec import PRECEDENCE, Layout, LayoutError, Rank, ShardGroupError, Topology, default_layouts

PAD = "pad"
SETS = [frozenset(c) for c in chain.from_iterable(combinations(PRECEDENCE, k) for k in range(7))]


def figures(counts, tp, d, sizes=None):
    topology = Topology(tp=tp, dp=1 if counts is None else len(counts))
    return figures_of(counts, sizes, Rank(topology=topology, dp=d, tp=0))


def plan(n, counts, tp, d, *, sizes=None, declared=None, layouts=None):
    chosen = default_layouts(1 if counts is None else len(counts)) if layouts is None else frozenset(layouts)
    return decide(n, figures(counts, tp, d, sizes), declared, chosen)


def reading(*args, **kwargs):
    """The plan as (layout, start, stop, gather)."""
    got = plan(*args, **kwargs)
    return Layout(plain_name(got.layout)), got.start, got.start + got.length, got.gather


def plain_name(code):
    return next(layout for layout, value in CODES.items() if value == code)


# --- an oracle by construction: rows are tokens, nothing is computed from formulas of the code under test


def flat(lists):
    return [row for rows in lists for row in rows]


def shards(tokens, tp):
    """Cut into tp equal pieces of the smallest possible size, the tail padded."""
    size = 0
    while size * tp < len(tokens):
        size += 1
    padded = tokens + [PAD] * (size * tp - len(tokens))
    return [padded[t * size : (t + 1) * size] for t in range(tp)]


def handed(layout, counts, tp, d):
    """The rows that each TP rank of DP rank d hands over."""
    tokens = [[(e, i) for i in range(count)] for e, count in enumerate(counts)]
    if layout == Layout.TP_SHARD:
        return shards(tokens[d], tp)
    if layout == Layout.CROSS_DP:
        rows = flat(tokens)
    elif layout == Layout.FULL:
        rows = tokens[d]
    elif layout == Layout.GATHERED_SHARDS:
        rows = [row for own in tokens for shard in shards(own, tp) for row in shard]
    elif layout == Layout.PADDED_TO_MAX:
        rows = [row for own in tokens for row in own + [PAD] * (max(counts) - len(own))]
    else:
        rows = flat(shards(tokens[d], tp))
    return [rows] * tp


def positions(rows, own):
    """Where the own tokens are in the publisher's rows; None: not all of them are there."""
    return tuple(rows.index(token) for token in own) if set(own) <= set(rows) else None


def shard_sizes(counts, tp):
    return tuple(len(s) for e, c in enumerate(counts) for s in shards([(e, i) for i in range(c)], tp))


def check(counts, tp, d, layouts, *, sized):
    """Every n up to beyond the largest layout: refused, or the own rows, as the construction says."""
    own = [(d, i) for i in range(counts[d])]
    built = {layout: handed(layout, counts, tp, d) for layout in PRECEDENCE}
    sizes = shard_sizes(counts, tp) if sized else None
    facts = figures(counts, tp, d, sizes)
    usable = [x for x in PRECEDENCE if x in layouts and (sized or x != Layout.GATHERED_SHARDS)]
    for n in range(max(len(rows[0]) for rows in built.values()) + 2):
        fits = [layout for layout in usable if len(built[layout][0]) == n]
        readings = {positions(built[layout][0], own) for layout in fits}
        where = (n, counts, tp, d, sorted(layouts), sized)
        if not fits or (own and len(readings) > 1):
            with pytest.raises(LayoutError):
                decide(n, facts, None, layouts)
            continue
        got = decide(n, facts, None, layouts)
        assert plain_name(got.layout) == fits[0], where
        rows = built[fits[0]]
        assert got.gather == (positions(rows[0], own) is None), where
        source = flat(rows) if got.gather else rows[0]
        assert source[got.start : got.start + got.length] == own, where


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
@pytest.mark.parametrize("dp", [1, 2])
def test_every_set_and_every_n_in_a_box(dp, tp):
    for counts in product(range(4), repeat=dp):
        for d, layouts, sized in product(range(dp), SETS, [False, True]):
            check(counts, tp, d, layouts, sized=sized)


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_three_dp_ranks_in_a_box(tp):
    for counts in product(range(4), repeat=3):
        for d, layouts in product(range(3), [default_layouts(3), frozenset(PRECEDENCE)]):
            check(counts, tp, d, layouts, sized=True)


@pytest.mark.parametrize("tp", range(1, 9))
def test_larger_counts_at_one_dp_rank(tp):
    for count in range(20):
        check((count,), tp, 0, default_layouts(1), sized=False)


@pytest.mark.parametrize("layout", PRECEDENCE)
@pytest.mark.parametrize("tp", [1, 2, 3])
def test_declared_is_obeyed_at_its_n_alone(layout, tp):
    for counts in product(range(4), repeat=2):
        for d in range(2):
            rows = handed(layout, counts, tp, d)
            own = [(d, i) for i in range(counts[d])]
            given = {"sizes": shard_sizes(counts, tp), "declared": layout, "layouts": {Layout.CROSS_DP}}
            got = plan(len(rows[0]), counts, tp, d, **given)
            source = flat(rows) if got.gather else rows[0]
            assert source[got.start : got.start + got.length] == own
            assert got.gather == (positions(rows[0], own) is None)
            for n in (len(rows[0]) + 1, *range(len(rows[0]))):
                with pytest.raises(
                    LayoutError, match=f"{n} rows .* declared {layout}: it has {len(rows[0])}"
                ):
                    plan(n, counts, tp, d, **given)


# --- worked numbers


@pytest.mark.parametrize(
    ("tp", "count", "accepted"), [(2, 3, {2, 3, 4}), (2, 5, {3, 5, 6}), (2, 6, {3, 6}), (4, 2, {1, 2, 4})]
)
def test_accepted_n(tp, count, accepted):
    for n in range(3 * count * tp):
        if n in accepted:
            got = plan(n, (count,), tp, 0)
            assert (got.start, got.length) == (0, count)
            continue
        with pytest.raises(LayoutError, match=f"{n} rows .*FULL: {count}"):
            plan(n, (count,), tp, 0)


@pytest.mark.parametrize(("count", "n"), [(3, 4), (5, 6)])
def test_gathered_and_padded_already(count, n):
    assert reading(n, (count,), 2, 0) == (Layout.PADDED_LOCAL, 0, count, False)


def test_three_dp_ranks_by_total_by_largest_and_own():
    counts = (3, 5, 2)
    assert [reading(10, counts, 1, d)[:3] for d in range(3)] == [
        (Layout.CROSS_DP, 0, 3),
        (Layout.CROSS_DP, 3, 8),
        (Layout.CROSS_DP, 8, 10),
    ]
    padded = {"layouts": default_layouts(3) | {Layout.PADDED_TO_MAX}}
    assert [reading(15, counts, 1, d, **padded)[1:3] for d in range(3)] == [(0, 3), (5, 10), (10, 12)]
    for d, own in enumerate(counts):
        assert reading(own, counts, 1, d) == (Layout.FULL, 0, own, False)
        for n in (11, 15):
            with pytest.raises(LayoutError, match=f"{n} rows"):
                plan(n, counts, 1, d)


def test_shard_groups():
    at = {"sizes": (3, 3, 2, 2)}
    assert reading(10, (5, 3), 2, 0, **at) == (Layout.GATHERED_SHARDS, 0, 5, False)
    assert reading(10, (5, 3), 2, 1, **at) == (Layout.GATHERED_SHARDS, 6, 9, False)


def test_shard_groups_against_padding_to_the_largest():
    at = {"sizes": (3, 3, 2, 2), "layouts": {Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX}}
    with pytest.raises(LayoutError, match="GATHERED_SHARDS: 10, PADDED_TO_MAX: 10"):
        plan(10, (5, 3), 2, 1, **at)
    assert reading(10, (5, 3), 2, 1, declared=Layout.PADDED_TO_MAX, **at)[1:3] == (5, 8)
    assert reading(10, (5, 3), 2, 1, declared=Layout.GATHERED_SHARDS, **at)[1:3] == (6, 9)
    assert reading(10, (5, 3), 2, 0, **at)[1:3] == (0, 5)


def test_padded_local_at_two_dp_ranks():
    assert reading(4, (1, 3), 2, 1, declared=Layout.PADDED_LOCAL) == (Layout.PADDED_LOCAL, 0, 3, False)
    assert reading(4, (1, 3), 2, 1) == (Layout.CROSS_DP, 1, 4, False)
    with pytest.raises(LayoutError):
        plan(4, (1, 3), 2, 1, layouts=PRECEDENCE)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 5, -1, 3), (2, 2, 4, 2), (10,)])
def test_bad_groups_matter_only_where_read(sizes):
    counts = (5, 3)
    total = sum(sizes)
    if total not in {8, 5}:
        with pytest.raises(ShardGroupError):
            plan(total, counts, 2, 0, sizes=sizes)
    for n, error in ((0, LayoutError), (total, ShardGroupError)):
        with pytest.raises(error):
            plan(n, counts, 2, 0, sizes=sizes, declared=Layout.GATHERED_SHARDS)
    assert reading(8, counts, 2, 0, sizes=sizes)[0] == Layout.CROSS_DP
    assert reading(5, counts, 2, 0, sizes=sizes)[0] == Layout.FULL
    assert reading(3, counts, 2, 0, sizes=sizes, layouts={Layout.TP_SHARD})[3]


def test_bad_groups_that_match_but_are_not_picked():
    at = {"sizes": (3, 4, -1), "layouts": {Layout.FULL, Layout.GATHERED_SHARDS, Layout.CROSS_DP}}
    assert reading(6, (3, 3), 2, 1, **at) == (Layout.CROSS_DP, 3, 6, False)
    with pytest.raises(LayoutError):  # well formed, and another slice
        plan(6, (3, 3), 2, 1, sizes=(2, 0, 2, 2), layouts=at["layouts"])


def test_shard_groups_without_sizes():
    with pytest.raises(LayoutError, match="no shard sizes"):
        plan(10, (5, 3), 2, 0, declared=Layout.GATHERED_SHARDS)
    with pytest.raises(LayoutError):
        plan(10, (5, 3), 2, 0)


def test_uncounted():
    for declared in (None, Layout.UNCOUNTED):
        assert reading(7, None, 2, 0, declared=declared) == (Layout.UNCOUNTED, 0, 7, False)
    with pytest.raises(LayoutError, match="no counts"):
        plan(7, None, 2, 0, declared=Layout.FULL)
    with pytest.raises(LayoutError, match="has counts"):
        plan(7, (7,), 2, 0, declared=Layout.UNCOUNTED)


@pytest.mark.parametrize(("tp", "count"), [(2, 1), (4, 1), (1, 5), (3, 0)])
def test_no_gather_where_a_shard_holds_all(tp, count):
    n = count if tp == 1 else min(count, 1)
    assert reading(n, (count,), tp, 0, declared=Layout.TP_SHARD) == (Layout.TP_SHARD, 0, count, False)
    assert reading(n, (count,), tp, 0, layouts={Layout.TP_SHARD}) == (Layout.TP_SHARD, 0, count, False)


def test_the_empty_set_fits_nothing():
    with pytest.raises(LayoutError, match="empty"):
        plan(3, (3,), 1, 0, layouts=())


def test_locate_takes_flat_integers_and_booleans():
    kinds = {p.annotation for p in inspect.signature(plain.locate).parameters.values()}
    assert kinds == {int, bool}
    names = {
        node.split()[1]
        for node in inspect.getsource(plain).splitlines()
        if node.startswith(("import", "from"))
    }
    assert names == {"typing"}
