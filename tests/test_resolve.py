"""The layout decision of the reference over a box, against rows built from tokens.

The box: counts <= 4, dp <= 3, tp 1 to 4, n from 0 to 3 past the largest layout. The oracle
lays tokens out in plain lists, layout by layout, and looks where the own tokens are. Every
check takes the resolver, so that planted wrong ones show that it can fail.
"""

import inspect
from functools import cache
from itertools import combinations, product

import pytest
from routeproof_reference.resolve import Resolution, resolve
from routeproof_spec import PRECEDENCE, LayoutError, ShardGroupError, default_layouts

CROSS, FULL, GROUPS, TO_MAX, SHARD, LOCAL = PRECEDENCE
PAD = None
COLLISION_FREE = (CROSS, FULL, GROUPS, SHARD)


@cache
def box():
    """(counts, tp, d) for every DP rank."""
    return [
        (counts, tp, d)
        for dp in (1, 2, 3)
        for counts in product(range(5), repeat=dp)
        for tp in (1, 2, 3, 4)
        for d in range(dp)
    ]


# --- the oracle: tokens in lists


def cut(tokens, tp):
    """tp equal pieces of the smallest size that holds all tokens, the tail padded."""
    size = next(size for size in range(len(tokens) + 1) if size * tp >= len(tokens))
    padded = tokens + [PAD] * (size * tp - len(tokens))
    return [padded[t * size : (t + 1) * size] for t in range(tp)]


def flat(lists):
    return [row for rows in lists for row in rows]


@cache
def truth(counts):
    return [[(e, i) for i in range(count)] for e, count in enumerate(counts)]


@cache
def sizes_of(counts, tp):
    return tuple(len(shard) for tokens in truth(counts) for shard in cut(tokens, tp))


@cache
def lay(layout, counts, tp, d):
    """The rows that each TP rank of DP rank d hands over."""
    tokens = truth(counts)
    if layout is SHARD:
        return cut(tokens[d], tp)
    rows = {
        CROSS: lambda: flat(tokens),
        FULL: lambda: tokens[d],
        GROUPS: lambda: flat(shard for own in tokens for shard in cut(own, tp)),
        TO_MAX: lambda: flat([*own, *[PAD] * (max(counts) - len(own))] for own in tokens),
        LOCAL: lambda: flat(cut(tokens[d], tp)),
    }[layout]()
    return [rows] * tp


@cache
def reading(layout, counts, tp, d):
    """Where the own rows are at the publisher: (first row, whether they must be gathered)."""
    own, rows = truth(counts)[d], lay(layout, counts, tp, d)
    for gather, source in ((False, rows[0]), (True, flat(rows))):
        for start in range(len(source) - len(own) + 1):
            if source[start : start + len(own)] == own:
                return start, gather
    raise AssertionError("an own token is nowhere")


@cache
def rows_of(layout, counts, tp, d):
    return len(lay(layout, counts, tp, d)[0])


@cache
def largest(counts, tp, d):
    return max(rows_of(layout, counts, tp, d) for layout in PRECEDENCE)


# --- the code under test


@cache
def arguments(counts, tp, d, sizes):
    dp, group = len(counts), len(sizes) // len(counts) if sizes is not None else 0
    sizes_known = sizes or ()
    return {
        "own": counts[d],
        "before": sum(counts[:d]),
        "total": sum(counts),
        "largest": max(counts),
        "dp_rank": d,
        "dp": dp,
        "tp": tp,
        "has_sizes": sizes is not None,
        "sizes_formed": sizes is not None and len(sizes) == group * dp and all(x >= 0 for x in sizes),
        "sizes_before": sum(sizes_known[: d * group]),
        "sizes_own": sum(sizes_known[d * group : (d + 1) * group]),
        "sizes_total": sum(sizes_known),
    }


@cache
def members(layouts):
    return {layout.value.lower(): layout in layouts for layout in PRECEDENCE}


def ask(resolver, n, at, layouts, sizes="made"):
    counts, tp, d = at
    given = sizes_of(counts, tp) if sizes == "made" else sizes
    return resolver(n=n, **arguments(counts, tp, d, given), **members(layouts))


