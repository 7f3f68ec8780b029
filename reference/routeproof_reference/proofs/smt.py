"""Proofs over the paths of the code itself: no bound on counts, any DP size, any TP size.

A claim is refuted by a model of: the axioms of the scenario, the condition of a path, an
assumption of the claim, and not its conclusion. What no model satisfies is a theorem.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from routeproof_spec import PRECEDENCE, Layout

from routeproof_reference.proofs.claims import CLAIMS, EVERYTHING, Claim
from routeproof_reference.proofs.obligation import (
    Check,
    Counterexample,
    OpenError,
    Status,
    UnknownShapeError,
)
from routeproof_reference.proofs.paths import Explored, explore, merge
from routeproof_reference.proofs.scenario import Scenario, concrete, scenario, situation_of
from routeproof_reference.proofs.symbolic import Space
from routeproof_reference.proofs.target import Decision, Members, Target, members_of

TIMEOUT_MS = 20_000
"""For one question to the solver."""

SMALL = (2, 4, 6, 9, 14, 30)
"""Bounds on tokens tried in turn, for a counterexample that is easy to read."""

TP_SIZES = tuple(range(1, 65))
FEW_TP_SIZES = (1, 2, 3, 4, 8, 16, 64)


class Plan(NamedTuple):
    """How a claim is put to the solver."""

    told: bool
    """Shard sizes are right where they are known; otherwise anything."""
    any_set: bool = False
    """Any of the 64 sets of layouts; otherwise the default one."""
    declared: bool = False
    """For every layout declared."""
    everything: bool = False
    """The set of all six layouts."""


PLANS: dict[str, Plan] = {
    "own-rows": Plan(told=True),
    "other-ranks": Plan(told=True),
    "fail-closed": Plan(told=False),
    "order": Plan(told=False, everything=True),
    "order-any-set": Plan(told=False, any_set=True),
    "malformed-groups": Plan(told=False),
    "needless-gather": Plan(told=False),
    "declared": Plan(told=True, declared=True),
    "zero-tokens": Plan(told=False, everything=True),
}


def claim_of(name: str) -> Claim:
    """Find the claim of an obligation; the same claim serves several sets."""
    return CLAIMS[name.removesuffix("-any-set")]


class Question(NamedTuple):
    """One exploration of a target, at any TP size."""

    many: bool
    declared: Layout | None


def questions(target: Target, plan: Plan) -> Iterator[Question]:
    """Give DP = 1 and DP > 1, and every declaration."""
    for many in (False, True) if target.smallest_dp == 1 else (True,):
        for declared in (*PRECEDENCE, Layout.UNCOUNTED) if plan.declared else (None,):
            yield Question(many, declared)


def prove(target: Target, claim: str, sizes: tuple[int | None, ...], timeout: int = TIMEOUT_MS) -> Check:
    """Establish or refute a claim about a target's decision.

    Args:
        target: the code examined.
        claim: a name of `CLAIMS`.
        sizes: TP sizes; None stands for any.
        timeout: milliseconds for one question.

    Raises:
        OpenError: the solver is missing or does not know.
        UnknownShapeError: the target cannot be driven.

    """
    theorems = paths = 0
    meant: dict[str, bool] = {}
    for question in questions(target, PLANS[claim]):
        proof = Proof(target, claim, question, timeout)
        for tp in sizes:
            found = proof.refute(tp)
            if found is not None:
                return Check(Status.REFUTED, f"after {theorems} theorems", found)
            theorems += len(proof.parts)
        paths += len(proof.paths)
        for name, given in proof.parts.items():
            meant[name] = meant.get(name, False) or proof.satisfiable(given)
    vacuous = tuple(sorted(name for name, some in meant.items() if not some))
    return Check(Status.ESTABLISHED, f"{theorems} theorems, {paths} paths", None, vacuous)


class Proof:
    """One question: all paths of the code, all parts of the claim."""

    def __init__(self, target: Target, claim: str, question: Question, timeout: int = TIMEOUT_MS) -> None:
        """Explore the code."""
        self.target, self.claim, self.question, self.timeout = target, claim, question, timeout
        self.plan = PLANS[claim]
        self.space = space = Space()
        self.scene: Scenario = scenario(space, question.many, None, self.plan.told, self._members())
        self.at = self.scene.at._replace(declared=question.declared)
        if target.deployed or not (question.many or target.sizes_at_one):
            space.axioms.append(space.z3.Not(self.at.f.has_sizes.term))
        self.paths: list[Explored] = explore(space, self._decide, self.scene.axioms)
        self._drop_strange()
        self.parts: dict[str, list[Any]] = {}
        """Assumptions of each part, on each path."""
        self.failing: dict[str, list[Any]] = {}
        """Violations of each part, on each path."""
        for path in merge(space, self.paths):
            for name, assumed, concluded in claim_of(claim)(self.at, path.result):
                given = space.z3.And(path.condition, space.term(assumed))
                self.parts.setdefault(name, []).append(given)
                wrong = space.z3.And(given, space.z3.Not(space.term(concluded)))
                self.failing.setdefault(name, []).append(wrong)

    def _decide(self) -> Decision | UnknownShapeError:
        try:
            return self.target.decide(self.at.f, self.at.members, self.question.declared)
        except UnknownShapeError as error:
            return error

    def _drop_strange(self) -> None:
        """Drop paths on which the code cannot be driven, if no step takes them; else raise."""
        for path in self.paths:
            if isinstance(path.result, UnknownShapeError) and self._ask(path.condition) is not None:
                raise path.result
        self.paths = [path for path in self.paths if not isinstance(path.result, UnknownShapeError)]

    def _members(self) -> Members:
        if self.target.configurable and self.plan.any_set:
            return Members(*(self.space.bool(f"set_{name}") for name in Members._fields))
        if self.target.configurable and self.plan.everything:
            return EVERYTHING
        return members_of(self.target.layouts(2 if self.question.many else 1))

    def _ask(self, *terms: Any) -> Any:  # noqa: ANN401
        """Give a model, or None; raise OpenError where the solver does not know."""
        solver = self.space.z3.Solver()
        solver.set("timeout", self.timeout)
        solver.add(*self.scene.axioms, *self.space.axioms, *terms)
        answer = solver.check()
        if answer == self.space.z3.unknown:
            where = f"{self.claim}, DP {'> 1' if self.question.many else '= 1'}"
            raise OpenError(f"Z3 does not know ({solver.reason_unknown()}): {where}")
        return solver.model() if answer == self.space.z3.sat else None

    def refute(self, tp: int | None) -> Counterexample | None:
        """Give a small counterexample at a TP size (None: any), or None if this is a theorem."""
        z3 = self.space.z3
        fixed = [] if tp is None else [z3.Int("tp") == tp]
        if self._ask(z3.Or(*(wrong for part in self.failing.values() for wrong in part)), *fixed) is None:
            return None
        for bound, part in product((*SMALL, None), self.failing.values()):
            small = [] if bound is None else self._small(bound)
            model = self._ask(z3.Or(*part), *fixed, *small)
            if model is not None:
                try:
                    return self._counterexample(model)
                except OpenError:
                    if bound is None:
                        raise
        raise OpenError(f"a model without a counterexample: {self.claim}")

    def _small(self, bound: int) -> Iterator[Any]:
        """Give what makes a step easy to read: few tokens, small sizes, and two DP ranks if several."""
        f, z3, two = self.at.f, self.space.z3, 2
        yield self.space.term(f.total + f.n <= bound)
        sizes = [z3.Int(f"sizes_{name}") for name in ("total", "before", "own")]
        yield from (z3.And(-bound <= size, size <= bound) for size in sizes)
        if not self.question.many:
            return
        largest, later, other = z3.Int("largest"), z3.Int("d") > 0, f.total - f.own
        yield self.space.term((f.dp == two) & ((f.largest == f.own) | (f.largest == other)))
        yield self.space.term(f.largest >= other)
        yield z3.Int("blocks") == 2 * largest
        yield z3.Int("earlier") == z3.If(later, largest, 0)
        yield z3.Implies(later, sizes[0] == sizes[1] + sizes[2])

    def _counterexample(self, model: Any) -> Counterexample:  # noqa: ANN401
        values = {}
        names = ("n", "own", "t", "before", "after", "p", "q", "d", "tp")
        for name in (*names, "sizes_before", "sizes_own", "sizes_total"):
            values[name] = model.eval(self.space.z3.Int(name), model_completion=True).as_long()
        for name in ("has_sizes", "divide", "formed"):
            term = model.eval(self.space.z3.Bool(name), model_completion=True)
            values[name] = int(self.space.z3.is_true(term))
        found = concrete(values, self.question.many, values["tp"], self.plan.told)
        members = Members(
            *(
                bool(self.space.z3.is_true(model.eval(self.space.term(member), model_completion=True)))
                for member in self.at.members
            )
        )
        return explain(self.target, self.claim, found, members, self.question.declared)

    def satisfiable(self, given: list[Any]) -> bool:
        """Whether some step meets one of these assumptions."""
        return self._ask(self.space.z3.Or(*given)) is not None


def explain(
    target: Target, claim: str, found: Counterexample, members: Members, declared: Layout | None
) -> Counterexample:
    """Run the code on the numbers, and say which part of the claim fails; it must fail."""
    at = situation_of(found, members)._replace(declared=declared)
    decision = target.decide(at.f, members, declared)
    for name, assumed, concluded in claim_of(claim)(at, decision):
        if assumed and not concluded:
            layout = name.split(",")[0] if name.split(",")[0] in PRECEDENCE else ""
            chosen = tuple(item for item, has in zip(PRECEDENCE, members, strict=True) if has)
            default = not target.deployed and members == members_of(target.layouts(len(found.counts)))
            gathered = " of the gathered rows" if decision.gather else ""
            rows = f"rows [{decision.start}, {decision.start + decision.length}){gathered}"
            said = rows if decision.outcome == "rows" else str(decision.outcome)
            return found._replace(
                layout=layout,
                declared=declared or "",
                layouts=() if default else chosen,
                said=f"{target.name} gives {said} ({claim}: {name})",
            )
    raise OpenError(f"the counterexample of {claim} could not be made concrete: {found}")
