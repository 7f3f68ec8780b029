"""Ways to a false verdict that a review found: each of these engines once got one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from routeproof_conformance.campaign import Plan
from routeproof_conformance.cases import select
from routeproof_conformance.contexts.run import run_scenario
from routeproof_conformance.contexts.scenarios import select_scenarios
from routeproof_conformance.contexts.source import ShapeError
from routeproof_conformance.engines import EngineError, Loaded, load
from routeproof_conformance.engines.own import ReferenceEngine
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import Topology, Verdict

ROOT = Path(__file__).parent.parent
TP2 = (Topology(tp=2),)


class Printing(ReferenceEngine):
    """Prints from Python and to the file descriptor, in every capturer that it makes."""

    def create(self, config, rank, comm):
        sys.stdout.write("hello from an engine\n")
        os.write(1, b"and from its C code\n")
        return super().create(config, rank, comm)


class Refusing(ReferenceEngine):
    """Cannot be made: no step is ever played."""

    def create(self, _config, _rank, _comm):
        raise ValueError("no room")


class Roomy(ReferenceEngine):
    """Its buffer fits larger steps than the configuration says."""

    def create(self, config, rank, comm):
        larger = config.model_copy(update={"max_tokens": 4 * config.max_tokens})
        return super().create(larger, rank, comm)


class Broken(ReferenceEngine):
    """Crashes in every call, as code does whose check was an assertion that is gone."""

    def create(self, _config, _rank, _comm):
        raise AttributeError("'NoneType' object has no attribute 'layout'")


def verdicts(engine, cases, twin=None):
    runner = Runner(Loaded("test", engine, twin, "no twin here"), SimulatedWorld())
    found = [item for case in cases for item in runner.run(case)]
    return {rule: {item.verdict for item in found if item.rule == rule} for rule in {i.rule for i in found}}


def test_json_is_one_document_though_the_engine_prints_in_this_process():
    for jobs in ("1", "2"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "routeproof_conformance", "run", "--json", "--world", "simulated"),
                *("--engine", "tests.test_review:Printing", "--jobs", jobs, "--case", "LAY-02/full[tp=2,*"),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert json.loads(done.stdout)["verdict"] == "conformant", done.stderr
        assert b"hello from an engine" in done.stderr
        assert b"and from its C code" in done.stderr


def test_nothing_passes_on_steps_that_never_were():
    found = verdicts(Refusing(), tuple(select("LAY-03/shards[tp=2,dp=1,T=5,*")))
    assert found["LAY-02"] == {Verdict.FAILED}
    assert {verdict for seen in found.values() for verdict in seen} == {Verdict.FAILED, Verdict.SKIPPED}


def test_a_buffer_that_fits_is_no_failure_and_leaves_nothing_open():
    found = verdicts(Roomy(), tuple(select("BUF-04/larger[tp=2,dp=1,*")), ReferenceEngine())
    assert found["BUF-04"] == {Verdict.PASSED}
    assert found["BUF-02"] == found["COL-05"] == found["GAT-03"] == {Verdict.UNSUPPORTED}


def test_a_crash_without_assertions_is_no_rejection():
    found = verdicts(ReferenceEngine(), tuple(select("LAY-01/unfit[tp=2,dp=1,T=4,*")), Broken())
    assert found["LAY-01"] == {Verdict.PASSED}
    assert found["GAT-03"] == {Verdict.ERROR}


def test_ids_without_data_are_not_for_real_ranks():
    chosen = tuple(select(rule="COL-07", topologies=TP2))
    assert chosen
    assert Plan(chosen, ("gloo",), named_topologies=True).real_cases == ()


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (EngineError("not fetched"), Verdict.SKIPPED),
        (ShapeError("0 of: a statement"), Verdict.ERROR),
        (ImportError("a stub lacks a name"), Verdict.ERROR),
    ],
)
def test_a_probe_that_breaks_is_an_error_and_one_that_is_absent_is_skipped(error, verdict):
    engine = load("reference").engine

    class Probing:
        def probe(self, _surface):
            raise error

    scenario = next(iter(select_scenarios(None, "LAY-11", None)))
    found = run_scenario(Probing(), engine.profile, scenario, "simulated")
    assert {item.verdict for item in found} == {verdict}
