"""The suite can fail: every fault is caught, by the rule that names it and by no unrelated one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from routeproof_conformance.cases import all_cases, select
from routeproof_conformance.cases.coverage import coverage
from routeproof_conformance.engines import load
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import Finding, Level, Topology, Verdict
from routeproof_spec.rules import RULES

from tests.test_contexts import FAULTS as CONTEXT_FAULTS

SMALL = tuple(Topology.parse(text) for text in ("tp1", "tp2", "tp4", "dp2", "tp2dp2"))

SHARDS, GROUPS, WIDTH = "LAY-03/shards[tp=2,*", "LAY-04/gathered-shards[tp=2,*", "BUF-09/width*"
STALE = "LAY-02 BUF-01"
LOST = "COL-01 LAY-02"

FAULTS: dict[tuple[str, str], str] = {
    # layout
    ("WritesOnlyItsShard", SHARDS): STALE,
    ("WritesOnlyItsShard", "LAY-02/six-tokens*"): STALE,
    ("CopiesWhateverComes", "LAY-02/cross-dp[tp=2,*"): "LAY-02 LAY-04 LAY-05",
    ("AcceptsAnyCount", "LAY-01/*"): "LAY-01",
    ("AcceptsAnyCount", "LAY-10/contradicted*"): "LAY-10",
    ("CountsByTheMask", "LAY-07/mask*"): f"LAY-07 {STALE}",
    ("GathersInReverse", SHARDS): "LAY-02 LAY-03 LAY-05",
    ("TakesAnotherGroup", "LAY-02/cross-dp[tp=2,dp=2,T=6+6,padded=0]"): "LAY-02 LAY-04",
    ("TakesAnotherGroup", "LAY-04/gathered-shards[tp=2,dp=2,T=6+6,padded=0]"): "LAY-02 LAY-04",
    ("CountsTokensWhereShardsArePadded", "LAY-04/gathered-groups*"): "LAY-02 LAY-03 LAY-04 LAY-05",
    ("KeepsTheLastRows", "LAY-05/gathered-and-padded*"): "LAY-02 LAY-05",
    ("TakesTheFirstMatch", "LAY-06/*"): "LAY-06",
    ("TriesShardsFirst", "LAY-06/*"): "COL-02 LAY-02 LAY-06",
    ("IgnoresTheDeclaration", "LAY-10/padded-local-at-dp*"): "LAY-10 LAY-02 LAY-05",
    ("ReadsMalformedGroups", "LAY-08/*"): "LAY-08",
    ("RuntimeErrorForGroups", "LAY-08/*"): "LAY-08",
    ("RejectsUncounted", "LAY-09/*"): "LAY-09 LAY-02",
    ("SaysItRejectsUncounted", "LAY-09/*"): "LAY-09",
    ("HonestlyRejectsUncounted", "LAY-09/*"): "",
    ("RejectsEmptyBatches", "LAY-12/*"): "LAY-12 LAY-02",
    ("WritesWhereItHasNoToken", "LAY-12/*"): "LAY-12",
    # collectives
    ("LeavesOneRankOut", SHARDS): LOST,
    ("RaisesOnOneRank", SHARDS): LOST,
    ("NarrowsOnOneRank", SHARDS): LOST,
    ("GathersWholeRows", "LAY-02/full*"): "COL-02",
    ("GathersWholeRows", "COL-02/*"): "COL-02",
    ("GathersTwiceACall", "COL-03/*"): "COL-03 COL-04",
    ("GathersTwiceACall", SHARDS): "COL-03",
    ("GathersBeforeItChecks", "BUF-03/*"): "COL-05",
    ("GathersBeforeItChecks", WIDTH): "COL-05",
    ("GathersAView", "COL-06/*"): "COL-06",
    ("GathersHalfWords", "COL-06/*"): "COL-06",
    ("ReadsIdsOnTheHost", "COL-07/*"): "COL-07",
    # buffer
    ("WritesBeforeItChecks", "LAY-01/*"): "BUF-02",
    ("TakesNegativeLayers", "BUF-03/*"): "BUF-03",
    ("IgnoresLayersBeyond", "BUF-03/*"): "BUF-03",
    ("Truncates", "BUF-04/*"): "BUF-04",
    ("IgnoresOffsets", "BUF-05/halves*"): f"BUF-05 {STALE}",
    ("FillsWithOnes", "BUF-08/*"): "BUF-08",
    ("BroadcastsWidthOne", WIDTH): "BUF-09",
    ("KeepsSharedColumns", "BUF-09/shared-column*"): "BUF-09 IDS-04 LAY-02",
    # snapshots and ids
    ("PublishesAView", SHARDS): "SNP-01",
    ("PublishesGraphPadding", SHARDS): "SNP-03 LAY-02 LAY-05",
    ("DropsTheLastRow", SHARDS): "SNP-03 LAY-02",
    ("PublishesOnEveryRank", SHARDS): "SNP-04",
    ("PublishesWords", "SNP-02/*"): "SNP-02",
    ("NarrowsByTheLargestId", "SNP-02/*"): "SNP-02",
    ("TakesAnyNumberOfExperts", "SNP-02/*"): "SNP-02",
    ("WrapsIds", "IDS-02/*"): "IDS-02",
    ("SortsColumns", "SNP-02/element*E=256,ids=low*"): "IDS-05 LAY-02 SNP-02",
    # gate
    ("AssertsInPlaceOfChecks", "BUF-03/*"): "GAT-03",
    ("AssertsInPlaceOfChecks", WIDTH): "GAT-03",
}
"""The rules that fail, of a fault on the cases that match."""

REFUSED_BY_THE_WORLD = {"GathersAView": {"LAY-02"}, "GathersHalfWords": {"LAY-02"}}
"""Input of a collective that worlds may refuse, as gloo does, so that the step does not end."""
WORLD = SimulatedWorld()


def findings(name: str, pattern: str) -> list[Finding]:
    runner = Runner(load(f"tests.faulty_engines:{name}"), WORLD)
    found = [item for case in select(pattern, topologies=SMALL) for item in runner.run(case)]
    assert found, f"{pattern} matches no case"
    return found


@pytest.mark.parametrize(("name", "pattern"), FAULTS)
def test_a_fault_is_caught_by_the_rules_that_name_it(name: str, pattern: str) -> None:
    found = findings(name, pattern)
    failing = {item.rule for item in found if item.verdict is Verdict.FAILED}
    ignored = REFUSED_BY_THE_WORLD.get(name, set())
    told = {item.rule: f"{item.case}: {item.message}" for item in found if item.verdict is Verdict.FAILED}
    assert failing - ignored == set(FAULTS[name, pattern].split()), told
    assert not [item for item in found if item.verdict is Verdict.ERROR]
    if name != "ReadsIdsOnTheHost":  # there every call reads
        assert {item.rule for item in found if item.verdict in (Verdict.PASSED, Verdict.SKIPPED)}


def test_every_must_that_has_cases_is_seen_to_fail() -> None:
    """What no fault can make fail is not tested."""
    must = {rule.id for rule in RULES.values() if rule.level is Level.MUST and coverage(rule.id).cases}
    caught = {rule for rules in (*FAULTS.values(), *CONTEXT_FAULTS.values()) for rule in rules.split()}
    assert len(must) > 20
    assert must <= caught, f"no fault is caught by {sorted(must - caught)}"


def test_every_rule_that_has_cases_is_seen_to_fail() -> None:
    """SHOULD and PROFILE rules too."""
    covered = {rule for case in all_cases() for rule in case.rules}
    assert covered == {rule for rules in FAULTS.values() for rule in rules.split()}


def test_a_rank_that_is_left_alone_is_a_deadlock() -> None:
    for name in ("LeavesOneRankOut", "RaisesOnOneRank"):
        told = [item.message for item in findings(name, "LAY-02/six-tokens*") if item.rule == "COL-01"]
        assert "deadlock: TP ranks [0] wait in a collective that TP ranks [1] never join" in told[0]


def test_different_collectives_are_a_mismatch_that_names_both() -> None:
    (told,) = [
        item.message for item in findings("NarrowsOnOneRank", "LAY-02/six-tokens*") if item.rule == "COL-01"
    ]
    assert "mismatch" in told
    assert "'uint8', (3, 2)" in told
    assert "'int32', (3, 2)" in told


def test_a_type_error_is_no_rejection() -> None:
    found = findings("TypeErrorForGroups", "LAY-08/*")
    assert {item.verdict for item in found if item.rule == "LAY-08"} == {Verdict.ERROR}
    assert all("broken adapter or stub" in item.message for item in found if item.rule == "LAY-08")
    assert not [item for item in found if item.verdict is Verdict.FAILED]


def test_another_error_than_a_value_error_is_told() -> None:
    told = [item.message for item in findings("RuntimeErrorForGroups", "LAY-08/*") if item.rule == "LAY-08"]
    assert all("rejected with RuntimeError" in text and "expected a ValueError" in text for text in told)


def test_bare_assertions_pass_every_rule_but_the_one_on_assertions() -> None:
    found = findings("AssertsInPlaceOfChecks", "BUF-03/layer[tp=2,dp=1,*layer=-1]")
    verdicts = {item.rule: item.verdict for item in found}
    assert verdicts["BUF-03"] is verdicts["BUF-02"] is Verdict.PASSED
    assert verdicts["GAT-03"] is Verdict.FAILED
    assert all("without assertions:" in item.message for item in found if item.rule == "GAT-03")


ADAPTER = """
from acme_capturer import Capturer
from tests.toy_engines import ToyEngine

