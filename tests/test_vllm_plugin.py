"""Our capturer inside vLLM: the switch, and vLLM's own forward context and connector around it."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached, fetch_command
from routeproof_conformance.engines.vllm import PACKAGE
from routeproof_impl import vllm_capturer, vllm_plugin
from routeproof_impl.vllm_plugin import MODE, SWITCH, PluginError, register
from routeproof_spec import ExpertIdError, LayoutError, StepError, WidthError

from tests.impl_support import Group, Member
from tests.published_vllm import FILES, PublishedVllm

VERSIONS = ("0.31.0", "0.32.0", "0.33.0")
MODES = ("per-layer", "deferred")


class Gathering(Member):
    """A rank of a TP group in one process, as torch would see it."""

    def gather_into(self, rows, out, dst=0):
        gathered = self.gather(rows, dst)
        if gathered is not None:
            out.copy_(gathered)


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def build(monkeypatch, version):
    """Make one process of vLLM, with our plugin registered in `mode`; None: switched off."""
    try:
        root = cached(PACKAGE, version, FILES).root
    except EngineError as error:
        if os.environ.get("ROUTEPROOF_REQUIRE_PUBLISHED") == "1":
            pytest.fail(str(error))
        pytest.skip(f"not fetched: run `{fetch_command(PACKAGE, version)}`")

    def make(mode="per-layer", member=None):
        monkeypatch.setattr(vllm_capturer, "TorchCommunicator", lambda group: group)
        monkeypatch.delenv(SWITCH, raising=False)
        if mode is not None:
            monkeypatch.setenv(SWITCH, "1")
            monkeypatch.setenv(MODE, mode)
        made = PublishedVllm(monkeypatch, root, version, member)
        register()
        return made

    return make


def ids(count, layers=2, first=0, width=2):
    """Rows [layers, count, K] of ids in [0, 8), no two neighbours alike."""
    at = torch.arange(count)[None, :, None] + 3 * torch.arange(layers)[:, None, None] + first
    return ((at + 2 * torch.arange(width)) % 8).to(torch.int64)


def rows_of(layers):
    return layers.permute(1, 0, 2).tolist()


# --- inside vLLM's own files


@pytest.mark.published
def test_switched_off_vllm_is_untouched(build):
    vllm = build(None)
    assert vllm.worker.RoutedExpertsCapturer is vllm.capturer_file.RoutedExpertsCapturer
    assert not issubclass(vllm.worker.RoutedExpertsCapturer, vllm_capturer.VllmCapturer)
    assert vllm.worker.AuxOutputWorkerConnector.prepare_output.__module__ == vllm.worker.__name__


@pytest.mark.published
def test_ours_is_found_wherever_theirs_was(build, monkeypatch, version):
    vllm = build()
    ours = vllm.worker.RoutedExpertsCapturer
    assert issubclass(ours, vllm_capturer.VllmCapturer)
    assert vllm.capturer_file.RoutedExpertsCapturer is ours
    counted = vllm.forward.set_forward_context
    assert vllm.runner.set_forward_context is counted
    assert hasattr(counted.__wrapped__, "__wrapped__") is (version < "0.33")
    before = vllm.worker.AuxOutputWorkerConnector.prepare_output
    register()
    assert vllm.worker.AuxOutputWorkerConnector.prepare_output is before
    monkeypatch.setenv(MODE, "deferred")
    with pytest.raises(PluginError, match=r"has changed from 'per-layer' to 'deferred'"):
        register()


@pytest.mark.published
def test_a_missing_part_is_refused(build):
    vllm = build(None)
    del vllm.worker.AuxOutputWorkerConnector.process_output
    vllm.monkeypatch.setenv(SWITCH, "1")
    with pytest.raises(PluginError, match=r"AuxOutputWorkerConnector of this vLLM has no process_output"):
        register()


@pytest.mark.published
def test_attributes_are_those_of_vllms_own(build):
    theirs = build(None).connector(experts=257)._capturer
    ours = build().connector(experts=257)._capturer
    for name in ("shape_per_token", "output_dtype", "output_dtype_name", "dp_rank", "tp_size"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert (ours.device_buffer.shape, ours.device_buffer.dtype) == (theirs.device_buffer.shape, torch.int32)


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_requests_over_steps(build, mode):
    vllm = build(mode)
    connector = vllm.connector()
    layers = ids(7)
    got = vllm.step(connector, layers, a=(0, 4), b=(0, 3))
    assert {name: rows.tolist() for name, rows in got.items()} == {
        "a": rows_of(layers)[:4],
        "b": rows_of(layers)[4:],
    }
    assert {rows.dtype for rows in got.values()} == {np.dtype(np.uint8)}
    assert torch.equal(connector._capturer.device_buffer[:7], layers.permute(1, 0, 2))
    layers = ids(2, first=5)
    got = vllm.step(connector, layers, a=(4, 1), b=(3, 1))
    assert [got["a"].tolist(), got["b"].tolist()] == [rows_of(layers)[:1], rows_of(layers)[1:]]


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
def test_padding_rows_are_left_out_and_may_be_anything(build, mode):
    vllm = build(mode)
    connector = vllm.connector()
    layers = ids(8)
    layers[:, 5:] = 99
    assert vllm.step(connector, layers, padded=8, a=(0, 5))["a"].tolist() == rows_of(layers)[:5]


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
def test_dummy_runs_end_no_step_and_leave_nothing(build, mode):
    vllm = build(mode)
    connector = vllm.connector()
    vllm.forward_pass(connector, 16, ids(16))
    vllm.forward_pass(connector, 16, ids(16), described=False)
    layers = ids(3, first=1)
    assert vllm.step(connector, layers, a=(0, 3))["a"].tolist() == rows_of(layers)
    vllm.forward_pass(connector, 9, ids(9))
    connector.begin_step(None)  # a warm-up of the model runner: nothing is to come of it
    vllm.forward_pass(connector, 2, ids(2))
    assert vllm.prepare(connector, w=(0, 2)) is None
    vllm.begin(connector)  # nothing is scheduled: a DP rank that waits for the others
    for count in (1, 2):
        vllm.forward_pass(connector, count, ids(count))
    layers = ids(1, first=6)
    assert vllm.step(connector, layers, a=(3, 1))["a"].tolist() == rows_of(layers)


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
def test_arrays_outlive_many_steps(build, mode):
    """In-process engines keep every step's rows until the request ends."""
    vllm = build(mode)
    connector = vllm.connector()
    kept = [vllm.step(connector, ids(1, first=n), a=(n, 1))["a"] for n in range(40)]
    assert [rows.tolist() for rows in kept] == [rows_of(ids(1, first=n)) for n in range(40)]


