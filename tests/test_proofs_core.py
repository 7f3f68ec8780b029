"""Executors, claims, box, facts and protocol of the proofs."""

import numpy as np
import pytest
from routeproof_reference.proofs import (
    BY_ID,
    OBLIGATIONS,
    Check,
    OpenError,
    Status,
    UnknownShapeError,
    facts,
    protocol,
    smt,
    uncounted,
)
from routeproof_reference.proofs import box as box_
from routeproof_reference.proofs.batch import explore as explore_batch
from routeproof_reference.proofs.examples import check_producers
from routeproof_reference.proofs.faults import FAULTS, PLAN_FAULTS, ReferenceTarget, faulty
from routeproof_reference.proofs.obligation import judge
from routeproof_reference.proofs.paths import explore
from routeproof_reference.proofs.run import OF_GRAPHS, establish
from routeproof_reference.proofs.scenario import spread
from routeproof_reference.proofs.symbolic import Space
from routeproof_reference.proofs.target import Decision, Outcome

REFERENCE = ReferenceTarget()


def sign(x):
    if x > 0:
        return 1
    return 0 if x == 0 else -1


def test_paths_cover_the_code():
    z3 = pytest.importorskip("z3")
    space = Space()
    x = space.int("x")
    found = explore(space, lambda: sign(x))
    assert sorted(path.result for path in found) == [-1, 0, 1]
    solver = z3.Solver()
    solver.add(z3.Not(z3.Or(*(path.condition for path in found))))
    assert solver.check() == z3.unsat


@pytest.mark.parametrize(("value", "by", "quotient"), [(7, 2, 3), (-7, 2, -4), (8, 4, 2), (-1, 3, -1)])
def test_symbolic_division_rounds_down(value, by, quotient):
    z3 = pytest.importorskip("z3")
    space = Space()
    x = space.int("x")
    found, rest = x // by, x % by
    solver = z3.Solver()
    solver.add(*space.axioms, x.term == value)
    assert solver.check() == z3.sat
    model = solver.model()
    assert model.eval(found.term).as_long() == quotient == value // by
    assert model.eval(rest.term).as_long() == value % by


def test_a_batch_runs_each_path_on_its_cases():
    values = np.array([3, -1, 0, 5])
    got = np.zeros(4, int)
    for ran in explore_batch(sign, (values,)):
        got[ran.cases] = ran.result
    assert got.tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize("tp", [1, 2, 3, 8])
def test_abstract_sums_are_real_counts(tp):
    for shards in range(5):
        for tokens in range(shards, tp * shards + 1):
            counts = spread(tokens, shards, tp)
            assert sum(counts) == tokens
            assert sum(-(-count // tp) for count in counts) == shards


def test_the_box_is_right():
    check = box_.enumerate_box(REFERENCE, box_.BOX)
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check
    assert int(check.detail.split()[0].replace(",", "")) > 500_000


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "always gather"])
def test_the_box_refutes_planted_faults(fault):
    check = box_.enumerate_box(ReferenceTarget(fault), box_.BOX)
    assert check.status is Status.REFUTED
    assert fault in str(check.counterexample)


def test_the_box_goes_on_with_the_claims_that_hold():
    target = ReferenceTarget("gather of whole rows")
    early = box_.enumerate_box(target, box_.BOX)
    whole = box_.enumerate_box(target, box_.BOX, whole=True)
    assert (early.status, whole.status) == (Status.REFUTED, Status.REFUTED)
    failing, held = whole.detail.split("; the other claims hold of ")
    assert "needless-gather" in failing
    assert "own-rows" not in failing
    assert held == box_.enumerate_box(REFERENCE, box_.BOX).detail


def test_every_fault_still_has_its_place():
    for name in (*FAULTS, *PLAN_FAULTS):
        assert callable(faulty(name))


@pytest.mark.parametrize("claim", [name for name in smt.PLANS if name != "order-any-set"])
def test_claims_are_theorems(claim):
    pytest.importorskip("z3")
    check = smt.prove(REFERENCE, claim, (2, None))
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check


