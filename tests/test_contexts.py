"""Scenarios: what is right by hand, faults that are caught, and what a run says of them."""

# ruff: noqa: ARG002 - fakes take what they are given

import json
import subprocess
import sys

import pytest
from routeproof_conformance.cases import all_cases
from routeproof_conformance.cases.coverage import coverage
from routeproof_conformance.cli import app
from routeproof_conformance.contexts.engine import Routed, Told
from routeproof_conformance.contexts.judge import PREDICATES, Asked
from routeproof_conformance.contexts.own import ReferenceContexts
from routeproof_conformance.contexts.run import run_scenario
from routeproof_conformance.contexts.scenarios import all_scenarios, select_scenarios
from routeproof_conformance.engines import EngineError, load
from routeproof_conformance.report.explain import schemas
from routeproof_conformance.runner import Run, Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_reference import logical_ids, physical, right_context, tensors
from routeproof_spec import Batch, BatchPath, Layout, Rank, Routing, Scenario, Surface, Topology, Verdict
from typer.testing import CliRunner

from tests.faulty_contexts import Changed, Router

FAULTS = {
    ("CountsTheMask", "LAY-07/sharded-mask*"): "LAY-07",
    ("CountsTheMask", "LAY-11/eager-step[tp=2,dp=1,R=7,emitted=TP_SHARD]"): "LAY-07 LAY-11",
    ("CountsRealRowsOfTheMask", "LAY-07/sharded-mask*"): "LAY-07",
    ("TellsRealCounts", "LAY-11/p*-graph*"): "LAY-11",
    ("TellsRealCounts", "LAY-11/graph-extent*"): "LAY-11",
    ("RoundsShardsDown", "LAY-11/eager-step[tp=2,dp=2*"): "LAY-11",
    ("CountsRequests", "LAY-11/verified-rows*"): "LAY-11",
    ("CountsShards", "LAY-11/eager-step*TP_SHARD*"): "LAY-11",
    ("LeavesTheCountOut", "LAY-11/eager-function*"): "LAY-11",
    ("TakesTheStaleGraph", "LAY-11/prefill-graph*"): "LAY-11",
    ("ForgetsOffsets", "LAY-11/microbatches*"): "LAY-11",
    ("TellsTheWholeStep", "LAY-11/microbatches*"): "LAY-11",
    ("TellsTheWholeStepOfAReplay", "LAY-11/compact-replay*"): "LAY-11",
    ("StartsAtTheLargest", "LAY-11/graph-extent*none]"): "LAY-11",
    ("ContradictsItself", "LAY-11/eager-step*dp=2*"): "LAY-11",
    ("CapturesPhysicalIds", "IDS-01/*"): "IDS-01",
    ("CapturesNothing", "IDS-01/*"): "IDS-01",
}
"""The rules that fail, of a fault on the scenarios that match."""
WORLD = SimulatedWorld()


def findings(name, pattern):
    runner = Runner(load(f"tests.faulty_contexts:{name}"), WORLD)
    found = [item for scenario in select_scenarios(pattern) for item in runner.run(scenario)]
    assert found, f"{pattern} matches no scenario"
    return found


@pytest.mark.parametrize(("name", "pattern"), FAULTS)
def test_a_fault_is_caught_by_the_rules_that_name_it(name, pattern):
    found = findings(name, pattern)
    failing = {item.rule for item in found if item.verdict is Verdict.FAILED}
    assert failing == set(FAULTS[name, pattern].split()), [item.message for item in found]
    assert not [item for item in found if item.verdict is Verdict.ERROR]


def test_every_rule_of_a_scenario_is_seen_to_fail():
    assert {rule for rules in FAULTS.values() for rule in rules.split()} == set(PREDICATES)
    assert {rule for scenario in all_scenarios() for rule in scenario.rules} == set(PREDICATES)


def test_the_reference_tells_what_is_so():
    for name in ("reference",):
        runner = Runner(load(name), WORLD)
        found = [item for scenario in all_scenarios() for item in runner.run(scenario)]
        told = {item.verdict for item in found if item.rule != "IDS-01"}
        assert told == {Verdict.PASSED}
        assert [i.verdict for i in found if i.rule == "IDS-01"] == [Verdict.UNSUPPORTED]


# --- what is right, by hand


def rows(topology, batch):
    return {(r.dp, r.tp): tensors(topology, batch, r) for r in topology.ranks()}


