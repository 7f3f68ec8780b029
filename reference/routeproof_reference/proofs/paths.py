"""Running code on Z3 terms: every path that a step can take, with the condition under which it is taken.

Where the code asks for a truth, the run takes one branch and the other is queued, unless the
solver rules one out. A path is replayed from the start with its decisions, so that the code
may raise, return and build what it likes. Nothing in it is rewritten.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from routeproof_reference.proofs.obligation import OpenError
from routeproof_reference.proofs.symbolic import Bool, Int, Space

MAX_PATHS = 20_000

EFFORT = 300_000
"""Z3's resource limit for ruling out one branch; beyond, the branch is followed."""


class Explored(NamedTuple):
    """One path: its condition, and what the code gave."""

    condition: Any
    result: Any


class _Impossible(BaseException):  # code under examination must not catch it
    """No step gets this far."""


Decision = tuple[bool, bool]
"""The branch taken, and whether there was another."""


class _Waiting(NamedTuple):
    """A branch not taken yet."""

    decisions: tuple[Decision, ...]
    level: int
    """Forks before the last decision."""


class _Walk:
    """Depth first through the branches; the solver holds the conditions of the run in progress."""

    def __init__(self, space: Space, axioms: Iterable[Any]) -> None:
        self.space = space
        self.solver = space.z3.Solver()
        self.solver.set("rlimit", EFFORT)
        self.solver.add(*axioms)
        self.told = [0]
        """How many of the space's axioms the solver knows, by level."""
        self.waiting = [_Waiting((), 0)]
        self.begin(self.waiting[0])

    def begin(self, branch: _Waiting) -> None:
        """Take the solver back to where a branch leaves the run before."""
        self.decisions = list(branch.decisions)
        self.at = self.level = 0
        self.known: dict[int, bool] = {}
        self.conditions: list[Any] = []
        self.model: Any = None
        while len(self.told) - 1 > branch.level:
            self.solver.pop()
            self.told.pop()

    def settle(self, term: Any, opposite: Any) -> bool:  # noqa: ANN401
        """Settle a truth for the run in progress."""
        key = term.get_id()
        if key in self.known:
            return self.known[key]
        if self.at == len(self.decisions):
            taken, fork = self._choose(term, opposite)
            if fork:
                self.waiting.append(_Waiting((*self.decisions, (not taken, True)), self.level))
            self.decisions.append((taken, fork))
        taken, fork = self.decisions[self.at]
        self.at += 1
        if fork:
            self._enter(term if taken else opposite)
        self.known[key] = taken
        return taken

    def _enter(self, condition: Any) -> None:  # noqa: ANN401
        self.conditions.append(condition)
        self.level += 1
        if self.level == len(self.told):
            self.solver.push()
            self.told.append(self.told[-1])
            self.solver.add(condition)

    def _choose(self, term: Any, opposite: Any) -> Decision:  # noqa: ANN401
        """Take a branch that some step takes; say whether the solver leaves the other open."""
        z3, solver = self.space.z3, self.solver
        unheard = self.space.axioms[self.told[-1] :]
        if unheard:
            solver.add(*unheard)
            self.told[-1] += len(unheard)
            self.model = None
        if self.model is None:
            answer = solver.check()
            if answer == z3.unsat:
                raise _Impossible
            self.model = solver.model() if answer == z3.sat else None
        if self.model is None:
            return True, True
        value = self.model.eval(term, model_completion=True)
        taken = z3.is_true(value)
        if not taken and not z3.is_false(value):
            return True, True
        solver.push()
        solver.add(opposite if taken else term)
        answer = solver.check()
        solver.pop()
        return taken, answer != z3.unsat


def explore(space: Space, code: Callable[[], Any], axioms: Iterable[Any] = ()) -> list[Explored]:
    """Run `code` along all paths that the axioms allow; raise OpenError beyond MAX_PATHS, or for none."""
    walk = _Walk(space, axioms)
    found = []
    while walk.waiting:
        walk.begin(walk.waiting.pop())
        space.decide = walk.settle
        try:
            result = code()
            found.append(Explored(space.z3.And(*walk.conditions), result))
        except _Impossible:
            continue
        finally:
            space.decide = None
        if len(found) > MAX_PATHS:
            raise OpenError(f"more than {MAX_PATHS} paths")
    if not found:
        raise OpenError("no step takes any path of the code")
    return found


def merge(space: Space, paths: list[Explored]) -> list[Explored]:
    """Put paths together on which the code gives the same tuple of symbols and values."""
    found: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
    for path in paths:
        key = tuple((type(part), part.id if isinstance(part, (Int, Bool)) else part) for part in path.result)
        found.setdefault(key, (path.result, []))[1].append(path.condition)
    return [Explored(space.z3.Or(*conditions), result) for result, conditions in found.values()]
