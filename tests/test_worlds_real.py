"""Real ranks: order, faults, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from routeproof_conformance.campaign import REAL_TOPOLOGIES, Plan, run_worlds
from routeproof_conformance.cases import all_cases, select
from routeproof_conformance.engines import load
from routeproof_conformance.runner import Run
from routeproof_conformance.worlds.available import availability
from routeproof_spec import Topology, Verdict

HERE = Path(__file__).parent
TRIGGER = "LAY-03/shards[tp=2,dp=1,T=9,padded=0]"
OTHERS = (
    "LAY-03/shards[tp=2,dp=1,T=5,padded=0]",
    "LAY-03/shards[tp=2,dp=1,T=8,padded=0]",
    "LAY-03/shards[tp=2,dp=1,T=11,padded=0]",
)
TIMEOUT = 1.5


def cases(*ids):
    found = {case.id: case for case in all_cases()}
    return tuple(found[ident] for ident in ids)


def command(*options):
    return [sys.executable, "-m", "routeproof_conformance", "run", *options]


def judged(engine, chosen, timeout=TIMEOUT):
    run = Run(load(engine), ("gloo",))
    start = time.monotonic()
    for _ in run_worlds(run, Plan(chosen, ("gloo",), named_topologies=True, timeout=timeout)):
        pass
    return run, time.monotonic() - start


def left_behind():
    """Give the children of this process that still run."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text("utf-8").split()
    return [pid for pid in children if "Z" not in Path(f"/proc/{pid}/stat").read_text("utf-8").split()[2]]


@pytest.fixture(autouse=True)
def drill_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("Sleeps", ("no answer within", "did not join")),
        ("Killed", ("SIGKILL",)),
        ("Raises", ("no gather from me", "did not join")),
        ("NeverAnswered", ("did not join",)),
    ],
)
def test_a_fault_is_a_finding_of_its_case_and_the_others_run(fault, words):
    before = left_behind()
    run, seconds = judged(f"drill_engines:{fault}", cases(OTHERS[0], TRIGGER, *OTHERS[1:]))
    bad = {item.case for item in run.findings if item.verdict in (Verdict.FAILED, Verdict.ERROR)}
    assert bad == {TRIGGER}
    assert run.cases == 4
    assert run.verdict == "non-conformant"
    lockstep = next(item for item in run.findings if item.case == TRIGGER and item.rule == "COL-01")
    assert lockstep.verdict is Verdict.FAILED
    messages = " ".join(item.message for item in run.findings if item.case == TRIGGER)
    assert any(word in messages for word in words), messages
    assert any("built anew" in note for note in run.notes)
    assert seconds < 3 * TIMEOUT + 15
    assert left_behind() == before


def test_garbage_on_stdout_harms_nobody(capfd):
    run, _ = judged("drill_engines:PrintsGarbage", cases(OTHERS[0], TRIGGER))
    assert run.verdict == "conformant"
    assert capfd.readouterr().out == ""


def test_garbage_leaves_json_valid():
    done = subprocess.run(
        command("--engine", "drill_engines:PrintsGarbage", "--world", "gloo", "--case", TRIGGER, "--json"),
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "conformant"


def test_ctrl_c_keeps_what_was_found_and_leaves_no_process():
    process = subprocess.Popen(
        command("--engine", "drill_engines:Slow", "--world", "gloo", "--rule", "LAY-03"),
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    time.sleep(6)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 3, (out, err)
    assert "cut short: interrupted" in out
    deadline = time.monotonic() + 10
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _session(process.pid) == []


def _session(leader):
    """Give the processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8").rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("engine", ["routeproof", "reference"])
def test_all_four_topologies_conform(engine):
    chosen = tuple(case for case in select(rule="LAY-03") if case.topology in REAL_TOPOLOGIES)
    run, _ = judged(engine, chosen, timeout=10)
    assert run.verdict == "conformant"
    assert {item.topology for item in run.findings} == {"tp2", "tp4", "tp2dp2", "dp2"}


@pytest.mark.parametrize("name", ["tp2", "tp4", "tp2dp2", "dp2"])
def test_every_real_topology_has_the_cases_of_the_seed(name):
    """At least 36 accepted cases per rank, of every kind that the seed's own check had."""
    topology = Topology.parse(name)
    accepted = [case for case in select(topologies=(topology,)) if case.twin is None]
    assert len(accepted) >= 36
    steps = [case.steps[-1] for case in accepted]
    counts = [step.context.counts for step in steps if step.context.counts is not None]
    assert any(count % 2 for per_rank in counts for count in per_rank)
    assert any(count == 0 for per_rank in counts for count in per_rank)
    assert any(count == 1 for per_rank in counts for count in per_rank)
    assert topology.dp == 1 or any(len(set(per_rank)) > 1 for per_rank in counts)
    assert any(step.context.real != step.context.counts for step in steps)
    assert any(step.context.microbatches for step in steps)
    assert any(case.family == "BUF-01/reuse" for case in accepted)


def test_worlds_say_why_they_cannot_run():
    assert availability("simulated", 8).reason == ""
    reason = availability("nccl", 2).reason
    if reason:
        run = Run(load("reference"), ("nccl",))
        chosen = cases(OTHERS[0])
        for _ in run_worlds(run, Plan(chosen, ("nccl",), named_topologies=True)):
            pass
        assert {item.verdict for item in run.findings} == {Verdict.SKIPPED}
        assert run.exit_code == 3
        assert any(reason in note for note in run.notes)
