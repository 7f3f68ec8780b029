"""Context builders and routers of published engines, and copies of them with one line changed."""

import os
from collections import Counter

import pytest
import torch
from routeproof_conformance.contexts import router, sglang, vllm, vllm_files
from routeproof_conformance.contexts.files import (
    AGREE,
    CONTEXTS,
    FORWARD,
    SGLANG_FILES,
    SHARDS,
    VLLM_FILES,
    VLLM_ROUTER,
)
from routeproof_conformance.contexts.published import package_root
from routeproof_conformance.contexts.run import run_scenario
from routeproof_conformance.contexts.scenarios import select_scenarios
from routeproof_conformance.engines import EngineError, load
from routeproof_conformance.engines.fetch import cache_root, cached, fetch_command
from routeproof_conformance.engines.sglang import SglangEngine
from routeproof_conformance.engines.vllm import FILE, VllmEngine
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import Surface, Verdict

pytestmark = pytest.mark.published
BASE = VLLM_ROUTER[1]
FILES = {"vllm": VLLM_FILES, "sglang": SGLANG_FILES}


@pytest.fixture
def root():
    """The folder of a published package, with all the files that are driven; skips if they are not there."""

    def find(package, version):
        try:
            return cached(package, version, FILES[package]).root
        except EngineError as error:
            if os.environ.get("ROUTEPROOF_REQUIRE_PUBLISHED") == "1":
                pytest.fail(str(error))
            pytest.skip(f"not fetched: run `{fetch_command(package, version)}`")

    return find


@pytest.fixture
def changed(root, tmp_path):
    """A copy of a published package in which `old`, which occurs once in a file, is `new`."""

    def change(package, version, file, old, new):
        for each in FILES[package]:
            text = (root(package, version) / each).read_text("utf-8")
            if each == file:
                assert text.count(old) == 1
                text = text.replace(old, new)
            (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / each).write_text(text, "utf-8")
        return tmp_path

    return change


class Engine:
    def __init__(self, folder, package):
        self.folder = folder
        self.package = package

    def probe(self, surface):
        if self.package == "sglang":
            return sglang.SglangContexts(self.folder)
        if surface is Surface.ROUTER:
            return router.VllmRouter(self.folder, torch)
        return vllm.VllmContexts(vllm_files.VllmFiles(self.folder, torch))


@pytest.fixture
def judged(root):
    def judge(folder, package, pattern, rule):
        version = "0.33.0" if package == "vllm" else "0.5.23"
        root(package, version)
        profile = load(f"{package}=={version}").profile
        found = []
        for scenario in select_scenarios(pattern):
            one = scenario.model_copy(update={"rules": (rule,)})
            found += run_scenario(Engine(folder, package), profile, one, "simulated")
        assert found, pattern
        return found

    return judge


def verdicts(found):
    return Counter(item.verdict.value for item in found)


# --- what is published

COUNTED = {"eager-function": 4, "full-graph": 5, "microbatches": 8}


@pytest.mark.parametrize(
    ("version", "failing"),
    [("0.31.0", COUNTED), ("0.32.0", COUNTED), ("0.33.0", {})],
)
def test_what_vllm_tells(root, version, failing):
    root("vllm", version)
    runner = Runner(load(f"vllm=={version}"), SimulatedWorld())
    found = [item for scenario in select_scenarios() for item in runner.run(scenario)]
    failed = [item for item in found if item.verdict is Verdict.FAILED]
    assert {item.rule for item in failed} <= {"LAY-11"}
    assert Counter(item.case.split("/")[1].split("[")[0] for item in failed) == failing
    assert all("tp=2,dp=1" in i.case or "tp=4,dp=1" in i.case or "microbatches" in i.case for i in failed)
    assert not [item for item in found if item.verdict in (Verdict.ERROR, Verdict.SKIPPED)]
    unsupported = {item.message for item in found if item.verdict is Verdict.UNSUPPORTED}
    lacks = ("prefill-graph",) if version != "0.31.0" else ("prefill-graph", "compact-replay")
    assert unsupported == {f"no path {path} of the engine is driven" for path in lacks}
    for item in failed:
        assert "vllm/forward_context.py sha256 " in item.message
        assert "put in: path " in item.message


