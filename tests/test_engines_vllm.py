"""vLLM's published capturer through the adapter, on inputs of public bug reports."""

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from routeproof_conformance.cases import select
from routeproof_conformance.engines import load
from routeproof_conformance.engines import vllm as adapter
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.stubs import StubObject
from routeproof_conformance.engines.vllm import PUBLISHED, VllmEngine
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import CaptureConfig, Level, Microbatch, Rank, StepContext, Topology, Verdict

CONFIG = CaptureConfig(max_tokens=16, layers=1, top_k=2, experts=8)
STALE = np.full((16, 2), 5, np.int32)
Find = Callable[[str], Path]
published = pytest.mark.published
versions = pytest.mark.parametrize("version", PUBLISHED)


class Hub:
    """The TP group of one DP rank; its ranks are threads that meet in every gather."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.rows = [np.zeros(0)] * size


class Member:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.gathers = hub, rank, len(hub.rows), 0

    def all_gather(self, rows):
        self.gathers += 1
        self.hub.rows[self.rank] = rows.numpy()
        self.hub.barrier.wait()
        whole = np.concatenate(self.hub.rows)
        self.hub.barrier.wait()
        return type(rows)(whole) if isinstance(rows, np.ndarray) else rows.new_tensor(whole)

    def gather(self, rows, dst=0):
        raise NotImplementedError


class Lonely(Member):
    def __init__(self) -> None:
        super().__init__(Hub(1), 0)


def drive(engine, topology: Topology, step: StepContext, handed: dict[tuple[int, int], np.ndarray]):
    """Run a full step of stale rows and then `step`; give rows and gathers per rank."""
    hubs = [Hub(topology.tp) for _ in range(topology.dp)]
    got: dict[tuple[int, int], tuple] = {}

    def run(rank: Rank) -> None:
        member = Member(hubs[rank.dp], rank.tp)
        ranked = engine.create(CONFIG, rank, member)
        try:
            full = (16,) * topology.dp
            ranked.begin_step(StepContext(counts=full, real=full))
            ranked.capture(0, STALE)
            ranked.end_step()
            ranked.begin_step(step)
            ranked.capture(0, handed[rank.dp, rank.tp])
            ranked.end_step()
            got[rank.dp, rank.tp] = (ranked.published(), ranked.buffer(), member.gathers)
        except Exception as error:  # noqa: BLE001
            got[rank.dp, rank.tp] = (error, ranked.buffer(), member.gathers)
        finally:
            ranked.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in topology.ranks()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(got) == topology.size
    return got


def rows(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int32)


def numbered(n: int) -> np.ndarray:
    """Rows that tell their position."""
    return np.stack([np.arange(n) % 8, np.arange(n) // 8], axis=1).astype(np.int32)


@published
@versions
def test_c1a_shards_of_one_dp_rank(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    handed = {(0, 0): rows((0, 1), (2, 3), (4, 5)), (0, 1): rows((6, 7), (1, 0), (3, 2))}
    got = drive(engine, Topology(tp=2), StepContext(counts=(6,), real=(6,)), handed)
    right = [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[1, 0]], [[3, 2]]]
    shown, _, gathers = got[0, 0]
    assert shown.dtype == np.uint8
    assert got[0, 1][0] is None
    if version == "0.33.0":
        assert shown.tolist() == right
        assert (gathers, got[0, 1][2]) == (1, 1)
    else:
        assert shown.tolist() == right[:3] + [[[5, 5]]] * 3
        assert gathers == 0


@published
@versions
def test_c1e_rows_that_fit_nothing(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    handed = {(0, tp): rows((1, 2)) for tp in range(2)}
    for shown, buffer, gathers in drive(
        engine, Topology(tp=2), StepContext(counts=(6,), real=(6,)), handed
    ).values():
        assert gathers == 0
        if version == "0.33.0":
            assert isinstance(shown, AssertionError)
            assert (buffer == 5).all()
        else:
            assert buffer[0].tolist() == [[1, 2]]


@published
@versions
def test_c2a_concatenated_dp_ranks(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    step = StepContext(counts=(3, 5, 2), real=(3, 5, 2))
    got = drive(engine, Topology(dp=3), step, {(dp, 0): numbered(10) for dp in range(3)})
    for dp, (start, stop) in enumerate([(0, 3), (3, 8), (8, 10)]):
        assert got[dp, 0][0][:, 0].tolist() == numbered(10)[start:stop].tolist()


@published
@versions
def test_c3_gathered_shards(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    step = StepContext(counts=(5, 3), real=(5, 3), shard_sizes=(3, 3, 2, 2))
    topology = Topology(tp=2, dp=2)
    got = drive(engine, topology, step, {(r.dp, r.tp): numbered(10) for r in topology.ranks()})
    assert got[0, 0][0][:, 0].tolist() == numbered(10)[0:5].tolist()
    assert got[1, 0][0][:, 0].tolist() == numbered(10)[6:9].tolist()
    assert got[0, 1][0] is None
    assert got[1, 1][1][:3, 0].tolist() == numbered(10)[6:9].tolist()


@published
@versions
def test_microbatches_have_counts_and_offset_of_their_own(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    parts = tuple(
        Microbatch(offset=offset, counts=(3, 4), real=(3, 4), shard_sizes=None) for offset in (0, 4)
    )
    ranked = engine.create(CONFIG, Rank(topology=Topology(dp=2), dp=1, tp=0), Lonely())
    ranked.begin_step(StepContext(counts=(8, 8), real=(6, 8), microbatches=parts))
    ranked.capture(0, numbered(4), microbatch=0)
    ranked.capture(0, numbered(11)[7:] if version == "0.33.0" else numbered(7), microbatch=1)
    second = numbered(11)[7:] if version == "0.33.0" else numbered(7)[3:]
    buffer = ranked.buffer()[:8, 0].tolist()
    if version == "0.33.0":
        assert buffer == [*numbered(4).tolist(), *second.tolist()]
    else:
        assert buffer == [*second.tolist(), *[[0, 0]] * 4]
    ranked.close()


@published
@versions
def test_without_counts_rows_pass_through(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    ranked = engine.create(CONFIG, Rank(topology=Topology(dp=2), dp=1, tp=0), Lonely())
    ranked.begin_step(StepContext(counts=None, real=(2, 3)))
    ranked.capture(0, numbered(3))
    assert ranked.published()[:, 0].tolist() == numbered(3).tolist()
    ranked.close()


@published
@versions
def test_assertions_go_in_the_twin_alone(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    twin = engine.without_assertions()
    assert twin.profile == engine.profile
    step = StepContext(counts=(5, 3), real=(5, 3), shard_sizes=(4, 3, 3))
    outcomes = []
    for each in (engine, twin):
        ranked = each.create(CONFIG, Rank(topology=Topology(tp=2, dp=2), dp=0, tp=0), Lonely())
        ranked.begin_step(step)
        try:
            ranked.capture(0, numbered(10))
            outcomes.append("accepted")
        except (AssertionError, ValueError) as error:
            outcomes.append(type(error).__name__)
    assert outcomes == (["ValueError"] * 2 if version == "0.33.0" else ["AssertionError", "accepted"])


@published
@versions
def test_ids_keep_memory_strides_and_read_only_arrays(
    vllm_file: Find, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = VllmEngine(vllm_file(version), version)
    ranked = engine.create(CONFIG, Rank(topology=Topology(), dp=0, tp=0), Lonely())
    seen = []
    monkeypatch.setattr(ranked._capturer, "capture", lambda layer, ids: seen.append((layer, ids)))
    wide = np.arange(24, dtype=np.int64).reshape(6, 4)
    wide.flags.writeable = False
    view = wide[:, ::2]
    ranked.begin_step(StepContext(counts=(6,), real=(6,)))
    ranked.capture(0, view)
    (_, tensor), *_ = seen
    assert tensor.stride() == (4, 2)
    assert tensor.data_ptr() == view.ctypes.data
    assert tensor.tolist() == view.tolist()
    with pytest.raises(TypeError, match="negative strides"):
        ranked.capture(0, view[::-1])
    ranked.capture(0, np.zeros((0, 2), np.int32))
    assert seen[-1][1].shape == (0, 2)


@published
@versions
def test_what_vllm_is_not_given_is_an_attribute_error(
    vllm_file: Find, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = VllmEngine(vllm_file(version), version)
    monkeypatch.setattr(adapter, "_vllm_config", lambda *_: StubObject("VllmConfig"))
    with pytest.raises(AttributeError, match="stub VllmConfig has no attribute 'model_config'"):
        engine.create(CONFIG, Rank(topology=Topology(), dp=0, tp=0), Lonely())


@published
@versions
def test_the_context_is_strict(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    ranked = engine.create(CONFIG, Rank(topology=Topology(dp=2), dp=0, tp=0), Lonely())
    ranked.begin_step(StepContext(counts=(2, 1), real=(2, 1), padding_mask=(False, True)))
    ((context, offset),) = ranked._parts
    assert offset == 0
    assert context.batch_descriptor.num_tokens == 2
    assert context.dp_metadata.num_tokens_across_dp_cpu.tolist() == [2, 1]
    assert str(context.dp_metadata.num_tokens_across_dp_cpu.dtype) == "torch.int32"
    assert context.dp_metadata.local_sizes is None
    for stub in (context, context.batch_descriptor, context.dp_metadata):
        with pytest.raises(AttributeError):
            _ = stub.is_padding
    with pytest.raises(NotImplementedError, match="dimension 0, not 1"):
        ranked._seat.group.all_gather(None, dim=1)
    ranked.close()
    with pytest.raises(RuntimeError, match="no forward context is set"):
        ranked._seat._get_forward_context()


@published
@versions
def test_ranks_share_nothing(vllm_file: Find, version: str) -> None:
    engine = VllmEngine(vllm_file(version), version)
    topology = Topology(tp=2)
    ranks = [engine.create(CONFIG, rank, Lonely()) for rank in topology.ranks()]
    modules = [rank._seat.module for rank in ranks]
    assert modules[0] is not modules[1]
    assert modules[0].get_tp_group() is not modules[1].get_tp_group()
    assert modules[0].RoutedExpertsCapturer is not modules[1].RoutedExpertsCapturer


@published
@versions
def test_profile_and_travel(vllm_file: Find, version: str) -> None:
    vllm_file(version)
    engine = VllmEngine.published(version)
    assert (engine.profile.name, engine.profile.version) == ("vllm", version)
    assert engine.profile.element_type(256) == "uint8"
    assert engine.profile.element_type(257) == "uint16"
    assert pickle.loads(pickle.dumps(engine)).profile == engine.profile  # noqa: S301


@pytest.mark.parametrize("version", ["0.27.1", "0.34.0", "1.0", "main", ""])
def test_an_unknown_version_lists_the_supported_ones(tmp_path: Path, version: str) -> None:
    with pytest.raises(EngineError, match=r"supported are 0\.28\.\*, .*, 0\.32\.\*, 0\.33\.\*$"):
        VllmEngine(tmp_path / "any.py", version)
    with pytest.raises(EngineError, match="supported are"):
        VllmEngine.published(version)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        VllmEngine(tmp_path / "none.py", "0.33.0")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Pretend that a vLLM is installed, whose import would fail."""

    def install(version: str) -> Path:
        file = tmp_path / adapter.FILE
        file.parent.mkdir(parents=True)
        file.write_text("x = 1\n")
        (tmp_path / "vllm" / "__init__.py").write_text("raise SystemError('imported')\n")
        info = tmp_path / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)
        return file

    return install


