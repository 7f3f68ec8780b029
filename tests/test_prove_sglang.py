"""SGLang's published slices under proof, in each deployment; replays; files of another shape."""

import json
import shutil
from pathlib import Path

import pytest
from routeproof_conformance.cli import app
from routeproof_conformance.engines.sglang_source import BASE, CAPTURER, DP_ATTENTION, FILES
from routeproof_conformance.prove import replay, runner
from routeproof_conformance.prove.sglang import DEPLOYMENTS, sglang_target
from routeproof_conformance.prove.sglang_faults import CONTROLS, FAULTS
from routeproof_conformance.prove.targets import names_of
from routeproof_reference.proofs import Result, Status, UnknownShapeError, facts, smt
from routeproof_reference.proofs import box as box_
from routeproof_reference.proofs.obligation import Counterexample
from routeproof_reference.proofs.run import INFERENCE, establish, names_for
from routeproof_reference.proofs.scenario import figures_of
from routeproof_reference.proofs.target import Decision, members_of
from routeproof_spec import Layout
from typer.testing import CliRunner

pytest.importorskip("z3")
pytestmark = pytest.mark.published

ENGINE = "sglang==0.5.23"
everywhere = pytest.mark.parametrize("deployment", DEPLOYMENTS)


@pytest.fixture
def target(sglang_root, deployment):
    return sglang_target(ENGINE, deployment, sglang_root)


def decided(target, counts, dp_rank, tp, n):
    dp = len(counts)
    return target.decide(figures_of(counts, dp_rank, tp, n, None), members_of(target.layouts(dp)), None)


# --- decisions in numbers


@pytest.mark.parametrize(
    ("deployment", "counts", "dp_rank", "tp", "n", "rows"),
    [
        ("plain", (6,), 0, 2, 6, (0, 6)),
        ("plain", (5, 3), 1, 1, 3, (0, 3)),
        ("plain", (6,), 0, 1, 1, (0, 6)),  # rows 1 to 5 are an earlier step's
        ("dp-attention", (5, 3), 1, 1, 8, (5, 3)),
        ("dp-attention", (11, 13, 17, 19), 2, 2, 60, (24, 17)),
        ("dp-attention", (4, 4), 1, 1, 8, (4, 4)),
        ("decode-graph", (32, 32, 32, 32), 2, 1, 128, (64, 32)),
        ("decode-graph", (5, 3), 1, 1, 8, (5, 3)),
    ],
)
def test_slices_worked_out_by_hand(target, counts, dp_rank, tp, n, rows):
    found = decided(target, counts, dp_rank, tp, n)
    assert (found.start, found.length) == rows
    assert (found.outcome, found.gather, found.gathers) == ("rows", False, 0)


@pytest.mark.parametrize("deployment", ["deepep"])
@pytest.mark.parametrize(("counts", "tp", "n"), [((5, 3), 2, 2), ((1, 1), 4, 1), ((0, 0), 2, 0)])
def test_shards_are_gathered_whatever_they_hold(target, counts, tp, n):
    assert decided(target, counts, 1, tp, n) == Decision("rows", 0, counts[1], gather=True, gathers=1)


# --- what holds, and the planted faults that do not


@everywhere
def test_own_rows_are_right_at_the_publisher_for_any_counts(target):
    check = smt.prove(target, "own-rows", (1, 2, 3, 8, None))
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check
    for fault in target.controls["own-rows"]:
        assert smt.prove(target.faulty(fault), "own-rows", (2, 3)).status is Status.REFUTED, fault


@everywhere
def test_own_rows_hold_in_the_box_too(target):
    check = box_.enumerate_box(target, box_.BOX, only=("own-rows",))
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check
    for fault in target.controls["own-rows"]:
        found = box_.enumerate_box(target.faulty(fault), box_.BOX, only=("own-rows",))
        assert found.status is Status.REFUTED, fault


