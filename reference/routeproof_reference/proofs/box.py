"""Enumeration: every step within bounds, every n, every rank, through the code itself.

Cases are columns of arrays; the code runs on all cases of a path at once (`batch`).
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from routeproof_spec import PRECEDENCE, Layout

from routeproof_reference.proofs import batch
from routeproof_reference.proofs.claims import CLAIMS, EVERYTHING, Situation
from routeproof_reference.proofs.obligation import Check, Counterexample, Status
from routeproof_reference.proofs.smt import explain
from routeproof_reference.proofs.target import Decision, Figures, Members, Target, members_of

Column = NDArray[np.int64]


class Bounds(NamedTuple):
    """How far counts and sizes go."""

    counts: int
    dp: int
    tp: tuple[int, ...]
    sparse: bool = False
    """n only within 1 of the n of a layout; otherwise every n."""


BOX = Bounds(4, 3, (1, 2, 3, 4))
"""In every test run."""

SETS_BOX = Bounds(2, 2, (1, 2, 3))
"""For all 64 sets of layouts."""

DEEP = Bounds(12, 4, (1, 2, 3, 4, 8), sparse=True)
"""With `--deep`."""

VARIANTS = ("right", "unknown", "uneven", "negative", "short")
"""What the step says of shard sizes; the last three are malformed (LAY-08)."""

BEYOND = 3
"""n is swept to this far past the largest layout."""

CHUNK = 400_000
"""Cases at once."""


class Steps(NamedTuple):
    """Columns [cases] of one DP size."""

    counts: Column
    """[cases, dp]."""
    d: Column
    tp: Column
    n: Column


def steps(bounds: Bounds, dp: int) -> Iterator[Steps]:
    """Give all steps of one DP size: counts, TP sizes, DP ranks, and every n; or n about each layout's."""
    vectors = np.array(list(product(range(bounds.counts + 1), repeat=dp)), np.int64)
    for tp in _groups(bounds.tp, dp):
        grid = np.arange(len(vectors) * len(tp) * dp)
        counts, sizes, ranks = vectors[grid % len(vectors)], np.array(tp), grid // len(vectors)
        sizes, ranks = sizes[ranks // dp], ranks % dp
        if bounds.sparse:
            yield from _sparse(counts, ranks, sizes)
            continue
        padded = -(-counts // sizes[:, None]) * sizes[:, None]
        limits = np.maximum(padded.sum(axis=1), dp * counts.max(axis=1)) + BEYOND + 1
        at = 0
        while at < len(grid):
            stop = at + max(1, int(np.searchsorted(np.cumsum(limits[at:]), CHUNK)))
            limit = limits[at:stop]
            row = at + np.repeat(np.arange(len(limit)), limit)
            n = np.arange(len(row)) - np.repeat(np.cumsum(limit) - limit, limit)
            yield Steps(counts[row], ranks[row], sizes[row], n)
            at = stop


def _sparse(counts: Column, ranks: Column, tp: Column) -> Iterator[Steps]:
    """Give the n of every layout, and its neighbours."""
    dp = counts.shape[1]
    own = counts[np.arange(len(ranks)), ranks]
    shard = -(-own // tp)
    padded = (-(-counts // tp[:, None]) * tp[:, None]).sum(axis=1)
    exact = np.stack([counts.sum(axis=1), own, padded, dp * counts.max(axis=1), shard, shard * tp], axis=1)
    near = np.concatenate([exact - 1, exact, exact + 1], axis=1)
    many = near.shape[1]
    for at in range(0, len(ranks), CHUNK // many):
        rows = np.repeat(np.arange(at, min(at + CHUNK // many, len(ranks))), many)
        yield Steps(counts[rows], ranks[rows], tp[rows], np.maximum(near[at : rows[-1] + 1].ravel(), 0))


def _groups(tp: tuple[int, ...], dp: int) -> Iterator[tuple[int, ...]]:
    """Take all TP sizes together where few DP ranks leave room."""
    yield from [tp] if dp <= BOX.dp else [(size,) for size in tp]


def situation(cases: Steps, dp: int, variant: str, members: Members) -> Situation:
    """Compute the figures of all cases."""
    counts, d, tp = cases.counts, cases.d, cases.tp
    padded = -(-counts // tp[:, None]) * tp[:, None]
    every, zeros = np.arange(len(d)), np.zeros_like(d)
    own, middle = counts[every, d], padded[every, d]
    earlier = np.arange(dp) < d[:, None]
    before, low = (counts * earlier).sum(axis=1), (padded * earlier).sum(axis=1)
    total, whole = counts.sum(axis=1), padded.sum(axis=1)
    if variant == "unknown":
        low, middle, whole = zeros, zeros, zeros
    elif variant == "uneven":
        low, middle, whole = zeros, zeros, whole + 1
    elif variant == "short":
        middle, whole = own - 1, whole - middle + own - 1
    at = Figures(
        n=cases.n,
        own=own,
        before=before,
        total=total,
        largest=counts.max(axis=1),
        dp_rank=d,
        dp=dp,
        tp=tp,
        has_sizes=variant != "unknown",
        divide=variant not in ("unknown", "uneven"),
        formed=variant in ("right", "short"),
        sizes_before=low,
        sizes_own=middle,
        sizes_total=whole,
    )
    return Situation(at, -(-own // tp), 0, members)


def sizes_of(counts: tuple[int, ...], rank: int, tp: int, variant: str) -> tuple[int, ...] | None:
    """Give the shard sizes that `situation` counts, two a DP rank; None where unknown."""
    padded = [-(-count // tp) * tp for count in counts]
    if variant == "unknown":
        return None
    if variant == "uneven":
        return (sum(padded) + 1, *[0] * len(counts))
    if variant == "short":
        padded[rank] = counts[rank] - 1
    extra = 1 if variant == "negative" else 0
    return tuple(size for whole in padded for size in (whole + extra, -extra))


class Sweep(NamedTuple):
    """One pass over the steps."""

    claims: tuple[str, ...]
    members: Members
    declared: Layout | None = None
    variants: tuple[str, ...] = VARIANTS
    every_set: bool = False
    """With each of the 64 sets, instead of `members`."""

    def spread(self, cases: Steps) -> tuple[Steps, Members]:
        """Give the cases with the set of each."""
        if not self.every_set:
            return cases, self.members
        sets = np.array(list(product((False, True), repeat=len(PRECEDENCE))))
        rows = np.tile(np.arange(len(cases.n)), len(sets))
        members = np.repeat(sets, len(cases.n), axis=0)
        return Steps(*(column[rows] for column in cases)), Members(*members.T)


TOLD = ("own-rows", "other-ranks", "zero-tokens")
"""Claims about steps whose shard sizes, if known, are right."""


def sweeps(target: Target, many: bool, every_set: bool, sparse: bool) -> Iterator[Sweep]:
    """Give what is to be examined for a target at DP = 1, or above."""
    if every_set:
        yield Sweep(("order", "any-set-sound"), EVERYTHING, every_set=True)
        return
    own = members_of(target.layouts(2 if many else 1))
    right = ("right",) if sparse else ("right", "unknown")
    if sparse:
        yield Sweep(("own-rows", "other-ranks", "fail-closed", "needless-gather"), own, None, right)
        return
    yield Sweep(TOLD, own, None, right)
    yield Sweep(("fail-closed", "needless-gather", "malformed-groups"), own)
    if target.configurable:
        yield Sweep(("order",), own)
        yield Sweep(("order", "any-set-sound", "zero-tokens"), EVERYTHING)
        for layout in (*PRECEDENCE, Layout.UNCOUNTED):
            yield Sweep(("declared",), own, layout, right)


def enumerate_box(
    target: Target,
    bounds: Bounds,
    every_set: bool = False,
    only: tuple[str, ...] | None = None,
    whole: bool = False,
) -> Check:
    """Establish or refute all claims within bounds.

    Args:
        target: the code examined.
        bounds: how far to go.
        every_set: for each of the 64 sets of layouts, instead of the target's own.
        only: the claims wanted; None: all.
        whole: go on with the other claims when one is refuted.

    """
    cases = 0
    used: dict[str, bool] = {}
    failed: dict[str, Counterexample] = {}
    for dp in range(target.smallest_dp, bounds.dp + 1):
        for sweep in sweeps(target, dp > 1, every_set, bounds.sparse):
            for chosen, variant in product(steps(bounds, dp), sweep.variants):
                if not _told(target, variant, dp):
                    continue
                told, members = sweep.spread(chosen)
                cases += len(told.n)
                while claims := _open(sweep.claims, only, failed):
                    pass_ = sweep._replace(claims=claims, members=members)
                    found = _sweep(target, pass_, told, dp, variant, used)
                    if found is None:
                        break
                    failed[found[0]] = found[1]
                    if not whole:
                        return Check(Status.REFUTED, f"{found[0]}, after {cases:,} cases", found[1])
    if failed:
        said = f"{', '.join(failed)}; the other claims hold of {cases:,} cases"
        return Check(Status.REFUTED, said, next(iter(failed.values())))
    vacuous = tuple(sorted(name for name, seen in used.items() if not seen))
    return Check(Status.ESTABLISHED, f"{cases:,} cases", None, vacuous)


def _open(
    claims: tuple[str, ...], only: tuple[str, ...] | None, failed: dict[str, Counterexample]
) -> tuple[str, ...]:
    return tuple(claim for claim in claims if claim not in failed and (only is None or claim in only))


def _told(target: Target, variant: str, dp: int) -> bool:
    """Whether a step can say this of shard sizes: any number of them divides by 1."""
    if target.deployed:
        return variant == "unknown"
    return dp > 1 or variant == "unknown" or (target.sizes_at_one and variant != "uneven")


def _sweep(
    target: Target, sweep: Sweep, cases: Steps, dp: int, variant: str, used: dict[str, bool]
) -> tuple[str, Counterexample] | None:
    """Run one pass; give the first claim that fails and its smallest counterexample."""
    at = situation(cases, dp, variant, sweep.members)._replace(declared=sweep.declared)

    many = len(at.f)
    columns = (*at.f, *sweep.members)

    def code(*chosen: object) -> Decision:
        return target.decide(Figures(*chosen[:many]), Members(*chosen[many:]), sweep.declared)

    for ran in batch.merge(batch.explore(code, columns), columns):
        decision: Decision = ran.result
        figures, members = Figures(*ran.columns[:many]), Members(*ran.columns[many:])
        s = batch.Batch.of(np.asarray(at.s)[ran.cases])
        tp = int(cases.tp.max())
        for claim in sweep.claims:
            for t in range(1, tp) if claim == "other-ranks" else (0,):
                here = Situation(figures, s, t, members, sweep.declared)
                for name, assumed, concluded in CLAIMS[claim](here, decision):
                    wrong = np.broadcast_to(np.asarray(assumed) & ~_bools(concluded), ran.cases.shape)
                    part = f"{claim}: {name}"
                    used[part] = used.get(part, False) or bool(np.any(assumed))
                    if wrong.any():
                        hits = ran.cases[wrong]
                        first = int(hits[np.argmin(cases.counts[hits].sum(axis=1) + cases.n[hits])])
                        return claim, _counterexample(target, claim, sweep, cases, first, variant, t)
    return None


def _bools(truth: object) -> NDArray[np.bool_]:
    return np.asarray(truth).astype(bool)


def _counterexample(
    target: Target, claim: str, sweep: Sweep, cases: Steps, index: int, variant: str, t: int
) -> Counterexample:
    counts = tuple(int(count) for count in cases.counts[index])
    rank, tp = int(cases.d[index]), int(cases.tp[index])
    sizes = sizes_of(counts, rank, tp, variant)
    found = Counterexample(counts, rank, tp, t, int(cases.n[index]), "", sizes, "")
    members = Members(*(bool(np.broadcast_to(member, cases.n.shape)[index]) for member in sweep.members))
    return explain(target, claim, found, members, sweep.declared)