@pytest.mark.published
@pytest.mark.parametrize("bad", [8, 300, -1, 2**40])
def test_an_id_out_of_range_is_an_error_when_the_output_is_consumed(build, bad):
    vllm = build()
    connector = vllm.connector()
    layers = ids(3)
    layers[1, 2, 0] = bad
    vllm.begin(connector, a=0)
    vllm.forward_pass(connector, 3, layers)
    pending = vllm.prepare(connector, a=(0, 3))
    with pytest.raises(ExpertIdError, match=r"expected \[0, 8\)"):
        pending.process_output()


@pytest.mark.published
def test_errors_of_a_layer_reach_the_forward_pass(build):
    vllm = build()
    connector = vllm.connector()
    with pytest.raises(LayoutError, match="5 rows from DP rank 0 with T = 6"):
        vllm.forward_pass(connector, 6, ids(5))
    with pytest.raises(WidthError, match="expected integers"):
        vllm.forward_pass(connector, 6, ids(6, width=3))
    layers = ids(6)
    assert vllm.step(connector, layers, a=(0, 6))["a"].tolist() == rows_of(layers)


@pytest.mark.published
def test_microbatches_are_refused(build):
    vllm = build()
    for flag in ("use_ubatching", "enable_dbo"):
        with pytest.raises(ValueError, match="microbatches: leave --enable-dbo out"):
            vllm.connector(**{flag: True})


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_shards_of_two_ranks(build, mode, count):
    group, layers = Group(2), ids(count)
    size = -(-count // 2)
    padded = torch.cat([layers, layers.new_full((2, 2 * size - count, 2), 7)], dim=1)
    made = []
    for rank in range(2):  # each with modules of its own
        vllm = build(mode, Gathering(group, rank))
        made.append((vllm, vllm.connector(tp=2)))

    def body(rank):
        vllm, connector = made[rank]
        vllm.forward_pass(connector, 2, ids(2))
        vllm.begin(connector, a=0)
        vllm.forward_pass(connector, count, padded[:, rank * size : (rank + 1) * size])
        pending = vllm.prepare(connector, a=(0, count))
        return None if pending is None else pending.process_output()["a"].rows.tolist()

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(body, range(2)))
    assert results == [rows_of(layers), None]
    gathers = 0 if count == 1 else {"per-layer": 2, "deferred": 1}[mode]
    assert [len(calls) for calls in group.calls] == [gathers, gathers]


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_two_dp_ranks(build, mode):
    vllm = build(mode)
    layers = ids(5)
    for rank, own in enumerate([slice(0, 3), slice(3, 5)]):
        connector = vllm.connector(dp=2, dp_rank=rank)
        count = own.stop - own.start
        vllm.begin(connector, a=0)
        vllm.forward_pass(connector, count, layers, counts=(3, 2))
        got = vllm.prepare(connector, a=(0, count)).process_output()["a"].rows
        assert got.tolist() == rows_of(layers)[own]