def test_seven_tokens_on_two_ranks():
    batch = Batch(path=BatchPath.EAGER, real=(7,), emitted=Layout.TP_SHARD)
    got = rows(Topology(tp=2), batch)
    assert [got[0, tp][0].handed for tp in range(2)] == [4, 4]
    assert got[0, 0][0].mask == (False,) * 4
    assert got[0, 1][0].mask == (False, False, False, True)
    assert got[0, 0][0].part.counts == (7,)
    assert got[0, 0][0].counted


def test_seven_tokens_in_a_graph_of_eight():
    batch = Batch(path=BatchPath.FULL_GRAPH, real=(7,), emitted=Layout.TP_SHARD, graphs=(4, 8, 16))
    got = rows(Topology(tp=4), batch)
    assert [got[0, tp][0].handed for tp in range(4)] == [2] * 4
    assert [got[0, tp][0].mask for tp in range(4)] == [(False, False)] * 3 + [(False, True)]
    assert physical(batch) == (8,)


def test_a_graph_pads_every_dp_rank_alike():
    batch = Batch(path=BatchPath.FULL_GRAPH, real=(11, 13, 17, 19), emitted=Layout.CROSS_DP, graphs=(32,))
    assert physical(batch) == (32,) * 4
    assert tensors(Topology(dp=4), batch, Rank(topology=Topology(dp=4), dp=2, tp=0))[0].start == 64
    eager = batch.model_copy(update={"path": BatchPath.EAGER, "graphs": ()})
    assert tensors(Topology(dp=4), eager, Rank(topology=Topology(dp=4), dp=2, tp=0))[0].start == 24


def test_requests_that_verify_four_rows():
    batch = Batch(path=BatchPath.FULL_GRAPH, real=(12, 8), emitted=Layout.CROSS_DP, graphs=(2, 4), width=4)
    assert physical(batch) == (16, 16)


def test_microbatches_of_seven_and_six():
    batch = Batch(path=BatchPath.MICROBATCHES, real=(7, 6), emitted=Layout.TP_SHARD, microbatches=2)
    step = right_context(Topology(tp=2, dp=2), batch)
    assert [(m.offset, m.counts, m.real) for m in step.microbatches] == [
        (0, (3, 3), (3, 3)),
        (3, (4, 4), (4, 3)),
    ]
    assert [m.shard_sizes for m in step.microbatches] == [(2, 2, 2, 2), (2, 2, 2, 2)]
    assert step.counts == (7, 7)


def test_a_replay_has_counts_of_its_own():
    batch = Batch(path=BatchPath.COMPACT_REPLAY, real=(9, 6), emitted=Layout.FULL, kept=(3, 5))
    assert right_context(Topology(dp=2), batch).counts == (3, 5)
    padded = batch.model_copy(update={"graphs": (4, 8)})
    assert right_context(Topology(dp=2), padded).counts == (8, 8)


@pytest.mark.parametrize(
    ("dp", "real", "emitted", "counted"),
    [
        (1, (7,), Layout.FULL, False),
        (1, (7,), Layout.TP_SHARD, True),
        (1, (1,), Layout.TP_SHARD, False),
        (2, (1, 1), Layout.TP_SHARD, False),
        (2, (3, 7), Layout.FULL, False),
        (2, (3, 7), Layout.CROSS_DP, True),
    ],
)
def test_whether_rows_need_a_count(dp, real, emitted, counted):
    topology = Topology(tp=2, dp=dp)
    batch = Batch(path=BatchPath.EAGER, real=real, emitted=emitted)
    assert tensors(topology, batch, topology.ranks()[0])[0].counted is counted


def test_c12():
    routing = Routing(physical_to_logical=(0, 1, 2, 3, 0, 2), kernel=((4, 1), (5, 3)))
    assert logical_ids(routing) == ((0, 1), (2, 3))


def test_a_batch_that_fits_no_graph():
    batch = Batch(path=BatchPath.FULL_GRAPH, real=(17,), emitted=Layout.FULL, graphs=(4, 16))
    with pytest.raises(ValueError, match=r"17 slots fit no graph of \[4, 16\]"):
        physical(batch)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"path": BatchPath.FULL_GRAPH}, "needs the sizes of the graphs"),
        ({"path": BatchPath.COMPACT_REPLAY}, "rows kept belong to compact-replay"),
        ({"path": BatchPath.EAGER, "kept": (1,)}, "rows kept belong to compact-replay"),
        ({"path": BatchPath.MICROBATCHES}, "more than one microbatch"),
        ({"path": BatchPath.EAGER, "microbatches": 2}, "more than one microbatch"),
        ({"path": BatchPath.EAGER, "width": 2}, "no multiples of the width"),
    ],
)
def test_batches_that_contradict_themselves(more, why):
    with pytest.raises(ValueError, match=why):
        Batch.model_validate({"real": (7,), "emitted": Layout.FULL, **more})