def test_installed_is_found_without_import(site: Callable[[str], Path]) -> None:
    file = site("0.33.1+cu129")
    engine = VllmEngine.installed()
    assert engine._path == file
    assert engine.profile.version == "0.33.1+cu129"


def test_installed_in_an_unknown_version(site: Callable[[str], Path]) -> None:
    site("0.9.0")
    with pytest.raises(EngineError, match=r"vLLM 0\.9\.0 has no adapter"):
        VllmEngine.installed()


def test_installed_without_the_file(site: Callable[[str], Path]) -> None:
    site("0.33.0").unlink()
    with pytest.raises(EngineError, match=r"the installed vLLM 0\.33\.0 has no "):
        VllmEngine.installed()


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match="not installed here"):
        VllmEngine.installed()


ALWAYS = {"BUF-09", "COL-05", "IDS-02", "LAY-08", "SNP-02"}
UNTIL_32 = ALWAYS | {"BUF-01", "BUF-05", "COL-06", "GAT-03", "LAY-01", "LAY-02"}
FAILING = {
    "0.28.0": UNTIL_32 | {"BUF-03"},
    "0.30.0": UNTIL_32 | {"BUF-03"},
    "0.31.0": UNTIL_32,
    "0.32.0": UNTIL_32,
    "0.33.0": ALWAYS | {"BUF-04"},
}
"""MUST rules that fail; the scripts in docs/findings show each without the adapter."""


@published
@versions
def test_verdicts(vllm_file: Find, version: str) -> None:
    vllm_file(version)
    runner = Runner(load(f"vllm=={version}"), SimulatedWorld())
    chosen = tuple(Topology.parse(name) for name in ("tp2", "dp2", "tp2dp2"))
    findings = [item for case in select(topologies=chosen) for item in runner.run(case)]
    findings += [item for case in select(case="SNP-02/*") for item in runner.run(case)]
    assert [item for item in findings if item.verdict is Verdict.ERROR] == []
    failed = {item.rule for item in findings if item.verdict is Verdict.FAILED and item.level is Level.MUST}
    assert failed == FAILING[version]
