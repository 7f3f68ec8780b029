"""The facts about layouts: which coincidences are harmful, exactly when, and that there are no others.

Each fact is a list of theorems. A faulty statement of it, its control, has to be refuted.
Rows of producers out of contract (F3's misreading, F7, F8) are facts of the code examined.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

from routeproof_spec import PRECEDENCE, Layout

from routeproof_reference.proofs.claims import (
    BASE,
    EVERYTHING,
    HARMFUL,
    Situation,
    accepted,
    any_of,
    base_of,
    fits,
    gathers,
    harm,
    negate,
    read_as,
    right,
    rows_of,
)
from routeproof_reference.proofs.obligation import Check, OpenError, Status, UnknownShapeError
from routeproof_reference.proofs.paths import Explored, explore, merge
from routeproof_reference.proofs.scenario import figures_of, scenario
from routeproof_reference.proofs.slots import slots_in_requests
from routeproof_reference.proofs.smt import TIMEOUT_MS
from routeproof_reference.proofs.symbolic import Bool, Space
from routeproof_reference.proofs.target import Decision, Figures, Target, Truth, members_of

DP_SIZES = tuple(range(2, 9))
"""DP sizes at which PADDED_TO_MAX is examined: it needs the largest count."""

Theorem = tuple[str, Truth, Truth]
"""Name, assumption, conclusion."""

Fact = Callable[[Target, "Ground", str], Iterator[Theorem]]
"""Theorems of a fact; the last argument is its faulty statement, or empty."""


class Ground:
    """One TP size, and DP = 1 or a DP size or any above 1."""

    def __init__(self, tp: int | None, dp: int | None) -> None:
        """Make the variables; `dp` None: any above 1."""
        self.space = Space()
        scene = scenario(self.space, dp != 1, tp, True, EVERYTHING)
        self.at: Situation = scene.at
        self.axioms = list(scene.axioms)
        self.many, self.dp, self.tp = dp != 1, dp, tp
        self.strange: list[Any] = []
        """Conditions of paths that no step takes."""
        f = self.at.f
        if self.many and dp is not None:
            after, earlier = f.total - f.before - f.own, f.dp_rank * f.largest
            places = (
                (f.dp_rank == rank)
                & (earlier == f.largest * rank)
                & (f.before <= f.largest * rank)
                & (after <= f.largest * (dp - 1 - rank))
                for rank in range(dp)
            )
            self.add(f.dp == dp, f.dp * f.largest == f.largest * dp, any_of(places))
        self.add(f.has_sizes == True)  # noqa: E712 - a term

    def add(self, *terms: Truth) -> None:
        """Assume more."""
        self.axioms += [self.space.term(term) for term in terms]

    def explore(self, code: Callable[[], Decision]) -> list[Explored]:
        """Explore code; paths on which it cannot be driven must be taken by no step, else raise."""

        def run() -> Decision | UnknownShapeError:
            try:
                return code()
            except UnknownShapeError as error:
                return error

        kept = []
        for path in explore(self.space, run, self.axioms):
            if isinstance(path.result, UnknownShapeError):
                if self.ask(Bool(self.space, path.condition)):
                    raise path.result
                self.strange.append(path.condition)
            else:
                kept.append(path)
        return merge(self.space, kept)

    def ask(self, *terms: Truth) -> bool:
        """Say whether some step satisfies all terms; raise OpenError where the solver does not know."""
        solver = self.space.z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        solver.add(*self.axioms, *self.space.axioms, *(self.space.term(term) for term in terms))
        answer = solver.check()
        if answer == self.space.z3.unknown:
            raise OpenError(f"Z3 does not know ({solver.reason_unknown()}), tp {self.tp}, DP {self.dp}")
        return bool(answer == self.space.z3.sat)


def establish(fact: str, target: Target, sizes: tuple[int | None, ...], fault: str) -> Check:
    """Establish or refute a fact, or a faulty statement of it, for the TP sizes (None: any)."""
    theorems = 0
    meant: dict[str, bool] = {}
    code, dps = FACTS[fact]
    for tp, dp in product(sizes, dps):
        ground = Ground(tp, dp)
        told = tuple(code(target, ground, fault))
        if ground.ask(any_of(assumed & negate(concluded) for _, assumed, concluded in told)):
            name = next(name for name, *terms in told if ground.ask(terms[0], negate(terms[1])))
            return Check(Status.REFUTED, f"{name}: tp {tp or 'any'}, DP {dp or 'any'}")
        theorems += len(told)
        for name, assumed, _ in told:
            meant[name] = meant.get(name, False) or ground.ask(assumed)
    vacuous = tuple(name for name, some in meant.items() if not some)
    return Check(Status.ESTABLISHED, f"{theorems} theorems", None, vacuous)


def _pairs(wanted: Callable[[frozenset[Layout]], bool]) -> Iterator[tuple[Layout, Layout]]:
    for one, other in combinations(PRECEDENCE, 2):
        if wanted(frozenset({one, other})):
            yield one, other


def base_set(_: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F1: no two of the base set differ at the publisher."""
    members = (*BASE, Layout.PADDED_LOCAL) if fault else BASE
    at = ground.at._replace(t=0)
    for one, other in _pairs(lambda pair: pair <= set(members)):
        both = fits(one, at) & fits(other, at)
        yield f"{one} and {other}", both, negate(harm(one, other, at))