# --- steps


@pytest.mark.published
@pytest.mark.parametrize("mode", MODES)
def test_replayed_graphs(build, monkeypatch, mode):
    """Recording runs Python, with or without a descriptor; a replay writes the rows and nothing more."""
    vllm = build(mode)
    connector = vllm.connector()
    ours = connector._capturer
    ours._on_gpu = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    vllm.forward_pass(connector, 4, ids(4), described=False)
    vllm.forward_pass(connector, 8, ids(8))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    layers = ids(9, first=2)
    assert vllm.step(connector, layers, a=(0, 9))["a"].tolist() == rows_of(layers)
    for padded, real in [(8, 5), (4, 4)]:
        replayed = ids(padded, first=real)
        ours._capturer.buffer[:padded] = replayed.permute(1, 0, 2)
        vllm.begin(connector, **{f"r{padded}": 0})
        got = vllm.prepare(connector, padded, **{f"r{padded}": (0, real)}).process_output()
        assert got[f"r{padded}"].rows.tolist() == rows_of(replayed)[:real]
    vllm.begin(connector, a=9)
    with pytest.raises(StepError, match=r"no graph was recorded with counts \(6,\)"):
        vllm.prepare(connector, a=(9, 6))


@pytest.mark.published
def test_a_pass_on_fewer_rows_inside_a_step_is_refused(build):
    vllm = build()
    connector = vllm.connector()
    vllm.begin(connector, a=0)
    vllm.forward_pass(connector, 6, ids(6))
    vllm.forward_pass(connector, 6, ids(6))
    with pytest.raises(StepError, match=r"counts \(4,\) inside a step with \(6,\)"):
        vllm.forward_pass(connector, 4, ids(4))


@pytest.mark.published
@pytest.mark.parametrize("dummy", [False, True])
def test_a_step_that_misses_a_layer_is_refused(build, dummy):
    vllm = build()
    connector = vllm.connector(layers=3)  # layer 2 is a dense one
    vllm.forward_pass(connector, 2, ids(2)) if dummy else vllm.step(connector, ids(2), b=(0, 2))
    with pytest.raises(StepError, match=r"layers \[1\] were not captured in this step"):
        vllm.step(connector, ids(3)[:1], a=(0, 3))


@pytest.mark.published
def test_a_step_without_counts_at_two_dp_ranks_is_refused(build):
    vllm = build()
    connector = vllm.connector(dp=2)
    context = vllm.forward.ForwardContext(no_compile_layers={}, attn_metadata={}, slot_mapping={})
    vllm.begin(connector, a=0)
    with (
        vllm.forward.override_forward_context(context),
        pytest.raises(LayoutError, match="no token counts for this forward pass at 2 DP ranks"),
    ):
        connector._capturer.capture(0, ids(3)[0])


@pytest.mark.published
def test_snapshots_without_the_connector(build):
    vllm = build()
    connector = vllm.connector()
    ours, layers = connector._capturer, ids(5)
    vllm.forward_pass(connector, 5, layers)
    snapshot = ours.snapshot_routing_data(4)
    assert isinstance(snapshot, torch.Tensor)
    assert (snapshot.dtype, snapshot.tolist()) == (torch.uint8, rows_of(layers)[:4])
    with pytest.raises(StepError, match="nothing was captured since the last one"):
        ours.snapshot_routing_data(4)
    vllm.forward_pass(connector, 5, layers)
    with pytest.raises(ValueError, match=r"6 real rows on dp0/tp0"):
        ours.snapshot_routing_data(6)


@pytest.mark.published
def test_deferred_steps_end_on_every_rank_or_not_at_all(build):
    vllm = build("deferred")
    connector = vllm.connector()
    vllm.forward_pass(connector, 5, ids(5))
    with pytest.raises(StepError, match="every TP rank ends it in prepare_output"):
        connector._capturer.snapshot_routing_data(5)


def test_nothing_of_vllm_is_named_in_an_import():
    for module in (vllm_plugin, vllm_capturer):
        assert "import vllm" not in Path(module.__file__).read_text().replace("import vllm_capturer", "")
