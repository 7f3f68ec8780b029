"""Three capturers that have nothing in common with the reference but the contract are conformant."""

import threading
from collections import Counter

import pytest
from routeproof_conformance.cases import all_cases
from routeproof_conformance.engines import load
from routeproof_conformance.parallel import run_simulated
from routeproof_conformance.runner import Run
from routeproof_spec import CAPABILITIES, Case, Level, Surface, Verdict
from routeproof_spec.rules import RULES


@pytest.fixture(scope="module", params=["PerLayer", "Deferred", "Unreadable"])
def run(request: pytest.FixtureRequest) -> Run:
    """The whole catalogue, in this process."""
    judged = Run(load(f"tests.toy_engines:{request.param}"), ("simulated",))
    before = threading.active_count()
    for _ in run_simulated(judged, all_cases(), jobs=1):
        pass
    assert threading.active_count() - before <= max(case.topology.tp for case in all_cases())
    return judged


def test_a_right_capturer_is_conformant(run: Run) -> None:
    wrong = [item for item in run.findings if item.verdict in (Verdict.FAILED, Verdict.ERROR)]
    assert run.verdict == "conformant", [f"{item.case} {item.rule}: {item.message}" for item in wrong][:5]
    assert run.exit_code == 0
    assert not run.cut_short


def test_nothing_is_skipped_and_only_what_is_not_claimed_is_unsupported(run: Run) -> None:
    counts = run.counts
    assert counts["skipped"] == counts["error"] == counts["known-failure"] == 0
    claimed = run.engine.profile.capabilities
    for item in run.findings:
        if item.verdict is not Verdict.UNSUPPORTED:
            continue
        before, _, names = item.message.partition("needs the capabilities ")
        if names:
            assert not before, item
            assert set(names.split(", ")) <= set(CAPABILITIES) - claimed, item
        else:
            assert item.message.startswith("is shown at the surface "), item
            assert Surface.CAPTURER not in RULES[item.rule].surfaces
    ran = [case for case in all_cases() if set(case.capabilities) <= claimed and _at_capturer(case)]
    assert run.cases == len(ran)


def _at_capturer(case: Case) -> bool:
    return any(Surface.CAPTURER in RULES[rule].surfaces for rule in case.rules)


def test_every_must_of_the_capturer_that_has_cases_passed(run: Run) -> None:
    passed = {item.rule for item in run.findings if item.verdict is Verdict.PASSED}
    claimed = run.engine.profile.capabilities
    listed = {rule for case in all_cases() if set(case.capabilities) <= claimed for rule in case.rules}
    must = {rule for rule in listed if RULES[rule].level is Level.MUST}
    assert {rule for rule in must if Surface.CAPTURER in RULES[rule].surfaces} <= passed
    assert {"LAY-02", "COL-01", "BUF-01", "GAT-03", "IDS-02", "SNP-01"} <= passed


def test_only_the_gather_per_layer_breaks_a_should(run: Run) -> None:
    failing = Counter(item.rule for item in run.findings if item.verdict is Verdict.FAILED)
    if run.engine.profile.name == "Deferred":
        assert not failing
    else:
        assert set(failing) == {"COL-04"}


def test_a_buffer_that_nobody_can_read_is_never_judged(run: Run) -> None:
    engine = run.engine.engine
    readable = run.engine.profile.name != "Unreadable"
    case = next(case for case in all_cases() if case.topology.size == 1)
    made = engine.create(case.config, case.topology.ranks()[0], None)
    assert (made.buffer() is not None) is readable
