"""Published methods under proof, replays, and what establishes each rule."""

import json
from pathlib import Path

import pytest
from routeproof_conformance.cases.coverage import coverage
from routeproof_conformance.cli import app
from routeproof_conformance.prove import runner
from routeproof_conformance.prove.capturer import CHECKS, no_host_sync
from routeproof_conformance.prove.published import CONTROLS, PublishedTarget
from routeproof_conformance.prove.targets import CapturerTarget
from routeproof_reference.proofs import (
    BY_ID,
    OBLIGATIONS,
    Result,
    Status,
    UnknownShapeError,
    crosshair,
    established_by,
    facts,
    smt,
)
from routeproof_reference.proofs import box as box_
from routeproof_spec import Level, Surface
from routeproof_spec.rules import RULES
from typer.testing import CliRunner

pytest.importorskip("z3")

NEEDED = [
    rule.id
    for rule in RULES.values()
    if rule.group in ("LAY", "COL") and rule.level is Level.MUST and Surface.CAPTURER in rule.surfaces
]


@pytest.mark.parametrize("rule", NEEDED)
def test_every_must_of_layout_and_collectives_is_established_by_something(rule):
    assert established_by(rule) or coverage(rule).cases


def test_obligations_name_rules_that_exist():
    assert {rule for item in OBLIGATIONS for rule in item.rules} <= set(RULES)


def test_the_capturers_decision_is_right_in_the_box():
    check = box_.enumerate_box(CapturerTarget(), box_.BOX)
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check


@pytest.mark.parametrize("claim", ["own-rows", "other-ranks", "fail-closed", "declared", "malformed-groups"])
def test_the_capturers_decision_is_proved(claim):
    check = smt.prove(CapturerTarget(), claim, (None,))
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check


def published(vllm_file, version):
    return PublishedTarget(f"vllm=={version}", vllm_file(version))


@pytest.mark.published
@pytest.mark.parametrize(
    "claim", ["own-rows", "other-ranks", "fail-closed", "needless-gather", "zero-tokens"]
)
def test_the_newest_published_method_is_right(vllm_file, claim):
    target = published(vllm_file, "0.33.0")
    check = smt.prove(target, claim, (1, 2, 3, None))
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check
    for fault in CONTROLS[claim]:
        assert smt.prove(target.faulty(fault), claim, (2, 3)).status is Status.REFUTED, fault


@pytest.mark.published
def test_the_misreading_of_padded_local_rows_has_an_exact_condition(vllm_file):
    target = published(vllm_file, "0.33.0")
    assert facts.establish("padded-local-misread", target, (2, None), "").status is Status.ESTABLISHED
    assert facts.establish("padded-local-misread", target, (2,), "never").status is Status.REFUTED


@pytest.mark.published
@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_older_published_methods_are_refuted_at_dp_1_and_the_class_confirms_it(
    vllm_file, version, tmp_path, monkeypatch
):
    vllm_file(version)
    monkeypatch.setattr("routeproof_conformance.prove.replay.folder", lambda: tmp_path)
    result = runner.one("own-rows", f"vllm=={version}", False)
    assert result.status is Status.REFUTED, result
    assert len(result.counterexample.counts) == 1
    assert result.counterexample.layout == "TP_SHARD"
    assert "failed LAY-02" in result.confirmed
    assert runner.exit_code([result]) == 1
    (path,) = tmp_path.glob("*.json")
    again = CliRunner().invoke(app, ["run", "--engine", f"vllm=={version}", "--case", str(path), "--json"])
    assert again.exit_code == 1, again.output
    found = json.loads(again.stdout)["findings"]
    assert {item["rule"] for item in found if item["verdict"] == "failed"} >= {"LAY-02"}