@pytest.mark.parametrize("fact", [name for name in facts.FACTS if name not in OF_GRAPHS])
def test_facts_are_theorems_and_their_faulty_statements_are_not(fact):
    pytest.importorskip("z3")
    check = facts.establish(fact, REFERENCE, (2,), "")
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check
    assert facts.establish(fact, REFERENCE, (2,), "faulty").status is Status.REFUTED


@pytest.mark.parametrize("fault", ["", *protocol.FAULTS])
def test_protocol(fault):
    expected = Status.REFUTED if fault else Status.ESTABLISHED
    assert protocol.search(REFERENCE, fault).status is expected


@pytest.mark.parametrize("fault", ["", *BY_ID["producers"].controls])
def test_producers(fault):
    assert check_producers(fault).status is (Status.REFUTED if fault else Status.ESTABLISHED)


def test_every_obligation_has_a_control():
    assert len(BY_ID) == len(OBLIGATIONS)
    assert all(item.controls and item.rules and item.statement for item in OBLIGATIONS)


def _examine(subject, control):
    def examine(fault):
        found = control if fault else subject
        if isinstance(found, BaseException):
            raise found
        return found

    return examine


ESTABLISHED, REFUTED = Check(Status.ESTABLISHED), Check(Status.REFUTED)


@pytest.mark.parametrize(
    ("subject", "control", "status"),
    [
        (ESTABLISHED, REFUTED, Status.ESTABLISHED),
        (ESTABLISHED, ESTABLISHED, Status.OPEN),
        (ESTABLISHED, OpenError("unknown"), Status.OPEN),
        (REFUTED, REFUTED, Status.REFUTED),
        (OpenError("timeout"), REFUTED, Status.OPEN),
        (UnknownShapeError("odd"), REFUTED, Status.ERROR),
        (Check(Status.ESTABLISHED, vacuous=("part",)), REFUTED, Status.OPEN),
    ],
)
def test_what_counts_as_established(subject, control, status):
    result = judge(BY_ID["arrays"], "x", _examine(subject, control))
    assert result.status is status


def test_without_its_tool_an_obligation_is_open(monkeypatch):
    from routeproof_reference.proofs import symbolic

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(symbolic.importlib, "import_module", missing)
    with pytest.raises(OpenError, match=r"pip install 'routeproof\[prove\]'"):
        smt.prove(REFERENCE, "own-rows", (2,))


@pytest.mark.parametrize("name", ["own-rows", "base-set-harmless", "uncounted"])
def test_a_solver_that_gives_up_leaves_it_open(name, monkeypatch):
    z3 = pytest.importorskip("z3")
    for solver in (z3.Solver, z3.Optimize):
        monkeypatch.setattr(solver, "check", lambda *_: z3.unknown)
        monkeypatch.setattr(solver, "reason_unknown", lambda _: "timeout")
    result = establish(name, REFERENCE)
    assert (result.status, "Z3 does not know (timeout)" in result.detail) == (Status.OPEN, True), result


@pytest.mark.parametrize("fault", PLAN_FAULTS)
def test_without_counts_rows_pass_through(fault):
    pytest.importorskip("z3")
    check = uncounted.establish(REFERENCE)
    assert (check.status, check.detail) == (
        Status.ESTABLISHED,
        "8 theorems; undeclared: n rows from 0 on",
    ), check
    assert uncounted.establish(ReferenceTarget(fault)).status is Status.REFUTED


def test_a_refusal_that_depends_on_n_is_no_pass_through():
    pytest.importorskip("z3")

    class Moody(ReferenceTarget):
        configurable = False

        def unknown(self, n, declared):
            return Decision(Outcome.LAYOUT_ERROR) if n > 7 else super().unknown(n, declared)

    check = uncounted.establish(Moody())
    assert (check.status, "depending on n" in check.detail) == (Status.REFUTED, True), check


def test_refusing_every_n_is_allowed_to_code_that_takes_no_declarations():
    pytest.importorskip("z3")

    class Strict(ReferenceTarget):
        configurable = False

        def unknown(self, *_):
            return Decision(Outcome.LAYOUT_ERROR)

    assert uncounted.establish(Strict()).status is Status.ESTABLISHED
