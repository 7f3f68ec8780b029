"""SGLang's published capturer through the adapter, on rows worked out by hand."""

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from routeproof_conformance.cases import select
from routeproof_conformance.engines import Loaded, load, sglang
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.own import ReferenceEngine
from routeproof_conformance.engines.sglang import PUBLISHED, SglangEngine
from routeproof_conformance.engines.sglang_source import DP_ATTENTION, FILES
from routeproof_conformance.engines.stubs import StubObject
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import CaptureConfig, Layout, Level, Rank, StepContext, Topology, Verdict
from routeproof_spec.rules import RULES

VERSION = "0.5.23"
published = pytest.mark.published


def config(*layouts: Layout, **more: int) -> CaptureConfig:
    sizes = {"max_tokens": 32, "layers": 1, "top_k": 2, "experts": 256, **more}
    return CaptureConfig(**sizes, layouts=frozenset(layouts) or None)


@pytest.fixture
def root(sglang_root: Path) -> Path:
    return sglang_root


class Hub:
    """The attention-TP group of one DP rank; its ranks are threads that meet in every gather."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.rows = [torch.zeros(0)] * size


class Member:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.gathers = hub, rank, len(hub.rows), 0

    def all_gather(self, rows):
        self.gathers += 1
        self.hub.rows[self.rank] = rows.clone()
        self.hub.barrier.wait()
        whole = torch.cat(self.hub.rows)
        self.hub.barrier.wait()
        return whole

    def gather(self, rows, dst=0):
        raise NotImplementedError


def lonely(size: int = 1) -> Member:
    return Member(Hub(size), 0)


def numbered(first: int, last: int) -> np.ndarray:
    """Rows that tell their position: [first, first + 100], ..."""
    positions = np.arange(first, last, dtype=np.int32)
    return np.stack([positions, positions + 100], axis=1)


def shown(rows: np.ndarray) -> list[list[int]]:
    return rows[:, 0].tolist()


@published
@pytest.mark.parametrize("overlap", [True, False])
def test_plain_rows_and_graph_padding(root: Path, overlap: bool) -> None:
    engine = SglangEngine(root, VERSION, overlap=overlap)
    ranked = engine.create(config(Layout.FULL), Rank(topology=Topology(), dp=0, tp=0), lonely())
    for counts, real in (((6,), (6,)), ((8,), (5,)), ((4,), (0,))):
        ranked.begin_step(StepContext(counts=counts, real=real))
        ranked.capture(0, numbered(0, counts[0]))
        ranked.end_step()
        rows = ranked.published()
        assert rows.dtype == np.int32
        assert shown(rows) == numbered(0, real[0]).tolist()
    ranked.close()


@published
def test_c6_a_dp_rank_of_an_eager_batch_and_of_a_graph(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    topology, real = Topology(dp=4), (11, 13, 17, 19)
    ranked = engine.create(config(Layout.CROSS_DP), Rank(topology=topology, dp=2, tp=0), lonely())
    ranked.begin_step(StepContext(counts=real, real=real))
    ranked.capture(0, numbered(0, 60))
    ranked.end_step()
    assert shown(ranked.published()) == numbered(24, 41).tolist()
    ranked.begin_step(StepContext(counts=(32,) * 4, real=real))
    ranked.capture(0, numbered(0, 128))
    ranked.end_step()
    assert shown(ranked.published()) == numbered(64, 81).tolist()
    assert ranked.buffer() is None
    ranked.close()


@published
def test_an_eager_batch_that_is_padded(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    ranked = engine.create(config(Layout.CROSS_DP), Rank(topology=Topology(dp=2), dp=1, tp=0), lonely())
    ranked.begin_step(StepContext(counts=(4, 6), real=(3, 5)))
    ranked.capture(0, numbered(0, 10))
    ranked.end_step()
    assert shown(ranked.published()) == numbered(4, 9).tolist()


@published
@pytest.mark.parametrize("dp", [1, 2])
def test_deepep_shards(root: Path, dp: int) -> None:
    engine = SglangEngine(root, VERSION)
    topology = Topology(tp=2, dp=dp)
    got = {}
    for dp_rank in range(dp):
        hub = Hub(2)

        def run(tp: int, dp_rank: int = dp_rank, hub: Hub = hub) -> None:
            member = Member(hub, tp)
            ranked = engine.create(
                config(Layout.TP_SHARD), Rank(topology=topology, dp=dp_rank, tp=tp), member
            )
            ranked.begin_step(StepContext(counts=(5,) * dp, real=(5,) * dp))
            first = 10 * dp_rank + 3 * tp
            ranked.capture(0, numbered(first, first + 3).astype(np.int64))
            ranked.end_step()
            got[dp_rank, tp] = (ranked.published(), ranked.buffer(), member.gathers)

        threads = [threading.Thread(target=run, args=(tp,)) for tp in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert shown(got[dp_rank, 0][0]) == numbered(10 * dp_rank, 10 * dp_rank + 5).tolist()
        assert got[dp_rank, 1][0] is None
        assert shown(got[dp_rank, 1][1][:5]) == numbered(10 * dp_rank, 10 * dp_rank + 5).tolist()
        assert got[dp_rank, 0][2] == got[dp_rank, 1][2] == 1


@published
def test_c11_a_shared_column_is_dropped(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    settings = config(Layout.FULL, top_k=6, experts=384, shared_columns=1)
    ranked = engine.create(settings, Rank(topology=Topology(), dp=0, tp=0), lonely())
    ranked.begin_step(StepContext(counts=(1,), real=(1,)))
    ranked.capture(0, np.array([[343, 178, 114, 6, 141, 378, 384]], np.int32))
    ranked.end_step()
    assert shown(ranked.published()) == [[343, 178, 114, 6, 141, 378]]
    with pytest.raises(ValueError, match="neither"):
        ranked.capture(0, np.zeros((1, 5), np.int32))


@published
def test_overlap_keeps_a_step_until_it_is_stored(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    ranked = engine.create(config(Layout.FULL), Rank(topology=Topology(), dp=0, tp=0), lonely())
    ranked.begin_step(StepContext(counts=(3,), real=(3,)))
    ranked.capture(0, numbered(0, 3))
    ranked.end_step()
    ranked.capture(0, numbered(50, 53))
    assert shown(ranked.published()) == numbered(0, 3).tolist()


@published
def test_what_torch_would_refuse_moves_nothing(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    member = lonely(2)
    ranked = engine.create(config(Layout.TP_SHARD), Rank(topology=Topology(tp=2), dp=0, tp=0), member)
    ranked.begin_step(StepContext(counts=(40,), real=(40,)))
    with pytest.raises(ValueError, match="is not 2 times input"):
        ranked.capture(0, numbered(0, 20))
    group = sglang._group(member)
    with pytest.raises(ValueError, match=r"output torch\.int32, input torch\.int64"):
        group.all_gather_into_tensor(
            torch.zeros((2, 2), dtype=torch.int32), torch.zeros((1, 2), dtype=torch.int64)
        )
    assert member.gathers == 0


@published
def test_a_server_is_started_for_some_layouts(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    rank = Rank(topology=Topology(dp=2), dp=1, tp=0)
    with pytest.raises(ValueError, match="no SGLang server emits CROSS_DP, FULL together"):
        engine.create(config(Layout.FULL, Layout.CROSS_DP), rank, lonely())
    ranked = engine.create(config(Layout.CROSS_DP), rank, lonely())
    with pytest.raises(ValueError, match="always counts tokens"):
        ranked.begin_step(StepContext(counts=None, real=(1, 1)))
    with pytest.raises(RuntimeError, match="outside a step"):
        ranked.end_step()


@published
def test_what_sglang_is_not_given_is_an_attribute_error(root: Path) -> None:
    engine = SglangEngine(root, VERSION)
    ranked = engine.create(config(Layout.FULL), Rank(topology=Topology(), dp=0, tp=0), lonely())
    ranked.begin_step(StepContext(counts=(1,), real=(1,)))
    ranked._forward = ranked._forward._replace(batch=StubObject("ForwardBatch"))
    with pytest.raises(AttributeError, match="stub ForwardBatch has no attribute 'out_cache_loc'"):
        ranked.end_step()


@published
def test_ranks_share_nothing_and_engines_travel(root: Path) -> None:
    engine = SglangEngine(root, VERSION, overlap=False)
    ranks = [engine.create(config(), rank, lonely(2)) for rank in Topology(tp=2).ranks()]
    assert type(ranks[0]._capturer) is not type(ranks[1]._capturer)
    assert type(ranks[0]._capturer).__mro__[1] is not type(ranks[1]._capturer).__mro__[1]
    again = pickle.loads(pickle.dumps(engine))  # noqa: S301
    assert (again.profile, again._overlap) == (engine.profile, False)
    assert engine.without_assertions()._optimize
    assert SglangEngine.published(VERSION).profile == engine.profile


@published
def test_verdicts(root: Path) -> None:
    loaded = load(f"sglang=={VERSION}")
    assert loaded.unasserted is not None
    runner = Runner(loaded, SimulatedWorld())
    chosen = tuple(Topology.parse(name) for name in ("tp1", "tp2", "dp2", "tp2dp2", "dp4"))
    findings = [item for case in select(topologies=chosen) for item in runner.run(case)]
    assert root.is_dir()
    assert [item for item in findings if item.verdict is Verdict.ERROR] == []
    failing: dict[str, set[str]] = {}
    for item in findings:
        if item.verdict is Verdict.FAILED:
            failing.setdefault(item.rule, set()).add(item.case.split("[")[0])
    assert set(failing) == {
        "BUF-03",
        "BUF-09",
        "COL-02",
        "COL-04",
        "COL-05",
        "COL-06",
        "IDS-02",
        "LAY-01",
        "LAY-02",
    }
    assert failing["LAY-02"] == {"COL-06/throughout"}
    assert failing["BUF-09"] == {"BUF-09/missing-shared"}
    assert RULES["COL-04"].level is Level.SHOULD
    passed = {item.case.split("[")[0] for item in findings if item.verdict is Verdict.PASSED}
    assert {"LAY-02/graph-after-eager", "LAY-05/graph-slots", "BUF-09/shared-throughout"} <= passed


@published
def test_a_case_that_no_deployment_emits_is_unsupported(root: Path) -> None:
    assert root.is_dir()
    runner = Runner(load(f"sglang=={VERSION}"), SimulatedWorld())
    (case,) = select("LAY-04/gathered-groups*")
    found = runner.run(case)
    assert {item.verdict for item in found} == {Verdict.UNSUPPORTED}
    assert {item.message for item in found} == {"no deployment of the engine emits FULL, GATHERED_SHARDS"}


@pytest.mark.parametrize("version", ["0.5.22", "0.5.230", "0.6.0", "main", ""])
def test_an_unknown_version_names_the_supported_one(tmp_path: Path, version: str) -> None:
    with pytest.raises(EngineError, match=r"has no adapter: supported is 0\.5\.23"):
        SglangEngine(tmp_path, version)
    with pytest.raises(EngineError, match="supported is"):
        SglangEngine.published(version)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        SglangEngine(tmp_path, VERSION)


@published
def test_a_function_that_is_not_there(root: Path, tmp_path: Path) -> None:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes((root / file).read_bytes())
    (tmp_path / DP_ATTENTION).write_text("def dp_slot_in(per_rank): ...\n")
    engine = SglangEngine(tmp_path, VERSION)
    with pytest.raises(EngineError, match="has no function attn_tp_all_gather_into_tensor, dp_gather_slot"):
        engine.create(config(), Rank(topology=Topology(), dp=0, tp=0), lonely())


def test_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        EngineError, match=r"not installed here; name a published one, such as sglang==0\.5\.23"
    ):
        SglangEngine.installed()
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x = 1\n")
    (tmp_path / "sglang" / "__init__.py").write_text("raise SystemError('imported')\n")
    info = tmp_path / "sglang-0.5.23.post1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23.post1\n")
    assert SglangEngine.installed().profile.version == "0.5.23.post1"
    (tmp_path / FILES[1]).unlink()
    with pytest.raises(EngineError, match="lacks one of"):
        SglangEngine.installed()


def test_published_versions_are_supported() -> None:
    assert PUBLISHED == (VERSION,)


class Started:
    """The reference, started for what the configuration names; keeps what it was given."""

    def __init__(self) -> None:
        inner = ReferenceEngine()
        deployments = (frozenset({Layout.FULL, Layout.UNCOUNTED}), frozenset({Layout.CROSS_DP}))
        self.profile = inner.profile.model_copy(update={"deployments": deployments})
        self.inner, self.layouts = inner, []

    def create(self, config, rank, comm):
        self.layouts.append(config.layouts)
        return self.inner.create(config, rank, comm)


def verdicts(engine: Started, case: str) -> set[Verdict]:
    runner = Runner(Loaded("started", engine, None), SimulatedWorld())
    (found,) = select(case=case)
    return {item.verdict for item in runner.run(found)}


def test_an_engine_is_started_for_the_layouts_of_a_case() -> None:
    engine = Started()
    assert verdicts(engine, "LAY-02/full[tp=1,dp=2,T=5+3,padded=0]") == {Verdict.PASSED}
    assert engine.layouts == [frozenset({Layout.FULL})] * 2
    assert verdicts(engine, "LAY-09/uncounted[tp=1,dp=1,n=4]") == {Verdict.PASSED}
    assert verdicts(engine, "LAY-02/throughout[tp=1,dp=2,T=5+3,padded=1,emitted=CROSS_DP]") == {
        Verdict.PASSED
    }
    assert engine.layouts[-1] == frozenset({Layout.CROSS_DP})
    engine.layouts.clear()
    assert verdicts(engine, "LAY-02/cross-dp[tp=1,dp=2,T=5+3,padded=0]") == {Verdict.UNSUPPORTED}
    assert verdicts(engine, "LAY-06/ambiguous[tp=2,dp=2,T=1+1]") == {Verdict.UNSUPPORTED}
    assert engine.layouts == []


def test_a_twin_runs_in_the_deployment_of_its_case() -> None:
    engine = Started()
    case = "BUF-03/throughout[tp=1,dp=2,T=5+3,layer=-1,emitted=CROSS_DP]"
    assert verdicts(engine, case) == {Verdict.PASSED, Verdict.SKIPPED}
    assert set(engine.layouts) == {frozenset({Layout.CROSS_DP})}
    assert len(engine.layouts) == 4
