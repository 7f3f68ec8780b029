"""What the suite says of the capturers that vLLM published: exactly this, with the numbers of the reports."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from routeproof_conformance.cases import select
from routeproof_conformance.engines import load
from routeproof_conformance.parallel import run_simulated
from routeproof_conformance.runner import Run
from routeproof_spec import Finding, Topology, Verdict

pytestmark = pytest.mark.published
Find = Callable[[str], Path]

SMALL = tuple(Topology.parse(name) for name in ("tp1", "tp2", "dp2", "tp2dp2"))
BEFORE = "BUF-01 BUF-05 BUF-09 COL-04 COL-05 COL-06 GAT-03 IDS-02 LAY-01 LAY-02 LAY-08 SNP-02"
FAILING = {
    "0.31.0": BEFORE,
    "0.32.0": BEFORE,
    "0.33.0": "BUF-04 BUF-09 COL-04 COL-05 IDS-02 LAY-08 SNP-02",
}
OLD, NEW = "0.32.0", "0.33.0"
versions = pytest.mark.parametrize("version", FAILING)


@cache
def judged(version: str) -> Run:
    """All cases on a few small topologies."""
    run = Run(load(f"vllm=={version}"), ("simulated",))
    for _ in run_simulated(run, tuple(select(topologies=SMALL)), jobs=1):
        pass
    return run


def findings(find: Find, version: str, rule: str, case: str = "") -> list[Finding]:
    """What one rule says, of one case or of all."""
    find(version)
    found = [item for item in judged(version).findings if item.rule == rule and item.case.startswith(case)]
    assert found, f"{case} does not show {rule}"
    return found


def message(find: Find, version: str, rule: str, case: str) -> str:
    (found,) = findings(find, version, rule, case)
    assert found.verdict is Verdict.FAILED, found
    return found.message


@versions
def test_exactly_these_rules_fail(vllm_file: Find, version: str) -> None:
    vllm_file(version)
    failing = {item.rule for item in judged(version).findings if item.verdict is Verdict.FAILED}
    assert failing == set(FAILING[version].split())


@versions
def test_the_adapter_is_not_broken_and_every_case_ran(vllm_file: Find, version: str) -> None:
    vllm_file(version)
    run = judged(version)
    assert run.counts["error"] == 0
    assert not run.cut_short
    assert (run.verdict, run.exit_code) == ("non-conformant", 1)
    assert run.cases > 500
    assert run.counts["passed"] > 5000


@versions
def test_what_is_right_passes(vllm_file: Find, version: str) -> None:
    """No rule fails everywhere: the adapter feeds the engine what it takes."""
    for rule in ("LAY-02", "LAY-05", "BUF-01", "COL-01", "COL-02", "COL-03", "SNP-01", "SNP-03"):
        passed = [item for item in findings(vllm_file, version, rule) if item.verdict is Verdict.PASSED]
        assert len(passed) > 100, rule


# --- 0.32.0 and before: a shard is taken for the batch


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_shards_leave_the_rows_of_an_earlier_step(vllm_file: Find, version: str) -> None:
    """vLLM #61388: of six rows, 3 to 5 are stale."""
    for rule in ("LAY-02", "BUF-01"):
        told = message(vllm_file, version, rule, "LAY-02/six-tokens[tp=2")
        for row, want, stale in ((3, "[6, 7]", "[7, 2]"), (4, "[1, 0]", "[7, 1]"), (5, "[3, 2]", "[7, 0]")):
            assert f"published row {row}, layer 0: expected {want}, got {stale} (real row {row}" in told
        assert not [row for row in (0, 1, 2) if f"published row {row}," in told]
    told = message(vllm_file, version, "BUF-01", "LAY-05/three-tokens[tp=2")
    assert "published row 2, layer 0: expected [4, 5], got [7, 3]" in told