def outcome(resolver, n, at, layouts, sizes="made"):
    try:
        return ask(resolver, n, at, layouts, sizes)
    except LayoutError:
        return LayoutError
    except ShardGroupError:
        return ShardGroupError


def restored(found, rows, count, rank=0):
    """What a TP rank takes for its own rows."""
    source = flat(rows) if found.gather else rows[rank]
    return source[found.start : found.start + count]


def default(at):
    return default_layouts(len(at[0]))


# --- the checks


def check_own_rows(resolver, layouts_at=default):
    """A producer in contract: its own rows are restored, by a gather only where it is needed."""
    for at in box():
        own = truth(at[0])[at[2]]
        for layout in layouts_at(at):
            rows = lay(layout, *at)
            assert {len(handed) for handed in rows} == {rows_of(layout, *at)}
            found = ask(resolver, len(rows[0]), at, layouts_at(at))
            assert restored(found, rows, len(own)) == own, (layout, at)
            assert found.gather == reading(layout, *at)[1], (layout, at)
            assert len(own) > 1 or not found.gather


def check_alone(resolver):
    """A layout that is alone in its set, as a declared one is: obeyed at its n, refused at any other."""
    for at in box():
        own = truth(at[0])[at[2]]
        for layout in PRECEDENCE:
            size = rows_of(layout, *at)
            for n in range(largest(*at) + 4):
                found = outcome(resolver, n, at, frozenset({layout}))
                if n != size:
                    assert found is LayoutError, (n, layout, at)
                    continue
                assert found is not LayoutError, (n, layout, at)
                assert found.layout is layout
                assert restored(found, lay(layout, *at), len(own)) == own, (layout, at)
                assert found.gather == reading(layout, *at)[1], (layout, at)


def check_every_n(resolver, layouts_at=default, sizes="made"):
    """The first layout that fits, unless two that fit put the own rows elsewhere, or none fits."""
    for at in box():
        own = at[0][at[2]]
        usable = [x for x in PRECEDENCE if x in layouts_at(at) and (sizes or x is not GROUPS)]
        for n in range(largest(*at) + 4):
            fitting = [layout for layout in usable if rows_of(layout, *at) == n]
            readings = {reading(layout, *at) for layout in fitting}
            found = outcome(resolver, n, at, layouts_at(at), sizes)
            if not fitting or (own > 0 and len(readings) > 1):
                assert found is LayoutError, (n, at, found)
            else:
                assert found is not LayoutError, (n, at)
                assert found.layout is fitting[0], (n, at)


def check_malformed(resolver):
    """Malformed shard sizes are refused where n is read by them, and change nothing elsewhere."""
    for at in box():
        counts, tp, d = at
        made = sizes_of(counts, tp)
        forms = [(*made, -1, 1), (sum(made) + 2,), (*made[:-1], made[-1] + 3, -1)]
        forms += [(-1, *made[1:]), (0,) * len(made)]
        for sizes in forms:
            uneven = len(sizes) % len(counts) != 0
            group = len(sizes) // len(counts)
            short = sum(sizes[d * group : (d + 1) * group]) < counts[d]
            if not (uneven or min(sizes) < 0 or short):
                continue
            for n in range(largest(*at) + 4):
                found = outcome(resolver, n, at, default(at), sizes)
                if n == sum(sizes) and n not in (sum(counts), counts[d]):
                    assert found is ShardGroupError, (n, at, sizes)
                else:
                    assert found == outcome(resolver, n, at, default(at), None), (n, at, sizes)