@pytest.mark.parametrize(
    ("name", "deployment"),
    [
        *(
            (name, deployment)
            for name in ("other-ranks", "zero-tokens", "lockstep")
            for deployment in DEPLOYMENTS
        ),
        *(("needless-gather", deployment) for deployment in DEPLOYMENTS if deployment != "deepep"),
        ("protocol", "deepep"),
        ("slots-in-requests", "decode-graph"),
    ],
)
def test_obligations_hold_with_their_controls(target, name):
    result = establish(name, target)
    assert result.status is Status.ESTABLISHED, result
    assert result.refuted
    assert not result.missed


def test_every_planted_fault_is_refuted_somewhere():
    assert {fault for controls in CONTROLS.values() for names in controls.values() for fault in names} == set(
        FAULTS
    )


def test_every_planted_fault_changes_a_decision(sglang_root):
    """In at least one deployment, so that none is a copy of the original."""
    steps = [((4, 4), 1, 2, n) for n in (2, 4, 8)] + [((5, 3), 1, 2, n) for n in (2, 3, 8)]
    targets = [sglang_target(ENGINE, deployment, sglang_root) for deployment in DEPLOYMENTS]
    elsewhere = {name for names in CONTROLS.values() for name in names["placed"]}  # than at layer 0
    for fault in set(FAULTS) - {"TP rank 0 otherwise"} - elsewhere:  # numbers have no TP rank
        planted = [target.faulty(fault) for target in targets]
        changed = [
            decided(target, *step) != decided(faulty, *step)
            for target, faulty in zip(targets, planted, strict=True)
            for step in steps
        ]
        assert any(changed), fault


# --- what does not hold, and what the real class does


@pytest.fixture
def kept(sglang_root, tmp_path, monkeypatch):  # noqa: ARG001 - the files must be there
    monkeypatch.setattr("routeproof_conformance.prove.replay.folder", lambda: tmp_path)
    return tmp_path


@everywhere
def test_an_n_that_fits_nothing_is_accepted_and_the_class_confirms_it(deployment, kept):
    result = runner.one("fail-closed", f"{ENGINE} {deployment}", False)
    assert result.status is Status.REFUTED, result
    layout = DEPLOYMENTS[deployment].layout
    assert result.counterexample.layouts == (layout,)
    assert sum(result.counterexample.counts) + result.counterexample.n <= 2
    assert "failed LAY-01" in result.confirmed
    assert runner.exit_code([result]) == 1
    (path,) = kept.glob("*.json")
    assert f"--engine {ENGINE} --case {path}" in result.replay
    again = CliRunner().invoke(app, ["run", "--engine", ENGINE, "--case", str(path), "--json"])
    assert again.exit_code == 1, again.output
    findings = json.loads(again.stdout)["findings"]
    assert "LAY-01" in {item["rule"] for item in findings if item["verdict"] == "failed"}
    assert not [item for item in findings if item["verdict"] in ("error", "unsupported")]


def replayed(deployment, claim, part, counterexample):
    said = f"{ENGINE} {deployment} gives rows ({claim}: {part})"
    found = counterexample._replace(layouts=(DEPLOYMENTS[deployment].layout,), said=said)
    result = Result(claim, f"{ENGINE} {deployment}", Status.REFUTED, counterexample=found)
    return replay.case_of(result, found), replay.confirm(result, result.target)


@pytest.mark.parametrize(
    ("counts", "dp_rank", "tp", "n"),
    [((1,), 0, 2, 1), ((0,), 0, 2, 0), ((4,), 0, 1, 4), ((1, 1), 1, 2, 1)],
)
@pytest.mark.parametrize("deployment", ["deepep"])
@pytest.mark.usefixtures("kept")
def test_a_gather_that_nobody_needs(target, counts, dp_rank, tp, n):
    assert smt.prove(target, "needless-gather", (2, None)).status is Status.REFUTED
    numbers = Counterexample(counts, dp_rank, tp, 0, n, "", None, "")
    found = smt.explain(target, "needless-gather", numbers, members_of(target.layouts(1)), None)
    case, result = replayed("deepep", "needless-gather", "needed", found)
    assert [(step.emitted, step.context.counts) for step in case.steps] == [(Layout.TP_SHARD, counts)]
    assert result.confirmed.startswith("failed COL-02: step 0")


