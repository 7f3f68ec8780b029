"""How code is run along all its paths: on Z3 terms, and on arrays of cases."""

from typing import NamedTuple

import numpy as np
import pytest
from routeproof_reference.proofs import OpenError, Status, UnknownShapeError, batch, paths, smt
from routeproof_reference.proofs.faults import ReferenceTarget
from routeproof_reference.proofs.symbolic import Space
from routeproof_reference.resolve import resolve

z3 = pytest.importorskip("z3")


class Found(NamedTuple):
    kind: str
    value: object


def sign(x):
    if x > 0:
        return Found("some", x)
    return Found("none", 0) if x == 0 else Found("some", -x)


def conditions(space, found):
    """Give the results with whether each can be had, and whether together they are all."""
    solver = z3.Solver()
    solver.add(*space.axioms, z3.Not(z3.Or(*(path.condition for path in found))))
    return [path.result.kind for path in found], solver.check() == z3.unsat


def test_a_branch_that_the_axioms_rule_out_is_not_followed():
    space = Space()
    x = space.int("x")
    assert len(paths.explore(space, lambda: sign(x))) == 3
    (only,) = paths.explore(space, lambda: sign(x), [x.term > 5])
    assert only.result.value is x
    assert z3.is_true(z3.simplify(only.condition))


def test_an_axiom_that_a_run_adds_counts_at_once():
    space = Space()
    x = space.int("x")

    def code():
        third = x // 3
        if third * 3 > x:
            raise AssertionError("rounded up")
        return third * 3 == x or third

    found = paths.explore(space, code)
    assert len(found) == 2


def test_the_branches_of_one_run_do_not_leak_into_the_next():
    """Every combination of three independent truths comes out once, with its own condition."""
    space = Space()
    x, y, z = (space.int(name) for name in "xyz")
    found = paths.explore(space, lambda: Found(f"{bool(x > 0):d}{bool(y > 0):d}{bool(z > 0):d}", 0))
    assert sorted(path.result.kind for path in found) == [f"{n:03b}" for n in range(8)]
    for path in found:
        solver = z3.Solver()
        solver.add(path.condition)
        assert solver.check() == z3.sat
        model = solver.model()
        said = "".join(str(int(z3.is_true(model.eval(v.term > 0, model_completion=True)))) for v in (x, y, z))
        assert said == path.result.kind


def test_axioms_that_nothing_satisfies_are_no_proof():
    space = Space()
    x = space.int("x")
    with pytest.raises(OpenError, match="no step takes any path"):
        paths.explore(space, lambda: sign(x), [x.term > 0, x.term < 0])


def test_what_the_solver_gives_up_on_is_followed(monkeypatch):
    """Pruning saves time; it never decides."""
    few = smt.prove(ReferenceTarget(), "own-rows", (2,))
    monkeypatch.setattr(paths, "EFFORT", 1)
    many = smt.prove(ReferenceTarget(), "own-rows", (2,))
    assert few.status is many.status is Status.ESTABLISHED
    assert int(many.detail.split()[2]) > int(few.detail.split()[2])
    assert smt.prove(ReferenceTarget("no gather"), "own-rows", (2,)).status is Status.REFUTED


def test_paths_with_the_same_result_become_one():
    space = Space()
    x = space.int("x")
    found = paths.explore(space, lambda: Found("small" if (x > 0 and x < 9) or x == -1 else "other", 0))
    merged = paths.merge(space, found)
    assert len(found) > 2
    assert sorted(path.result.kind for path in merged) == ["other", "small"]
    assert conditions(space, merged)[1]
    small = next(path.condition for path in merged if path.result.kind == "small")
    for value, holds in ((-1, True), (0, False), (8, True), (9, False)):
        solver = z3.Solver()
        solver.add(x.term == value, small)
        assert (solver.check() == z3.sat) is holds


def test_batches_with_the_same_outcome_become_one():
    values = np.array([3, -1, 0, 5, -7])
    merged = {ran.result.kind: ran for ran in batch.merge(batch.explore(sign, (values,)), (values,))}
    assert sorted(merged) == ["none", "some"]
    some = merged["some"]
    assert dict(zip(some.cases.tolist(), np.asarray(some.result.value).tolist(), strict=True)) == {
        0: 3,
        1: 1,
        3: 5,
        4: 7,
    }
    assert np.array_equal(np.asarray(some.columns[0]), values[some.cases])
    assert merged["none"].cases.tolist() == [2]


def test_a_branch_that_the_solver_cannot_settle_is_followed(monkeypatch):
    monkeypatch.setattr(paths, "EFFORT", 20_000)
    space = Space()
    x, y, z = (space.int(name) for name in "xyz")

    def fermat():
        return Found("never" if x * x * x + y * y * y == z * z * z else "always", 0)

    found = paths.explore(space, fermat, [v.term > 0 for v in (x, y, z)])
    assert sorted(path.result.kind for path in found) == ["always", "never"]


def test_a_division_by_what_may_be_zero_is_an_error():
    """Assuming the divisor positive would drop the steps that divide by zero from every question."""

    def divides(**figures):
        assert figures["n"] // (figures["tp"] - 1) is not None
        return resolve(**figures)

    target = ReferenceTarget()
    target.code = divides
    assert smt.prove(ReferenceTarget(), "own-rows", (3,)).status is Status.ESTABLISHED
    with pytest.raises(UnknownShapeError, match="a division by a number that is not positive"):
        smt.prove(target, "own-rows", (3,))


@pytest.mark.parametrize("divisor", ["y", "y - 900", "-y"])
def test_a_guarded_division_does_not_narrow_the_steps(divisor):
    space = Space()
    x, y = space.int("x"), space.int("y")

    def code():
        by = {"y": y, "y - 900": y - 900, "-y": -y}[divisor]
        return Found("divided", x // by) if by > 0 else Found("not", 0)

    found = paths.explore(space, code)
    assert conditions(space, found) == (["divided", "not"], True) or conditions(space, found) == (
        ["not", "divided"],
        True,
    )
    for path in found:
        solver = z3.Solver()
        solver.add(*space.axioms, path.condition)
        assert solver.check() == z3.sat


def test_an_exact_division_still_asks_for_a_positive_divisor():
    space = Space()
    x, y = space.int("x"), space.int("y")
    with pytest.raises(UnknownShapeError):
        paths.explore(space, lambda: (x * y) // y)
    (path,) = paths.explore(space, lambda: Found("exact", (x * y) // y), [y.term > 0])
    assert path.result.value is x


def test_a_part_that_no_step_meets_is_vacuous(monkeypatch):
    own_rows = smt.CLAIMS["own-rows"]

    def never(at, decision):
        yield from own_rows(at, decision)
        yield "never", at.f.own < 0, True
        yield "only at DP = 1", (at.f.own > 0) if isinstance(at.f.dp, int) else (at.f.own < 0), True
        if not isinstance(at.f.dp, int):
            yield "only at DP > 1, never", (at.f.dp > 1) & (at.f.total < at.f.own), True

    monkeypatch.setitem(smt.CLAIMS, "own-rows", never)
    check = smt.prove(ReferenceTarget(), "own-rows", (2,))
    assert check.vacuous == ("never", "only at DP > 1, never")


@pytest.mark.parametrize("stray", [UnknownShapeError, batch._Split])
def test_code_under_examination_cannot_swallow_what_the_harness_raises(stray):
    assert not issubclass(stray, Exception)