def test_one_row_of_six_is_taken(vllm_file: Find) -> None:
    told = message(vllm_file, OLD, "LAY-01", "LAY-01/one-row-of-six")
    assert "TP ranks [0, 1] accepted what must be rejected (n = 1 rows fit no layout" in told
    assert "step 1: FULL, T [6], R [6]; handed over: dp0/tp0-1 [1, 2]" in told


def test_malformed_groups_are_checked_by_an_assertion_alone(vllm_file: Find) -> None:
    uneven = "LAY-08/uneven[tp=2,dp=2,T=5+3,sizes=4+4+2]"
    assert "rejected with AssertionError" in message(vllm_file, OLD, "LAY-08", uneven)
    assert "expected a ValueError" in message(vllm_file, OLD, "LAY-08", uneven)
    assert "without assertions: step 1, DP rank 0: TP ranks [0, 1] accepted" in (
        message(vllm_file, OLD, "GAT-03", uneven)
    )


def test_the_second_microbatch_overwrites_the_first(vllm_file: Find) -> None:
    """vLLM #57184."""
    failing = [item for item in findings(vllm_file, OLD, "BUF-05") if item.verdict is Verdict.FAILED]
    assert failing
    assert not [item for item in findings(vllm_file, NEW, "BUF-05") if item.verdict is Verdict.FAILED]


# --- 0.33.0: layouts are right, up to negative sizes


def test_no_layout_rule_fails_but_for_negative_shard_sizes(vllm_file: Find) -> None:
    vllm_file(NEW)
    failing = [item for item in judged(NEW).findings if item.verdict is Verdict.FAILED]
    layout = [item for item in failing if item.rule.startswith("LAY")]
    assert {(item.rule, item.case.split("[")[0]) for item in layout} == {("LAY-08", "LAY-08/negative")}
    told = message(vllm_file, NEW, "LAY-08", "LAY-08/negative[tp=2,dp=2,T=5+3,sizes=3+3+-2+6]")
    assert "shard sizes [3, 3, -2, 6]; handed over: dp0/tp0-1 [10, 8], dp1/tp0-1 [10, 8]" in told
    (uneven,) = findings(vllm_file, NEW, "LAY-08", "LAY-08/uneven[tp=2,dp=2")
    assert uneven.verdict is Verdict.PASSED


def test_one_column_is_broadcast(vllm_file: Find) -> None:
    for emitted in ("FULL", "TP_SHARD"):
        told = message(vllm_file, NEW, "BUF-09", f"BUF-09/width[tp=2,dp=1,T=5,emitted={emitted},width=1]")
        assert "1 columns, expected K = 8" in told


@versions
def test_ids_wrap(vllm_file: Find, version: str) -> None:
    """prime-rl #3051, ms-swift #9981."""
    for wrong in (300, 256, -1):
        told = message(vllm_file, version, "IDS-02", f"IDS-02/no-wrap[tp=1,dp=1,E=256,id={wrong}]")
        assert f"published valid-looking ids, where id {wrong} of row 1" in told


@versions
def test_more_experts_than_two_bytes_hold_are_accepted(vllm_file: Find, version: str) -> None:
    failing = [item for item in findings(vllm_file, version, "SNP-02") if item.verdict is Verdict.FAILED]
    assert {item.case.split("[")[0] for item in failing} == {"SNP-02/beyond-two-bytes"}


def test_widths_are_judged_after_the_gather(vllm_file: Find) -> None:
    failing = [item for item in findings(vllm_file, NEW, "COL-05") if item.verdict is Verdict.FAILED]
    assert failing
    assert all("1 collectives before" in item.message for item in failing)


def test_a_microbatch_beyond_the_buffer_is_cut(vllm_file: Find) -> None:
    failing = [item for item in findings(vllm_file, NEW, "BUF-04") if item.verdict is Verdict.FAILED]
    assert {item.case.split("[")[0] for item in failing} == {"BUF-04/last-microbatch"}
    assert all("buffer of 24 rows" in item.message for item in failing)