def test_what_sglang_tells(root):
    root("sglang", "0.5.23")
    runner = Runner(load("sglang==0.5.23"), SimulatedWorld())
    found = [item for scenario in select_scenarios(rule="LAY-11") for item in runner.run(scenario)]
    mine = {item.case: item for item in found if item.rule == "LAY-11"}
    failed = sorted(case for case, item in mine.items() if item.verdict is Verdict.FAILED)
    graph, at = "LAY-11/verified-rows[tp=1,dp=2,", "emitted=CROSS_DP"
    prefill = "LAY-11/prefill-graph[tp=1,dp=2,R=5+7,emitted=CROSS_DP,earlier="
    assert failed == sorted(
        [
            *(f"{graph}R={real},{at},width=2]" for real in ("6+4", "4+8")),
            *(f"{graph}R={real},{at},width=4]" for real in ("12+8", "8+16")),
            *(f"{prefill}{earlier}]" for earlier in ("none", 2)),
        ]
    )
    passed = {case for case, item in mine.items() if item.verdict is Verdict.PASSED}
    assert {f"{graph}R={real},{at},width=1]" for real in ("3+2", "2+4")} <= passed
    assert f"{prefill}8]" in passed
    assert {case for case in mine if "graph-extent" in case} <= passed
    last = mine[f"{graph}R=12+8,{at},width=4]"].message
    assert "the own rows begin at row 16 of all; it takes 4" in last
    assert all(item.verdict is Verdict.UNSUPPORTED for item in found if item.rule == "LAY-07")


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0", "0.33.0"])
def test_vllms_router_captures_before_the_map(root, judged, version):
    assert verdicts(judged(root("vllm", version), "vllm", "IDS-01/*", "IDS-01")) == {"passed": 1}


# --- one line changed


def test_a_count_that_is_always_told_is_no_finding(changed, judged):
    folder = changed(
        "vllm",
        "0.32.0",
        FORWARD,
        "if cudagraph_runtime_mode != CUDAGraphMode.NONE and num_tokens is not None:",
        "if num_tokens is not None:",
    )
    for pattern in ("LAY-11/eager-function*", "LAY-11/full-graph*"):
        assert verdicts(judged(folder, "vllm", pattern, "LAY-11")) == {"passed": 13}


@pytest.mark.parametrize(
    ("file", "old", "new", "pattern", "rule", "said"),
    [
        pytest.param(
            FORWARD,
            "batch_descriptor or BatchDescriptor(num_tokens=num_tokens)",
            "batch_descriptor or BatchDescriptor(num_tokens=is_padding.shape[0])",
            "LAY-07/sharded-mask[tp=2,dp=1,R=5,emitted=TP_SHARD,path=function]",
            "LAY-07",
            "with a mask of 3 rows, 0 of them padding, told is T (3,) offset 0; with none T (5,) offset 0",
            id="the length of the mask",
        ),
        pytest.param(
            FORWARD,
            "    sp_tokens = (\n        num_tokens_across_dp_cpu + sequence_parallel_size - 1\n    )",
            "    sp_tokens = (\n        num_tokens_across_dp_cpu\n    )",
            "LAY-11/eager-step[tp=2,dp=2,R=5+3,emitted=GATHERED_SHARDS]",
            "LAY-11",
            "the shards have [3, 3, 2, 2] rows, told is [2, 2, 1, 1]",
            id="shards rounded down",
        ),
        pytest.param(
            CONTEXTS,
            "            token_offsets=[s.token_slice.start for s in ubatch_slices],\n",
            "",
            "LAY-11/microbatches[tp=1,dp=2,R=7+6,emitted=FULL,graph=none]",
            "LAY-11",
            "microbatch at 3: 3 rows of the step come before, and told is offset 0",
            id="no offsets",
        ),
        pytest.param(
            AGREE,
            "    num_tokens_across_dp[:] = synced_desc.num_tokens\n",
            "",
            "LAY-11/piecewise-graph[tp=1,dp=2,R=3+7,emitted=CROSS_DP]",
            "LAY-11",
            "raised AssertionError",
            id="real counts in a graph",
        ),
        pytest.param(
            BASE,
            "        if self.capture_fn is not None:\n            self.capture_fn(topk_ids)\n\n"
            "        # Step 3: Apply EPLB mapping\n        topk_ids = self._apply_eplb_mapping(topk_ids)\n",
            "        topk_ids = self._apply_eplb_mapping(topk_ids)\n"
            "        if self.capture_fn is not None:\n            self.capture_fn(topk_ids)\n",
            "IDS-01/*",
            "IDS-01",
            "captured [[4, 1], [5, 3]], the physical ids of the kernel; expected [[0, 1], [2, 3]]",
            id="captured after the map",
        ),
    ],
)
def test_a_fault_put_into_vllm_is_found(changed, judged, file, old, new, pattern, rule, said):
    folder = changed("vllm", "0.33.0", file, old, new)
    (found,) = judged(folder, "vllm", pattern, rule)
    assert found.verdict is Verdict.FAILED
    assert said in found.message


