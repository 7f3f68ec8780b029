"""What has to hold of a decision, in formulas that ints, Z3 terms and arrays of cases share.

A formula is built with & | ^ and comparisons only, so that nothing here forks or loops over
cases. A claim gives pairs (part, assumption, conclusion); each assumption must be satisfiable.

Geometry: a layout puts the own rows at `base` among the n rows handed over (TP_SHARD: among
the gathered rows). Rows are distinct, so a decision restores them just if it starts there.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from routeproof_spec import PRECEDENCE, Layout

from routeproof_reference.proofs.target import (
    Decision,
    Figures,
    Members,
    Number,
    Outcome,
    Truth,
    members_of,
)


class Situation(NamedTuple):
    """Everything that a claim may speak of."""

    f: Figures
    s: Number
    """ceil(own / tp), defined apart from the code under examination."""
    t: Number
    """TP rank."""
    members: Members
    declared: Layout | None = None


Part = tuple[str, Truth, Truth]
"""Name, assumption, conclusion."""

Claim = Callable[[Situation, Decision], Iterator[Part]]


def all_of(terms: Iterable[Truth]) -> Truth:
    """Join by and."""
    return reduce(and_, terms, True)


def any_of(terms: Iterable[Truth]) -> Truth:
    """Join by or."""
    return reduce(or_, terms, False)


def negate(term: Truth) -> Truth:
    """Say not."""
    return term ^ True


def rows_of(layout: Layout, at: Situation) -> Number:
    """Give the n of a layout."""
    f = at.f
    return {
        Layout.CROSS_DP: f.total,
        Layout.FULL: f.own,
        Layout.GATHERED_SHARDS: f.sizes_total,
        Layout.PADDED_TO_MAX: f.dp * f.largest,
        Layout.TP_SHARD: at.s,
        Layout.PADDED_LOCAL: at.s * f.tp,
    }[layout]


def base_of(layout: Layout, at: Situation) -> Number:
    """Give where the own rows begin."""
    f = at.f
    placed = {
        Layout.CROSS_DP: f.before,
        Layout.GATHERED_SHARDS: f.sizes_before,
        Layout.PADDED_TO_MAX: f.dp_rank * f.largest,
    }
    return placed.get(layout, 0)


def fits(layout: Layout, at: Situation) -> Truth:
    """Whether n is the n of a layout, and the layout can be known."""
    found = at.f.n == rows_of(layout, at)
    return found & at.f.has_sizes if layout is Layout.GATHERED_SHARDS else found


def usable(f: Figures) -> Truth:
    """Whether the shard sizes form groups, and the own one holds the own rows (LAY-08)."""
    return f.formed & (f.sizes_own >= f.own)


def told_right(f: Figures) -> Truth:
    """Whether nothing is wrong with the shard sizes: unknown, or usable."""
    return negate(f.has_sizes) | usable(f)


def in_set(at: Situation) -> Iterator[tuple[Layout, Truth]]:
    """Give the layouts with whether the set has each; those surely outside are left out."""
    for layout, member in zip(PRECEDENCE, at.members, strict=True):
        if member is not False:
            yield layout, member


def right(layout: Layout, at: Situation, decision: Decision) -> Truth:
    """Whether a decision, for rows emitted in `layout`, gives the own rows, and no others, at TP rank t."""
    f = at.f
    if decision.outcome is not Outcome.ROWS:
        return False
    if layout is Layout.TP_SHARD:
        local = (at.t * at.s + decision.start == 0) & (decision.start == 0) & (f.own <= f.n)
        rows = (decision.gather & (decision.start == 0)) | (negate(decision.gather) & local)
    else:
        rows = (decision.start == base_of(layout, at)) & (decision.start + f.own <= f.n)
    return (decision.length == f.own) & ((f.own == 0) | rows)


def accepted(decision: Decision) -> bool:
    """Whether it is no rejection."""
    return decision.outcome is Outcome.ROWS


def gathers(decision: Decision) -> Truth:
    """Whether it issues a gather, used or not."""
    return decision.gather | (decision.gathers > 0)


def own_rows(at: Situation, decision: Decision) -> Iterator[Part]:
    """LAY-02 to LAY-05: every layout of the set is restored at the publisher."""
    publisher = at._replace(t=0)
    for layout, member in in_set(at):
        yield layout, member & fits(layout, at) & told_right(at.f), right(layout, publisher, decision)


def other_ranks(at: Situation, decision: Decision) -> Iterator[Part]:
    """Elsewhere too, but for the shard of a single token."""
    for layout, member in in_set(at):
        assumed = member & fits(layout, at) & told_right(at.f) & (at.t > 0) & (at.t < at.f.tp)
        exempt = (at.f.own == 1) if layout is Layout.TP_SHARD else False
        yield layout, assumed, right(layout, at, decision) | exempt


def fail_closed(at: Situation, decision: Decision) -> Iterator[Part]:
    """LAY-01: what fits nothing is a layout error."""
    none = all_of(negate(member & fits(layout, at)) for layout, member in in_set(at))
    yield "no layout", none, decision.outcome is Outcome.LAYOUT_ERROR


def order(at: Situation, decision: Decision) -> Iterator[Part]:
    """LAY-06: the first member that fits decides, unless two that fit differ."""
    f = at.f
    fitting = {layout: member & fits(layout, at) for layout, member in in_set(at)}
    earlier: Truth = False
    clash: Truth = False
    for layout, found in fitting.items():
        first = found & negate(earlier)
        earlier = earlier | found
        if layout is Layout.GATHERED_SHARDS:
            yield "unusable", first & negate(usable(f)), decision.outcome is Outcome.GROUP_ERROR
            first = first & usable(f)
        base = base_of(layout, at)
        harmful = (f.own > 0) & any_of(
            other & (base_of(name, at) != base) & (usable(f) if name is Layout.GATHERED_SHARDS else True)
            for name, other in fitting.items()
        )
        shards = (f.own > 1) & (f.tp > 1) if layout is Layout.TP_SHARD else False
        taken = accepted(decision) & (decision.start == base) & (decision.gather ^ shards ^ True)
        yield layout, first & negate(harmful), taken & (decision.length == f.own)
        clash = clash | (first & harmful)
    yield "harmful", clash, decision.outcome is Outcome.LAYOUT_ERROR


def sound(at: Situation, decision: Decision) -> Iterator[Part]:
    """No set makes an accepted step wrong: what is emitted is restored, or it is an error."""
    publisher = at._replace(t=0)
    for layout, member in in_set(at):
        assumed = member & fits(layout, at) & told_right(at.f) & accepted(decision)
        yield layout, assumed, right(layout, publisher, decision)


def malformed(at: Situation, decision: Decision) -> Iterator[Part]:
    """LAY-08: an error where n is read by them, nothing where it is not."""
    f = at.f
    publisher = at._replace(t=0)
    whole = (f.n == f.total) | (f.n == f.own)
    read = f.has_sizes & negate(usable(f)) & (f.n == f.sizes_total) & negate(whole)
    rejected = decision.outcome is Outcome.GROUP_ERROR
    yield "groups uneven", read & negate(f.divide), rejected
    yield "a size negative, or too few rows", read & f.divide, rejected
    for layout in (Layout.CROSS_DP, Layout.FULL):
        unread = f.has_sizes & negate(usable(f)) & fits(layout, at)
        yield f"unread, {layout}", unread, right(layout, publisher, decision)


def needless(at: Situation, decision: Decision) -> Iterator[Part]:
    """COL-02, COL-03: only for shards of several tokens, at most one, none after a rejection."""
    needed = (at.f.own > 1) & (at.f.tp > 1) & (at.f.n == at.s) & (at.f.n < at.f.own)
    yield "one at most", True, decision.gathers <= (1 if accepted(decision) else 0)
    fitting = any_of(member & fits(layout, at) for layout, member in in_set(at))
    yield "needed", gathers(decision) & fitting, needed


def declared(at: Situation, decision: Decision) -> Iterator[Part]:
    """LAY-10: a declaration is obeyed, and one that n contradicts is rejected."""
    if at.declared is None:
        return
    if at.declared is Layout.UNCOUNTED:
        yield "UNCOUNTED, though counted", True, decision.outcome is Outcome.LAYOUT_ERROR
        return
    obeyed = fits(at.declared, at) & told_right(at.f)
    yield f"{at.declared}", obeyed, right(at.declared, at._replace(t=0), decision)
    contradicted = negate(fits(at.declared, at))
    yield f"{at.declared}, contradicted", contradicted, decision.outcome is Outcome.LAYOUT_ERROR


def zero_tokens(at: Situation, decision: Decision) -> Iterator[Part]:
    """LAY-12: an empty DP rank is no error and writes nothing; that it gathers nothing is COL-02's."""
    for layout, member in in_set(at):
        assumed = (at.f.own == 0) & member & fits(layout, at) & told_right(at.f)
        yield layout, assumed, accepted(decision) & (decision.length == 0)


