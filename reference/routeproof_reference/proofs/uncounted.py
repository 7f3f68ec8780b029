"""No count known: the n rows are the own rows, or every n is refused (LAY-09)."""

from typing import Any

from routeproof_spec import PRECEDENCE, Layout

from routeproof_reference.proofs.claims import negate
from routeproof_reference.proofs.obligation import Check, OpenError, Status
from routeproof_reference.proofs.paths import Explored, explore, merge
from routeproof_reference.proofs.smt import TIMEOUT_MS
from routeproof_reference.proofs.symbolic import Bool, Int, Space
from routeproof_reference.proofs.target import Decision, Outcome, Target, Truth


def establish(target: Target) -> Check:
    """Establish or refute it for every n, and for every declaration where the target takes any.

    Raises:
        OpenError: the solver is missing or does not know.
        UnknownShapeError: the target cannot be driven.

    """
    theorems, said = 0, ""
    for declared in (None, Layout.UNCOUNTED, *PRECEDENCE) if target.configurable else (None,):
        space = Space()
        n = space.int("n")
        paths = merge(space, _paths(space, target, n, declared))
        outcomes = {path.result.outcome for path in paths}
        told = f"no counts, declared {declared}" if declared else "no counts"
        if len(outcomes) > 1:
            return Check(Status.REFUTED, f"{told}: {' or '.join(sorted(outcomes))}, depending on n")
        for path in paths:
            wrong = negate(_right(path.result, n, declared)) & Bool(space, path.condition)
            value = _example(space, n, wrong)
            if value is not None:
                return Check(Status.REFUTED, f"{told}, n = {value}: {_say(path.result)}")
            theorems += 1
            said = said or _say(path.result)
    return Check(Status.ESTABLISHED, f"{theorems} theorems; undeclared: {said}")


def _paths(space: Space, target: Target, n: Int, declared: Layout | None) -> list[Explored]:
    return explore(space, lambda: target.unknown(n, declared), [space.term(n >= 0)])


def _right(found: Decision, n: Int, declared: Layout | None) -> Truth:
    if declared not in (None, Layout.UNCOUNTED):
        return found.outcome is Outcome.LAYOUT_ERROR
    if found.outcome is not Outcome.ROWS:
        return declared is None
    return (found.start == 0) & (found.length == n) & negate(found.gather)


def _say(found: Decision) -> str:
    if found.outcome is not Outcome.ROWS:
        return str(found.outcome)
    length = "n" if isinstance(found.length, Int) else found.length
    return f"{length} rows from {found.start} on"


def _example(space: Space, n: Int, wrong: Truth) -> Any:  # noqa: ANN401 - an int, or None
    solver = space.z3.Optimize()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(n.term >= 0, *space.axioms, space.term(wrong))
    solver.minimize(n.term)
    answer = solver.check()
    if answer == space.z3.unknown:
        raise OpenError(f"Z3 does not know ({solver.reason_unknown()})")
    return solver.model().eval(n.term, model_completion=True).as_long() if answer == space.z3.sat else None