@pytest.mark.usefixtures("kept")
def test_a_graph_is_replayed_as_a_graph():
    numbers = Counterexample((2, 2), 1, 1, 0, 3, "", None, "")
    case, result = replayed("decode-graph", "fail-closed", "no layout", numbers)
    assert [step.context.real for step in case.steps[:2]] == [(23, 23), (1, 1)]
    assert {step.emitted for step in (*case.steps, *case.twin.steps)} == {Layout.CROSS_DP}
    assert case.config.layouts == case.twin.config.layouts == {Layout.CROSS_DP}
    assert "failed LAY-01" in result.confirmed
    case, _ = replayed("dp-attention", "fail-closed", "no layout", numbers)
    assert [step.context.real for step in case.steps[:2]] == [(24, 24), (2, 2)]


@pytest.mark.usefixtures("kept")
def test_a_proof_that_the_class_contradicts_is_said():
    right = Counterexample((2,), 0, 1, 0, 2, "FULL", None, "")
    assert replayed("plain", "own-rows", "FULL", right)[1].confirmed == (
        "the real class keeps LAY-02, LAY-03, LAY-04, LAY-05 in this case"
    )


def test_a_copy_that_checks_its_rows_is_proved_to_fail_closed(sglang_root, tmp_path):
    root = changed(sglang_root, tmp_path, BASE, "        batch = ", "        self.rows = batch = ")
    start, stop = (
        "local_start_pos, local_end_pos = 0, forward_batch.out_cache_loc.shape[0]\n",
        "raise ValueError",
    )
    check = f"            if self.device_cache.rows != local_end_pos:\n                {stop}\n"
    repaired = sglang_target(ENGINE, "plain", changed(root, root, CAPTURER, start, start + check))
    assert smt.prove(repaired, "fail-closed", (1, 2, None)).status is Status.ESTABLISHED
    assert smt.prove(repaired, "own-rows", (1, 2, None)).status is Status.ESTABLISHED
    assert box_.enumerate_box(repaired, box_.BOX, only=("fail-closed",)).status is Status.ESTABLISHED


# --- files of another shape


def changed(root: Path, into: Path, file: str, old: str, new: str) -> Path:
    """Copy the files with one place changed."""
    if root != into:
        for name in FILES:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, into / name)
    source = (into / file).read_text("utf-8")
    assert old in source, old
    (into / file).write_text(source.replace(old, new), "utf-8")
    return into


SHAPES = [
    ("plain", CAPTURER, "class RoutedExpertsCapturer(", "class Recorder(", "0 classes RoutedExpertsCapturer"),
    ("plain", BASE, "class BaseDeviceCache:", "class DeviceCache:", "0 classes BaseDeviceCache"),
    ("plain", CAPTURER, "def _get_local_slice(", "def _get_slice(", "no method _get_local_slice"),
    ("plain", CAPTURER, "        cuda_graph_batch: Optional[int],\n", "", "_get_local_slice takes"),
    (
        "plain",
        CAPTURER,
        "def _is_scattered_a2a_backend",
        "def _is_scattered",
        "no function _is_scattered_a2a",
    ),
    (
        "plain",
        DP_ATTENTION,
        "def get_dp_local_slice_cpu(",
        "def get_slice(",
        "no function get_dp_local_slice",
    ),
    ("plain", CAPTURER, "topk_indices.shape[1] !=", "topk_indices.dim() !=", "'dim'"),
    (
        "plain",
        BASE,
        "self.buffer[:batch, layer_id, :]",
        "self.rows[:batch, layer_id, :]",
        "'rows' of the device cache",
    ),
    ("plain", BASE, "[:batch, layer_id, :] =", "[:batch, layer_id] =", "the buffer is written at"),
    (
        "plain",
        CAPTURER,
        "local_start_pos:local_end_pos, :, :",
        "local_start_pos:local_end_pos, 0, :",
        "is read at",
    ),
    ("plain", CAPTURER, "        super().capture(", "        super().record(", "'record' of the base class"),
    (
        "dp-attention",
        DP_ATTENTION,
        "forward_batch.global_num_tokens_cpu",
        "forward_batch.tokens",
        "'tokens' of the",
    ),
    (
        "dp-attention",
        DP_ATTENTION,
        "global_num_tokens[dp_rank]\n",
        "global_num_tokens[0]\n",
        "of another DP rank",
    ),
    (
        "dp-attention",
        DP_ATTENTION,
        "(global_num_tokens[:dp_rank])",
        "(global_num_tokens)",
        "of another DP rank",
    ),
    (
        "dp-attention",
        DP_ATTENTION,
        "    return parallel.attn_dp_rank\n",
        "    return parallel.pp_rank\n",
        "'pp_rank'",
    ),
    (
        "deepep",
        DP_ATTENTION,
        ".attn_tp_group.all_gather_into_tensor(",
        ".attn_tp_group.all_gather(",
        "'all_gather'",
    ),
    ("deepep", CAPTURER, "topk_indices, local_topk)", "topk_indices, topk_indices)", "a gather of Place"),
]