# --- the judge


def scenario(batch, dp=1, twin=None, rule="LAY-11"):
    topology = Topology(tp=2, dp=dp)
    fields = {"id": f"{rule}/test[]", "rules": (rule,), "topology": topology}
    accepted = None if twin is None else Scenario(**fields, given=twin)
    return Scenario(**fields, given=batch, twin=accepted)


SEVEN = Batch(path=BatchPath.EAGER, real=(7,), emitted=Layout.TP_SHARD)
EIGHT = SEVEN.model_copy(update={"real": (8,)})


class Builder(ReferenceContexts):
    """Tells the same thing of whatever it is asked."""

    def __init__(self, *told):
        self.told = told

    def tell(self, topology, batch, rank, mask):
        return self.told


def judged(*told, batch=SEVEN, dp=1):
    return PREDICATES["LAY-11"](Asked(scenario(batch, dp), Builder(*told)))


def test_a_failure_tells_what_is_so_what_was_told_and_what_follows():
    outcome = judged(Told((4,)))
    assert outcome.verdict is Verdict.FAILED
    first, second = outcome.message.splitlines()
    assert first == (
        "dp0/tp0: the tensors have T [7] rows (R [7]), told is T [4]; 4 rows handed over (TP_SHARD) are then "
        "read as CROSS_DP, rows [0, 4); right is TP_SHARD, rows [0, 7) of the gathered ones"
    )
    assert second.strip().startswith("dp0/tp1: ")


def test_a_count_left_out_where_it_is_needed_and_where_not():
    assert judged(Told(None)).verdict is Verdict.FAILED
    assert judged(Told(None), batch=SEVEN.model_copy(update={"emitted": Layout.FULL})).verdict is (
        Verdict.PASSED
    )


def test_an_engine_that_the_model_does_not_fit_is_an_error():
    for stray in ({"rows": 8}, {"handed": 3}, {"mask": (False,)}):
        outcome = judged(Told((7,), **stray))
        assert outcome.verdict is Verdict.ERROR
        assert "the model does not fit the engine" in outcome.message


def test_too_few_microbatches():
    batch = Batch(path=BatchPath.MICROBATCHES, real=(8,), emitted=Layout.FULL, microbatches=2)
    assert judged(Told((8,)), batch=batch).message.endswith("a context for 1 of 2 microbatches")


def test_no_shard_size_where_it_is_needed():
    batch = Batch(path=BatchPath.EAGER, real=(5, 3), emitted=Layout.GATHERED_SHARDS)
    assert "no size is told" in judged(Told((5, 3)), batch=batch, dp=2).message
    assert judged(Told((5, 3), shard_sizes=(3, 3, 2, 2)), batch=batch, dp=2).verdict is Verdict.PASSED


class Engine:
    def __init__(self, probe):
        self.probe = lambda _: probe() if callable(probe) and not isinstance(probe, Builder) else probe


PROFILE = load("reference").profile


def ran(probe, item):
    (found,) = run_scenario(Engine(probe), PROFILE, item, "simulated")
    return found


def test_a_twin_that_does_not_pass_is_what_is_reported():
    class Half(ReferenceContexts):
        def tell(self, topology, batch, rank, mask):
            return (Told((8,)),)

    assert ran(Half(), scenario(SEVEN, twin=EIGHT)).verdict is Verdict.FAILED
    outcome = ran(Half(), scenario(SEVEN, twin=SEVEN.model_copy(update={"real": (6,)})))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.message.startswith("its accepted twin: dp0/tp0: the tensors have T [6]")


def test_what_cannot_be_had_is_skipped_with_the_reason():
    def missing():
        raise EngineError("run `routeproof engines fetch vllm==0.33.0`")

    found = ran(missing, scenario(SEVEN))
    assert found.verdict is Verdict.SKIPPED
    assert "engines fetch" in found.message