def read_as(read: Layout, at: Situation) -> Decision:
    """Give the decision of a capturer that takes rows for `read`."""
    gather = (at.f.own > 1) & (at.f.tp > 1) if read is Layout.TP_SHARD else False
    return Decision(Outcome.ROWS, base_of(read, at), at.f.own, gather)


def harm(one: Layout, other: Layout, at: Situation) -> Truth:
    """Whether n fits both, and reading one for the other gives the publisher other rows."""
    wrong = negate(right(one, at, read_as(other, at))) | negate(right(other, at, read_as(one, at)))
    return fits(one, at) & fits(other, at) & (at.f.own > 0) & wrong


BASE = (Layout.CROSS_DP, Layout.FULL, Layout.GATHERED_SHARDS, Layout.TP_SHARD)
HARMFUL = (
    frozenset({Layout.PADDED_LOCAL, Layout.CROSS_DP}),
    frozenset({Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX}),
    frozenset({Layout.PADDED_LOCAL, Layout.PADDED_TO_MAX}),
)
"""The three pairs that collide harmfully (F3, F4, F5)."""

EVERYTHING = members_of(frozenset(PRECEDENCE))
"""The set of all six counted layouts."""

CLAIMS: dict[str, Claim] = {
    "own-rows": own_rows,
    "other-ranks": other_ranks,
    "fail-closed": fail_closed,
    "order": order,
    "any-set-sound": sound,
    "malformed-groups": malformed,
    "needless-gather": needless,
    "declared": declared,
    "zero-tokens": zero_tokens,
}
"""Claims about one decision, by the obligation that they belong to."""