CAPTURE = "class RoutedExpertsCapturer:\n    def capture(self, layer_id, topk_ids):\n"
WRITE = "        self.device_buffer[: len(topk_ids), layer_id] = topk_ids\n"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("class Other:\n    pass\n", "0 classes RoutedExpertsCapturer"),
        ("class RoutedExpertsCapturer:\n    def record(self):\n        pass\n", "no method capture"),
        ("class RoutedExpertsCapturer:\n    def capture(self, ids):\n        pass\n", "capture takes"),
        (f"{CAPTURE}        self.sync()\n{WRITE}", "'sync'"),
        (f"{CAPTURE}        n = get_world_size()\n{WRITE}", "get_world_size"),
        (f"{CAPTURE}        ids = topk_ids.sort()\n{WRITE}", "sort"),
        (f"{CAPTURE}        pass\n", "wrote nothing"),
        (f"{CAPTURE}        ids = topk_ids[::2]\n{WRITE}", "plain slice"),
        (f"{CAPTURE}{WRITE}{WRITE}", "written twice"),
    ],
)
def test_a_method_of_another_shape_is_an_error_that_names_it(tmp_path, source, named):
    path = tmp_path / "capturer.py"
    path.write_text(source, "utf-8")
    with pytest.raises(UnknownShapeError, match=named):
        smt.prove(PublishedTarget("x", path), "own-rows", (2,))


def test_a_capturer_that_copies_whatever_it_gets_is_refuted(tmp_path):
    path = tmp_path / "capturer.py"
    path.write_text(CAPTURE + WRITE, "utf-8")
    assert smt.prove(PublishedTarget("x", path), "own-rows", (2,)).status is Status.REFUTED
    assert smt.prove(PublishedTarget("x", path), "fail-closed", (2,)).status is Status.REFUTED


def test_nothing_is_read_from_the_host():
    pytest.importorskip("torch")
    assert no_host_sync("").status is Status.ESTABLISHED
    assert no_host_sync("a maximum is read").status is Status.REFUTED


@pytest.mark.parametrize("name", ["layouts-drawn", "state-machine"])
def test_drawn_steps(name):
    pytest.importorskip("torch")
    assert CHECKS[name]("").status is Status.ESTABLISHED
    for fault in BY_ID[name].controls:
        assert CHECKS[name](fault).status is Status.REFUTED, fault


@pytest.mark.parametrize(
    "module", ["routeproof_reference.proofs.contracts", "routeproof_conformance.prove.contracts"]
)
def test_contracts_are_confirmed_over_all_paths(module):
    pytest.importorskip("crosshair")
    names = ("cross_dp_tp2", "shards_tp2", "tp_shard_tp3", "full_tp4")
    assert crosshair.check_contracts(module, names).status is Status.ESTABLISHED
    assert crosshair.check_contracts(module, ("planted_tokens_for_shards",)).status is Status.REFUTED


def test_the_two_decisions_agree_on_all_paths():
    pytest.importorskip("crosshair")
    assert CHECKS["same-decision"]("").status is Status.ESTABLISHED
    assert CHECKS["same-decision"]("planted_full").status is Status.REFUTED


def test_without_crosshair_its_obligations_are_open(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = runner.one("contracts", "reference", False)
    assert result.status is Status.OPEN
    assert "pip install" in result.detail


def _result(name, status):
    return Result(name, "x", status)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([], 3),
        ([_result("own-rows", Status.ESTABLISHED)], 0),
        ([_result("own-rows", Status.REFUTED)], 1),
        ([_result("own-rows", Status.OPEN)], 1),
        ([_result("own-rows", Status.ERROR)], 2),
        ([_result("uneven-shards", Status.REFUTED)], 0),
    ],
)
def test_exit_codes(results, code):
    assert runner.exit_code(results) == code


def test_the_command_prints_a_table_and_json():
    table = CliRunner().invoke(app, ["prove", "--only", "producers", "--jobs", "1"])
    assert table.exit_code == 0, table.output
    assert "2 of 2 planted faults refuted" in table.stdout
    whole = CliRunner().invoke(app, ["prove", "--only", "producers,protocol", "--jobs", "1", "--json"])
    found = json.loads(whole.stdout)
    assert found["exit_code"] == 0
    assert {item["status"] for item in found["results"]} == {"established"}


def test_usage_errors():
    assert CliRunner().invoke(app, ["prove", "--only", "nothing"]).exit_code == 2
    assert CliRunner().invoke(app, ["prove", "--engine", "nothing"]).exit_code == 2
    missing = CliRunner().invoke(app, ["run", "--case", str(Path("absent.json"))])
    assert missing.exit_code == 2
