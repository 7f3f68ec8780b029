"""What a layer's call costs: reads, allocations, tensor operations; and what a graph replays."""

import gc
import tracemalloc
import weakref

import pytest
import torch
from routeproof_impl import RoutedExpertsCapturer, packing, plans
from routeproof_impl import capturer as module
from routeproof_spec import LayoutError, StepError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.impl_support import Echo, alone, config, counted, dirty, place, step, tokens


class Operations(TorchDispatchMode):
    """Keeps the tensor operations that ran, and refuses those through which Python sees a value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        name = str(func)
        assert not any(word in name for word in ("_local_scalar", "nonzero", "unique", "is_nonzero")), name
        assert name != "aten.equal.default"
        if name == "aten.copy_.default" and args[0].device.type != args[1].device.type:
            assert "non_blocking" in (kwargs or {}) or (len(args) > 2 and args[2]), "a copy that waits"
        self.seen.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    @property
    def names(self):
        return [str(func).removeprefix("aten.").partition(".")[0] for func, _, _ in self.seen]


CALLS = [
    ("whole rows", {"tp": 1}, (4,), 4, torch.int32, {}, ["copy_"]),
    ("whole rows of 16 bits", {"tp": 1}, (4,), 4, torch.int16, {}, ["copy_"]),
    ("whole rows of 64 bits", {"tp": 1}, (4,), 4, torch.int64, {}, ["clamp", "copy_"]),
    ("a shard", {"tp": 2}, (4,), 2, torch.int32, {}, ["copy_"]),
    ("rows of all DP ranks", {"dp": 2, "d": 1}, (3, 2), 5, torch.int32, {}, ["slice", "copy_"]),
    ("padded rows", {"tp": 2}, (5,), 6, torch.int32, {}, ["slice", "copy_"]),
    ("shared columns", {"tp": 1}, (4,), 4, torch.int32, {"shared_columns": 1}, ["slice", "copy_"]),
]


@pytest.mark.parametrize(("place_", "counts", "n", "dtype", "changes", "expected"), [c[1:] for c in CALLS])
def test_operations_of_a_call(place_, counts, n, dtype, changes, expected):
    rank = place(**place_)
    capturer = alone(rank=rank, **changes)
    ids = tokens(n, width=2)[0].to(dtype)
    if changes:
        ids = torch.cat([ids, ids[:, :1]], 1)
    step(capturer, counted(*counts), ids)
    capturer.begin_step(counted(*counts))
    pointer = capturer.buffer.data_ptr()
    with Operations() as operations:
        capturer.capture(0, ids)
    assert operations.names == expected
    target = operations.seen[-1][1][0]
    assert target.untyped_storage().data_ptr() == pointer


class Into(Echo):
    """Gathers into memory that it is given, as a torch process group does; the others send nothing."""

    def gather_into(self, *_):
        self.calls += 1


PACKED = ["copy_", "unbind", "aminmax", "copy_", "fill_"]
TO_THE_HOST = ["slice", "slice", "unbind", "unbind", *["copy_"] * 4]


@pytest.mark.parametrize(("t", "expected"), [(0, PACKED + TO_THE_HOST), (1, PACKED)])
def test_operations_of_an_end_that_is_like_one_before(t, expected):
    """Views are made once: left are packing, its header, and at the publisher the way to the host."""
    capturer = alone(Into(t, 2), place(tp=2, t=t), layers=3)
    for count in (8, 6, 8, 6):
        step(capturer, counted(count), *tokens(count // 2, layers=3))
    capturer.begin_step(counted(8))
    for layer, ids in enumerate(tokens(4, layers=3)):
        capturer.capture(layer, ids)
    with Operations() as operations:
        capturer.end_step()
    assert operations.names == expected


def test_closing_lets_go_of_all_memory():
    capturer = alone(Into(0, 2), place(tp=2), layers=3)
    kept = weakref.ref(capturer.buffer), weakref.ref(capturer._packer._bytes)
    step(capturer, counted(8), *tokens(4, layers=3))
    capturer.close()
    assert [it() for it in kept] == [None, None]


def test_the_decision_is_made_once_for_a_descriptor(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "decide", lambda *args, real=module.decide: calls.append(args) or real(*args))
    capturer = alone(layers=6)
    for real in (4, 3, 4):
        step(capturer, counted(4, real=(real,)), *tokens(4, layers=6))
    assert len(calls) == 1
    step(capturer, counted(5), *tokens(5, layers=6))
    step(capturer, counted(4), *tokens(4, layers=6))
    assert len(calls) == 2


def test_a_wrong_call_is_wrong_each_time():
    capturer = alone()
    for _ in range(3):
        capturer.begin_step(counted(4))
        with pytest.raises(LayoutError):
            capturer.capture(0, tokens(3)[0])
        step(capturer, counted(4), tokens(4)[0])


def test_plans_are_kept_within_limits():
    capturer = alone(max_tokens=2000)
    dirty_descriptor = counted(7)
    capturer.begin_step(dirty_descriptor)
    capturer.capture(0, tokens(7)[0])
    capturer.end_recording()
    for count in range(10, 10 + 2 * plans.KEPT):
        capturer.begin_step(counted(count))
    assert len(capturer._plans._kept) <= plans.KEPT + 1
    capturer.begin_step(dirty_descriptor, replayed=True)


def test_views_of_gathers_are_kept_within_limits():
    comm = Into(0, 2)
    capturer = alone(comm, place(tp=2), max_tokens=4 * packing.KEPT)
    for count in range(2, 3 * packing.KEPT):
        step(capturer, counted(count), tokens(-(-count // 2))[0])
    assert comm.calls == 3 * packing.KEPT - 2
    assert len(capturer._packer._exchanges) == packing.KEPT


@pytest.mark.parametrize("tp", [1, 2])
def test_a_thousand_steps_leave_nothing_behind(tp):
    comm = Echo(0, tp)
    capturer = alone(comm, place(tp=tp), layers=4)
    ids = {kind: tokens(8 // tp, layers=4).to(kind) for kind in (torch.int32, torch.int64)}
    wide = torch.arange(16).reshape(8, 2) % 8

    def some(count):
        for index in range(count):
            kind = torch.int32 if index % 2 else torch.int64
            step(capturer, counted(8, real=(8 - index % 3,)), *ids[kind]).numpy()
            step(capturer, counted(8), wide, wide, wide, wide).numpy()

    some(20)
    gc.collect()
    before, held = sum(issubclass(type(it), torch.Tensor) for it in gc.get_objects()), capturer.device_bytes
    tracemalloc.start()
    try:
        some(20)
        start = tracemalloc.get_traced_memory()[0]
        some(500)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - start < 20_000
    finally:
        tracemalloc.stop()
    assert sum(issubclass(type(it), torch.Tensor) for it in gc.get_objects()) <= before
    assert capturer.device_bytes == held
    assert capturer._publisher._ring._made == 2


@pytest.mark.parametrize(("tp", "layers"), [(1, 60), (2, 60), (4, 60), (8, 93)])
def test_device_memory_is_at_most_1_3_times_an_int32_buffer(tp, layers):
    capturer = alone(rank=place(tp=tp), layers=layers, top_k=8, experts=256, max_tokens=256)
    capturer.begin_step(counted(8))
    capturer.capture(0, torch.zeros((8, 8), dtype=torch.int64))
    assert capturer.device_bytes <= 1.3 * 256 * layers * 8 * 4


# --- nothing is read from the host


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["deferred", "per-layer"])
def test_a_step_on_fake_tensors(device, mode, monkeypatch):
    """Fake tensors have no values: reading one raises. No GPU is needed for fake ones."""
    if device == "cuda" and not torch.backends.cuda.is_built():  # then the method alone looks for CUDA
        copy = torch.ops.aten.copy_.default
        monkeypatch.setattr(
            torch.Tensor, "copy_", lambda to, rows, non_blocking=False: copy(to, rows, non_blocking)
        )
    with FakeTensorMode(), Operations() as operations:
        comm = Echo(0, 2)
        capturer = RoutedExpertsCapturer(config(layers=4), place(tp=2), comm, device, mode=mode)
        for _ in range(2):
            capturer.begin_step(counted(5, real=(4,)))
            for layer, n in [(0, 3), (2, 5), (3, 6)]:
                capturer.capture(layer, torch.zeros((n, 2), dtype=torch.int64, device=device))
            capturer.end_step()
        for kind in (torch.int32, torch.uint8):
            capturer.begin_step(counted(5))
            for layer in range(4):
                capturer.capture(layer, torch.zeros((3, 2), dtype=kind, device=device))
            capturer.end_step()
        assert comm.calls == (4 if mode == "deferred" else 10)
        assert capturer.snapshot().shape == (5, 4, 2)
        with pytest.raises(Exception, match="_local_scalar_dense"):
            capturer.buffer.sum().item()
    assert "copy_" in operations.names


def test_no_operation_of_a_step_reads_a_value():
    capturer = alone(Echo(0, 2), place(tp=2), layers=2)
    with Operations():
        snapshot = step(capturer, counted(5, real=(4,)), tokens(3)[0], tokens(5)[0])
        step(capturer, counted(5, real=(4,)), tokens(3)[0], tokens(3)[0])
        step(capturer, counted(5, real=(4,)), tokens(5)[0], tokens(5)[0])
    with Operations(), pytest.raises(AssertionError, match="_local_scalar"):
        torch.ones(1).item()
    assert snapshot.shape == (4, 2, 2)


# --- graphs: device work alone is replayed


class Graph:
    """Stands for a CUDA graph: the operations of a block, run again on the same tensors."""

    def __init__(self, capturer, context, ids):
        self.capturer, self.context, self.inputs = capturer, context, [layer.clone() for layer in ids]
        capturer.begin_step(context)
        with Operations() as operations:
            for layer, rows in enumerate(self.inputs):
                capturer.capture(layer, rows)
        capturer.end_recording()
        self.operations = operations.seen

    def step(self, context, ids):
        for mine, new in zip(self.inputs, ids, strict=True):
            mine.copy_(new)
        self.capturer.begin_step(context, replayed=True)
        for func, args, kwargs in self.operations:
            func(*args, **kwargs)
        self.capturer.end_step()
        snapshot = self.capturer.snapshot()
        return None if snapshot is None else snapshot.numpy().tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("warm", [False, True])
def test_two_graphs_and_eager_steps_alternate_on_one_buffer(dtype, warm):
    capturer = alone(layers=3)
    dirty(capturer)
    if warm:
        for count in (4, 8):
            step(capturer, counted(count), *tokens(count, layers=3).to(dtype))
    graphs = {n: Graph(capturer, counted(n), tokens(n, layers=3).to(dtype)) for n in (4, 8)}
    assert capturer.snapshot() is None
    for first, (size, real) in enumerate([(8, 7), (4, 2), (8, 8), (4, 4), (4, 3)]):
        ids = tokens(size, layers=3, first=first).to(dtype)
        got = graphs[size].step(counted(size, real=(real,)), ids)
        assert got == ids[:, :real].permute(1, 0, 2).tolist()
        eager = tokens(first + 2, layers=3, first=30 + first).to(dtype)
        rows = step(capturer, counted(first + 2), *eager).numpy()
        assert rows.tolist() == eager.permute(1, 0, 2).tolist()
        replayed = graphs[size].step(counted(size, real=(real,)), ids)
        assert replayed == got


def test_graphs_of_shards_gather_at_replay():
    comm = Echo(0, 2)
    capturer = alone(comm, place(tp=2), layers=2)
    graph = Graph(capturer, counted(6), tokens(3, layers=2))
    assert comm.calls == 0
    for first in (5, 9):
        ids = tokens(3, layers=2, first=first)
        got = graph.step(counted(6, real=(5,)), ids)
        assert got == torch.cat([ids, ids], 1)[:, :5].permute(1, 0, 2).tolist()
    assert comm.calls == 2


def test_a_replay_may_be_of_some_layers_only():
    capturer = alone(layers=3)
    graph = Graph(capturer, counted(4), tokens(4, layers=2))
    capturer.begin_step(counted(4), replayed=True)
    for func, args, kwargs in graph.operations:
        func(*args, **kwargs)
    capturer.capture(2, tokens(4, first=9)[0])
    capturer.end_step()
    want = torch.cat([tokens(4, layers=2), tokens(4, first=9)])
    assert capturer.snapshot().numpy().tolist() == want.permute(1, 0, 2).tolist()
    assert len(capturer._step.captured if capturer._step else graph.inputs) == 2


def test_a_replay_of_what_was_not_recorded():
    capturer = alone()
    Graph(capturer, counted(4), tokens(4))
    with pytest.raises(StepError, match="recorded"):
        capturer.begin_step(counted(5), replayed=True)
    assert step(capturer, counted(5), tokens(5)[0]).numpy()[:, 0].tolist() == tokens(5)[0].tolist()
    with pytest.raises(StepError, match="no step is open"):
        capturer.end_recording()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_cuda_graphs_and_no_synchronisation(dtype):
    capturer = RoutedExpertsCapturer(config(layers=3), place(), Echo(), "cuda")
    graphs = {}
    for count in (4, 8):
        inputs = tokens(count, layers=3).to("cuda", dtype)
        step(capturer, counted(count), *inputs)
        graph = torch.cuda.CUDAGraph()
        capturer.begin_step(counted(count))
        with torch.cuda.graph(graph):
            for layer in range(3):
                capturer.capture(layer, inputs[layer])
        capturer.end_recording()
        graphs[count] = graph, inputs
    torch.cuda.synchronize()
    for first, count in enumerate((8, 4, 8, 4)):
        ids = tokens(count, layers=3, first=first).to(dtype)
        graphs[count][1].copy_(ids)
        torch.cuda.set_sync_debug_mode("error")
        try:
            capturer.begin_step(counted(count), replayed=True)
            graphs[count][0].replay()
            capturer.end_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert capturer.snapshot().numpy().tolist() == ids.permute(1, 0, 2).tolist()
        eager = tokens(5, layers=3, first=20 + first)
        got = step(capturer, counted(5), *eager.to("cuda", dtype))
        assert got.numpy().tolist() == eager.permute(1, 0, 2).tolist()