@pytest.mark.parametrize("error", [AttributeError, TypeError, ValueError, StopIteration])
def test_an_adapter_that_raises_is_an_error_and_no_finding(error):
    class Broken(ReferenceContexts):
        def tell(self, topology, batch, rank, mask):
            raise error("stub")

    found = ran(Broken(), scenario(SEVEN))
    assert found.verdict is Verdict.ERROR
    assert "broken adapter or stub" in found.message
    assert "routeproof_reference/context.py sha256 " in found.message


def test_what_an_engine_has_not_is_unsupported():
    builder = ReferenceContexts()
    builder.paths, builder.layouts = frozenset({BatchPath.FUNCTION}), frozenset(Layout)
    assert "no path eager" in ran(builder, scenario(SEVEN)).message
    builder.paths, builder.layouts = frozenset(BatchPath), frozenset({Layout.FULL})
    assert "counts serve no layout TP_SHARD" in ran(builder, scenario(SEVEN)).message
    builder.layouts, builder.takes_mask = frozenset(Layout), False
    assert "handed no padding mask" in ran(builder, scenario(SEVEN, rule="LAY-07")).message
    bare = PROFILE.model_copy(update={"surfaces": frozenset({Surface.CAPTURER})})
    (found,) = run_scenario(Engine(builder), bare, scenario(SEVEN), "simulated")
    assert (found.verdict, found.message) == (
        Verdict.UNSUPPORTED,
        "is shown at the surface context-builder",
    )


def test_a_map_that_was_not_in_effect_is_an_error():
    class Idle(Router):
        def route(self, routing, logical):
            return Routed(logical, logical)

    (item,) = select_scenarios("IDS-01/*")
    outcome = PREDICATES["IDS-01"](Asked(item, Idle()))
    assert outcome.verdict is Verdict.ERROR
    assert "the map was not in effect" in outcome.message


def test_a_right_builder_passes_through_the_harness_of_faults():
    class Right:
        def change(self, told, true, batch, topology, mask):
            return told

    for item in all_scenarios():
        if item.surface is Surface.CONTEXT_BUILDER:
            assert ran(Changed(Right()), item.model_copy(update={"rules": (item.rule,)})).verdict is (
                Verdict.PASSED
            )


# --- runs


def test_ids_are_unique_among_cases_and_scenarios():
    ids = [*(case.id for case in all_cases()), *(item.id for item in all_scenarios())]
    assert len(ids) == len(set(ids))


def test_they_count_as_coverage_and_are_listed():
    assert coverage("LAY-11").cases > 70
    assert "LAY-11/eager-step" in coverage("LAY-11").families
    listed = CliRunner().invoke(app, ["list", "cases", "--rule", "LAY-11"]).stdout.split()
    assert listed == [item.id for item in select_scenarios(rule="LAY-11")]
    assert "Scenario" in json.loads(schemas())


def test_a_run_has_findings_of_both_and_a_line_to_run_one_again():
    done = CliRunner().invoke(
        app, ["run", "--engine", "reference", "--world", "simulated", "--rule", "LAY-07", "--json"]
    )
    document = json.loads(done.stdout)
    assert document["verdict"] == "conformant"
    cases = {item["case"] for item in document["findings"]}
    assert any(case.startswith("LAY-07/mask") for case in cases)
    assert any(case.startswith("LAY-07/sharded-mask") for case in cases)
    engine = "tests.faulty_contexts:CountsRequests"
    case = "LAY-11/verified-rows[tp=1,dp=2,R=12+8,emitted=CROSS_DP,width=4]"
    done = CliRunner().invoke(app, ["run", "--engine", engine, "--world", "simulated", "--case", case])
    assert done.exit_code == 1
    assert "told is T [4, 4]" in done.stdout
    assert f"rerun: routeproof run --engine {engine} --world simulated --case '{case}'" in done.stdout


def test_real_ranks_are_not_asked():
    done = CliRunner().invoke(app, ["run", "--engine", "reference", "--world", "gloo", "--rule", "LAY-11"])
    assert done.exit_code == 2
    assert "no case for --world gloo" in done.stderr


def test_a_debugger_has_no_rank_to_stop_in():
    case = "IDS-01/before-the-map[tp=1,dp=1]"
    done = CliRunner().invoke(app, ["run", "--debug-rank", "0", "--case", case])
    assert done.exit_code == 2
    assert Run(load("reference"), ("simulated",)).verdict == "nothing-ran"


@pytest.mark.parametrize("module", ["published", "router", "sglang", "vllm", "run", "scenarios"])
def test_a_module_is_importable_first(module):
    command = [sys.executable, "-c", f"import routeproof_conformance.contexts.{module}"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).stderr == b""