def test_shards_that_the_model_does_not_know_are_an_error(changed, judged):
    folder = changed(
        "vllm",
        "0.33.0",
        SHARDS,
        "        pad = (0, 0) * (x.ndim - 1) + (0, sp_pad)\n",
        "        pad = (0, 0) * (x.ndim - 1) + (0, sp_pad + tp_size)\n",
    )
    name = "LAY-11/eager-step[tp=2,dp=1,R=7,emitted=TP_SHARD]"
    (found,) = judged(folder, "vllm", name, "LAY-11")
    assert found.verdict is Verdict.ERROR
    assert "the model does not fit the engine: shards of 5 rows, 4 by the model" in found.message


def test_what_a_stand_in_has_not_is_an_error(changed, judged):
    folder = changed("vllm", "0.33.0", FORWARD, "batch_descriptor = batch_descriptor or", "x = unheard_of or")
    (found,) = judged(folder, "vllm", "LAY-11/eager-step[tp=1,dp=1,R=7,emitted=FULL]", "LAY-11")
    assert found.verdict is Verdict.ERROR
    assert "broken adapter or stub: NameError" in found.message


def test_slots_counted_in_rows_are_no_finding(changed, judged):
    runner = "self.decode_cuda_graph_runner"
    asked = "experts_capturer.on_forward_end(\n                forward_batch=forward_batch,\n"
    asked += "                can_run_graph=output.can_run_graph,\n                cuda_graph_batch="
    folder = changed(
        "sglang",
        "0.5.23",
        "sglang/srt/model_executor/model_runner.py",
        f'routed_experts_output = {asked}getattr({runner}, "bs", None)',
        f'routed_experts_output = {asked}getattr({runner}, "bs", 0) * {runner}.captured_req_width',
    )
    assert verdicts(judged(folder, "sglang", "LAY-11/verified-rows*", "LAY-11")) == {"passed": 6}
    assert verdicts(judged(folder, "sglang", "LAY-11/graph-extent*", "LAY-11")) == {"passed": 2}


# --- what is not there


def test_the_capturer_runs_without_the_files_beside_it(root, tmp_path, monkeypatch):
    capturer = cached("vllm", "0.33.0", (FILE,)).path(FILE) if root("vllm", "0.33.0") else None
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_bytes(capturer.read_bytes())
    engine = VllmEngine(tmp_path / FILE, "0.33.0")
    assert Surface.CONTEXT_BUILDER in engine.profile.surfaces
    scenario = next(select_scenarios("LAY-11/eager-step*"))
    found = run_scenario(engine, engine.profile, scenario, "simulated")
    assert {item.verdict for item in found} == {Verdict.SKIPPED}
    assert "lacks vllm/forward_context.py" in found[0].message
    monkeypatch.setenv("ROUTEPROOF_CACHE", str(tmp_path))
    there = cache_root() / "vllm-0.33.0"
    there.parent.mkdir(parents=True)
    tmp_path.joinpath("vllm").rename(tmp_path / "moved")
    there.mkdir()
    (tmp_path / "moved").rename(there / "vllm")
    engine = VllmEngine(there / FILE, "0.33.0")
    found = run_scenario(engine, engine.profile, scenario, "simulated")
    assert {item.verdict for item in found} == {Verdict.SKIPPED}
    assert "run `routeproof engines fetch vllm==0.33.0`" in found[0].message


def test_older_versions_have_no_other_surface(tmp_path):
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text("x = 1\n")
    assert VllmEngine(tmp_path / FILE, "0.30.0").profile.surfaces == {Surface.CAPTURER}


def test_a_capturer_outside_its_package(tmp_path):
    (tmp_path / "a" / "b" / "c" / "d" / "e").mkdir(parents=True)
    with pytest.raises(EngineError, match="does not lie in a package"):
        package_root(tmp_path / "a" / "b" / "c" / "d" / "e" / "capturer.py", FILE)


def test_sglangs_probe_is_of_its_own_files(root):
    folder = root("sglang", "0.5.23")
    engine = SglangEngine(folder, "0.5.23")
    assert set(engine.probe(Surface.CONTEXT_BUILDER).digests) == set(SGLANG_FILES)