class Engine(ToyEngine):
    capturer = Capturer
    sources = ("acme_capturer",)

class Misspelt(Engine):
    sources = ("acme_capturers",)
"""
CAPTURER = """
from tests.toy_engines import PerLayerCapturer

class Capturer(PerLayerCapturer):
    def check_layer(self, layer):
        assert 0 <= layer < self.config.layers
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An adapter that has imported its engine by the time that assertions go."""
    (tmp_path / "acme_capturer.py").write_text(CAPTURER)
    (tmp_path / "acme_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("acme_capturer", "acme_adapter"):
        sys.modules.pop(name, None)


def judged_without_assertions(name: str) -> Finding:
    case = next(select("BUF-03/layer[tp=2,dp=1,*layer=-1]"))
    return next(item for item in Runner(load(name), WORLD).run(case) if item.rule == "GAT-03")


@pytest.mark.usefixtures("acme")
def test_an_adapter_in_another_module_keeps_no_assertions() -> None:
    assert judged_without_assertions("acme_adapter:Engine").verdict is Verdict.FAILED


@pytest.mark.usefixtures("acme")
def test_sources_that_are_not_imported_prove_nothing() -> None:
    found = judged_without_assertions("acme_adapter:Misspelt")
    assert found.verdict is Verdict.SKIPPED
    assert "acme_capturers" in found.message


def test_modules_are_as_before_once_assertions_are_gone() -> None:
    before = sys.modules["tests.faulty_engines"]
    load("tests.faulty_engines:AssertsInPlaceOfChecks")
    assert sys.modules["tests.faulty_engines"] is before
    assert sys.modules["tests"].faulty_engines is before