@pytest.mark.parametrize(("deployment", "file", "old", "new", "named"), SHAPES)
def test_a_file_of_another_shape_is_an_error_that_names_it(
    sglang_root, tmp_path, deployment, file, old, new, named
):
    root = changed(sglang_root, tmp_path, file, old, new)
    with pytest.raises(UnknownShapeError, match=named):
        smt.prove(sglang_target(ENGINE, deployment, root), "own-rows", (2,))


@pytest.mark.parametrize("number", [0, 11])
def test_such_an_error_is_the_result(sglang_root, tmp_path, monkeypatch, number):
    deployment, file, old, new, named = SHAPES[number]
    root = changed(sglang_root, tmp_path, file, old, new)

    class Fetched:
        def __init__(self):
            self.root = root

    monkeypatch.setattr("routeproof_conformance.prove.targets.cached", lambda *_: Fetched())
    result = runner.one("own-rows", f"{ENGINE} {deployment}", False)
    assert result.status is Status.ERROR
    assert named in result.detail
    assert runner.exit_code([result]) == 2


# --- the fact about graphs, and the command


def test_slots_counted_in_requests_are_of_graphs(sglang_root):
    graph = sglang_target(ENGINE, "decode-graph", sglang_root)
    eager = graph.faulty("a graph taken for eager")
    assert facts.establish("slots-in-requests", eager, (2, None), "").status is Status.REFUTED
    with pytest.raises(UnknownShapeError, match="no decode graphs"):
        facts.establish("slots-in-requests", sglang_target(ENGINE, "plain", sglang_root), (2,), "")


@everywhere
def test_what_is_asked_of_a_deployment(target, deployment):
    names = names_for(target, deep=False)
    assert set(names) >= {
        "own-rows",
        "other-ranks",
        "fail-closed",
        "needless-gather",
        "zero-tokens",
        "lockstep",
        "box",
    }
    assert not set(names) & {*INFERENCE, "order", "declared", "producers", "base-set-harmless"}
    assert ("protocol" in names) == (deployment == "deepep")
    assert ("slots-in-requests" in names) == (deployment == "decode-graph")


@pytest.mark.usefixtures("sglang_root")
def test_the_command_examines_every_deployment():
    assert names_of(ENGINE) == tuple(f"{ENGINE} {deployment}" for deployment in DEPLOYMENTS)
    assert names_of(f"{ENGINE} plain") == (f"{ENGINE} plain",)
    assert names_of("vllm==0.33.0") == ("vllm==0.33.0",)
    found = CliRunner().invoke(
        app, ["prove", "--engine", ENGINE, "--only", "lockstep", "--jobs", "1", "--json"]
    )
    assert found.exit_code == 0, found.output
    assert sorted(item["target"] for item in json.loads(found.stdout)["results"]) == sorted(names_of(ENGINE))


@pytest.mark.parametrize("name", [f"{ENGINE} nothing", "sglang", "sglang==0.0.1", "vllm==0.33.0 plain"])
def test_other_names_are_usage_errors(name):
    found = CliRunner().invoke(app, ["prove", "--engine", name])
    assert found.exit_code == 2
    assert "routeproof: " in found.output