def other_ranks(_: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F2: nor elsewhere, but for the shard of a single token."""
    at = ground.at
    for one, other in _pairs(lambda pair: pair <= set(BASE)):
        for emitted, read in ((one, other), (other, one)):
            both = fits(one, at) & fits(other, at)
            exempt = (at.f.own == 1) & (at.t > 0) if emitted is Layout.TP_SHARD and not fault else False
            yield f"{emitted} read as {read}", both, right(emitted, at, read_as(read, at)) ^ exempt


def local_or_cross(_: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F3: PADDED_LOCAL and CROSS_DP, exactly when."""
    at, f = ground.at._replace(t=0), ground.at.f
    padding = f.tp * at.s - f.own
    earlier = True if fault else f.before > 0
    exact = (f.own > 0) & earlier & (f.total - f.own == padding)
    found = harm(Layout.PADDED_LOCAL, Layout.CROSS_DP, at)
    fitting = at.f.n == rows_of(Layout.PADDED_LOCAL, at)
    yield "harm only then", found, exact
    yield "harm always then", fitting & exact, found


def misread(target: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F3, the misreading: kept out of the set, PADDED_LOCAL is read as CROSS_DP all the same."""
    at, f = ground.at._replace(t=0), ground.at.f
    members = members_of(target.layouts(2) - {Layout.PADDED_LOCAL})
    exact = (f.own > 0) & (f.before > 0) & (f.total == f.tp * at.s)
    said = False if fault else exact
    fitting = f.n == rows_of(Layout.PADDED_LOCAL, at)
    paths = ground.explore(lambda: target.decide(f, members, None))

    def silent(found: Decision) -> Truth:
        return accepted(found) & negate(right(Layout.PADDED_LOCAL, at, found))

    yield "silently wrong exactly then", fitting, _when(ground.space, paths, silent) ^ said ^ True


def with_largest(one: Layout, other: Layout, exact: Callable[[Situation, str], Truth]) -> Fact:
    """F4, F5: a pair with PADDED_TO_MAX, exactly when."""

    def fact(_: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
        at = ground.at._replace(t=0)
        found, condition = harm(one, other, at), exact(at, fault)
        fitting = at.f.n == rows_of(Layout.PADDED_TO_MAX, at)
        yield "harm only then", found, condition
        yield "harm always then", fitting & condition, found

    return fact


def _gathered_or_max(at: Situation, fault: str) -> Truth:
    sums = (at.f.own > 0) & (at.f.sizes_total == at.f.dp * at.f.largest)
    apart = base_of(Layout.GATHERED_SHARDS, at) != base_of(Layout.PADDED_TO_MAX, at)
    return sums if fault else sums & apart


def _local_or_max(at: Situation, fault: str) -> Truth:
    later = True if fault else at.f.dp_rank > 0
    return (at.f.own > 0) & later & (at.f.tp * at.s == at.f.dp * at.f.largest)


def no_other(_: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F6: every other pair of the six is harmless; at DP = 1 every pair is."""
    harmful = () if fault or ground.dp == 1 else HARMFUL
    at = ground.at._replace(t=0)
    unknown = {Layout.PADDED_TO_MAX} if ground.dp is None else set()
    for one, other in _pairs(lambda pair: pair not in harmful and not pair & unknown):
        yield f"{one} and {other}", fits(one, at) & fits(other, at), negate(harm(one, other, at))


def uneven(target: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F7: shards that are not padded are never silently wrong; lockstep is lost exactly when."""
    at, f = ground.at, ground.at.f
    low = ground.space.divide(f.own, f.tp)
    members = members_of(target.layouts(2 if ground.many else 1))
    space = ground.space
    large = ground.explore(lambda: target.decide(f._replace(n=at.s), members, None))
    small = ground.explore(lambda: target.decide(f._replace(n=low), members, None))
    ragged = at.s != low
    lost = ragged if fault else (f.own > 1) & ragged
    apart = ragged & (_when(space, large, gathers) ^ _when(space, small, gathers))
    yield "lockstep is lost exactly then", True, apart ^ lost ^ True
    alone = at._replace(t=0, f=f._replace(n=at.s))
    whole = _when(space, large, lambda found: right(Layout.TP_SHARD, alone, found) | found.gather)
    yield "a publisher that returns is right", ragged & _when(space, large, accepted), whole


def _when(space: Space, paths: list[Explored], what: Callable[[Decision], Truth]) -> Truth:
    """Say in one term whether the code's decision is so."""
    return any_of(Bool(space, path.condition) & what(path.result) for path in paths)


def physical(target: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """F8: with real counts over padded tensors, DP = 1 is never silently wrong; DP > 1 can be."""
    f = ground.at.f
    if ground.many:
        return
    space = ground.space
    tokens = space.int("tokens")
    shard = space.divide(tokens + f.tp - 1, f.tp)
    ground.add(tokens >= f.own)
    members = members_of(target.layouts(1))
    emitted = {Layout.FULL: tokens, Layout.TP_SHARD: shard, Layout.PADDED_LOCAL: shard * f.tp}
    paths = ground.explore(lambda: target.decide(f, members, None))

    def restored(found: Decision) -> Truth:
        rows = (found.start == 0) & (found.gather | (f.own <= f.n)) & (found.length >= f.own)
        return negate(accepted(found)) | rows

    whole = _when(space, paths, restored)
    for layout, n in emitted.items():
        yield f"{layout} at DP = 1", f.n == n, whole
    example = figures_of((1, 3), 1, 1, 4, None)
    told = target.decide(example, members_of(target.layouts(2)), None)
    wrong = accepted(told) and told.start != 0
    yield "counts (1, 3) over (1, 4) rows at DP > 1", True, wrong ^ bool(fault)


def single_valued(target: Target, ground: Ground, fault: str) -> Iterator[Theorem]:
    """COL-01: every step takes exactly one path, decided by what all ranks of the group are told."""
    f = ground.at.f
    members = members_of(target.layouts(2 if ground.many else 1))

    def decide() -> Decision:
        mine: Figures = f if not fault else f._replace(n=f.n + ground.at.t)
        return target.decide(mine, members, None)

    paths = ground.explore(decide)
    z3 = ground.space.z3
    other = ground.space.int("t of another rank")
    ground.add(other >= 0, other < f.tp)
    some = z3.Or(*(path.condition for path in paths), *ground.strange)
    yield "total", True, Bool(ground.space, some)
    for name, what in (("accepts", accepted), ("gathers", gathers)):
        here = ground.space.term(_when(ground.space, paths, what))
        there = z3.substitute(here, (ground.at.t.term, other.term))
        yield f"{name} alike on every rank", True, Bool(ground.space, here == there)


FACTS: dict[str, tuple[Fact, tuple[int | None, ...]]] = {
    "base-set-harmless": (base_set, (1, None)),
    "other-ranks-harmless": (other_ranks, (1, None)),
    "padded-local-or-cross-dp": (local_or_cross, (None,)),
    "padded-local-misread": (misread, (None,)),
    "shards-or-max": (with_largest(Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX, _gathered_or_max), DP_SIZES),
    "padded-local-or-max": (with_largest(Layout.PADDED_LOCAL, Layout.PADDED_TO_MAX, _local_or_max), DP_SIZES),
    "no-fourth-pair": (no_other, (1, *DP_SIZES, None)),
    "uneven-shards": (uneven, (1, None)),
    "physical-counts": (physical, (1,)),
    "slots-in-requests": (slots_in_requests, (None,)),
    "lockstep": (single_valued, (1, None)),
}
"""A fact's theorems, and the DP sizes that it is about (None: any above 1)."""