CHECKS = {
    "own rows": check_own_rows,
    "alone": check_alone,
    "every n": check_every_n,
    "malformed": check_malformed,
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_resolver_over_the_box(name):
    CHECKS[name](resolve)


def test_every_n_without_sizes_and_with_all_layouts():
    check_every_n(resolve, sizes=None)
    check_every_n(resolve, layouts_at=lambda _: frozenset(PRECEDENCE))


def test_lockstep_the_tp_rank_is_no_argument():
    own = {*arguments((1,), 1, 0, None), *members(frozenset()), "n"}
    assert set(inspect.signature(resolve).parameters) == own
    assert "tp_rank" not in own
    assert inspect.getclosurevars(resolve).nonlocals == {}
    at = ((5, 3), 2, 1)
    assert ask(resolve, 10, at, default(at)) == Resolution(GROUPS, 6, gather=False)


# --- collisions: two layouts with as many rows


def harmful(a, b):
    """Points of the box where a and b have as many rows and put the own rows elsewhere."""
    return {
        at
        for at in box()
        if rows_of(a, *at) == rows_of(b, *at) and at[0][at[2]] > 0 and reading(a, *at) != reading(b, *at)
    }


def padded(counts, tp):
    return [-(-count // tp) * tp for count in counts]


def local_and_cross(counts, tp, d):
    own, before = counts[d], sum(counts[:d])
    return own > 0 and before > 0 and sum(counts) - own == padded(counts, tp)[d] - own


def groups_and_max(counts, tp, d):
    blocks = padded(counts, tp)
    return counts[d] > 0 and sum(blocks) == len(counts) * max(counts) and sum(blocks[:d]) != d * max(counts)


def local_and_max(counts, tp, d):
    return counts[d] > 0 and d > 0 and padded(counts, tp)[d] == len(counts) * max(counts)


HARMFUL = {
    frozenset({LOCAL, CROSS}): (local_and_cross, ((1, 1), 2, 1)),
    frozenset({GROUPS, TO_MAX}): (groups_and_max, ((0, 1), 2, 1)),
    frozenset({LOCAL, TO_MAX}): (local_and_max, ((0, 1), 2, 1)),
}
"""The pairs that collide harmfully at the publisher: exactly when, and the smallest instance."""


def check_pair(a, b, condition):
    assert harmful(a, b) == {at for at in box() if condition(*at)}


@pytest.mark.parametrize(("a", "b"), list(combinations(PRECEDENCE, 2)))
def test_pairs_collide_harmfully_exactly_when(a, b):
    condition, smallest = HARMFUL.get(frozenset({a, b}), (lambda *_: False, None))
    check_pair(a, b, condition)
    found = harmful(a, b)
    assert {len(counts) for counts, _, _ in found} <= {2, 3}
    assert smallest == min(found, key=lambda at: (sum(at[0]), len(at[0]), at[1], at[2]), default=None)
    assert not found or not {a, b} <= set(COLLISION_FREE)
    for at in box():
        if rows_of(a, *at) == rows_of(b, *at):
            got = outcome(resolve, rows_of(a, *at), at, frozenset({a, b}))
            assert (got is LayoutError) == (at in found), at


def test_the_conditions_can_be_refuted():
    with pytest.raises(AssertionError):
        check_pair(LOCAL, CROSS, lambda counts, tp, d: sum(counts) == padded(counts, tp)[d])
    with pytest.raises(AssertionError):
        check_pair(GROUPS, TO_MAX, lambda counts, tp, d: groups_and_max(counts, tp, d) and d > 1)
    with pytest.raises(AssertionError):
        check_pair(LOCAL, TO_MAX, lambda counts, tp, d: padded(counts, tp)[d] == len(counts) * max(counts))
    with pytest.raises(AssertionError):
        check_pair(CROSS, GROUPS, lambda counts, _, d: counts[d] > 0 and d > 0)


def test_other_tp_ranks_are_wrong_for_the_shard_of_one_token_alone():
    for at in box():
        counts, tp, d = at
        for layout in COLLISION_FREE:
            rows = lay(layout, *at)
            found = ask(resolve, len(rows[0]), at, default(at))
            for rank in range(1, tp):
                right = restored(found, rows, counts[d], rank) == truth(counts)[d]
                assert right == (not (layout is SHARD and counts[d] == 1)), (layout, at, rank)


def test_uneven_shards_are_rejected_or_whole_and_break_lockstep():
    for at in box():
        counts, tp, d = at
        own, base, more = counts[d], counts[d] // tp, counts[d] % tp
        found = [outcome(resolve, base + (rank < more), at, default(at)) for rank in range(tp)]
        gathers = {got is not LayoutError and got.gather for got in found}
        raised = {got is LayoutError for got in found}
        assert (gathers == {True, False} and raised == {True, False}) == (own > 1 and more > 0), at
        if own == 1 and tp > 1 and sum(counts) > 0:
            assert gathers == {False}
        if found[0] is not LayoutError and gathers == {False} and own:
            assert restored(found[0], lay(FULL, *at), own) == truth(counts)[d]


def test_counts_that_are_not_physical_are_silently_wrong():
    told, physical = ((1, 3), 1, 1), ((1, 4), 1, 1)
    found = ask(resolve, rows_of(FULL, *physical), told, default(told))
    assert found == Resolution(CROSS, 1, gather=False)
    assert restored(found, lay(FULL, *physical), 3) == [(1, 1), (1, 2), (1, 3)]


def test_padded_local_undeclared_at_dp_is_read_as_cross_dp():
    at = ((1, 3), 2, 1)
    assert rows_of(LOCAL, *at) == 4
    assert ask(resolve, 4, at, default(at)) == Resolution(CROSS, 1, gather=False)
    assert ask(resolve, 4, at, frozenset({LOCAL})) == Resolution(LOCAL, 0, gather=False)


# --- negative controls: wrong resolvers

MUTANTS = {
    "cross-dp from the start": ("Layout.CROSS_DP, before,", "Layout.CROSS_DP, 0,", "own rows"),
    "groups after tokens": ("GATHERED_SHARDS, sizes_before,", "GATHERED_SHARDS, before,", "own rows"),
    "blocks after tokens": ("PADDED_TO_MAX, dp_rank * largest,", "PADDED_TO_MAX, before,", "alone"),
    "never a gather": ("gather=own > 1 and tp > 1", "gather=False", "own rows"),
    "a gather for one token": ("gather=own > 1 and tp > 1", "gather=tp > 1", "alone"),
    "a gather on one rank": ("gather=own > 1 and tp > 1", "gather=own > 1", "alone"),
    "shards rounded down": ("s = shard_rows(own, tp)", "s = own // tp", "own rows"),
    "full before cross-dp": ("is_cross = cross_dp and", "is_cross = cross_dp and n != own and", "every n"),
    "collisions taken": ("if harmful:", "if False:", None),
    "collisions refused if empty": ("harmful = own > 0 and (", "harmful = True and (", None),
    "anything else passes": ("    else:\n        raise LayoutError(", "", "every n"),
    "groups unchecked": ("if not usable:", "if False:", "malformed"),
    "short groups unchecked": ("sizes_formed and sizes_own >= own", "sizes_formed", "malformed"),
    "groups checked unread": (
        "    if is_cross:",
        "    if has_sizes and not usable: raise ShardGroupError(n)\n    if is_cross:",
        "malformed",
    ),
    "sizes without sizes": ("gathered_shards and has_sizes and", "gathered_shards and", "malformed"),
    "shards outside the set": ("is_shard = tp_shard and", "is_shard = ", "alone"),
}


def mutated(old, new):
    source = inspect.getsource(resolve)
    assert source.count(old) == 1, f"the text {old!r} is gone: write the mutant anew"
    new = (
        new
        or "    else:\n        return Resolution(Layout.FULL, 0, gather=False)\n        raise LayoutError("
    )
    scope = dict(vars(inspect.getmodule(resolve)))
    exec(compile(source.replace(old, new), "mutant", "exec"), scope)  # noqa: S102
    return scope["resolve"]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_resolver_is_refuted(name):
    old, new, check = MUTANTS[name]
    wrong = mutated(old, new)
    refute = CHECKS.get(check, lambda it: check_every_n(it, layouts_at=lambda _: frozenset(PRECEDENCE)))
    with pytest.raises((AssertionError, LayoutError, ShardGroupError)):
        refute(wrong)


def test_padded_local_in_the_set_at_dp_is_refuted():
    with pytest.raises(LayoutError, match="must be declared"):
        check_own_rows(resolve, layouts_at=lambda at: default(at) | {LOCAL})
