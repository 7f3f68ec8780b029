"""The capturer of the implementation: worked inputs, order of checks, and what a rejected call leaves."""

import ast
from pathlib import Path

import numpy as np
import pytest
import routeproof_impl
import torch
from routeproof_impl import RoutedExpertsCapturer, TorchCommunicator
from routeproof_spec import (
    CapacityError,
    ExpertIdError,
    Layout,
    LayoutError,
    Microbatch,
    ShardGroupError,
    StepContext,
    StepError,
    WidthError,
)

from tests.impl_support import PAD, Echo, Group, alone, config, counted, dirty, place, step, tokens


def sharded(count, shards, **changes):
    """One step on len(shards) TP ranks of one DP rank, each with its own rows; after a full-size step."""
    group = Group(len(shards))

    def work(rank, comm):
        capturer = RoutedExpertsCapturer(config(**changes), place(tp=len(shards), t=rank), comm)
        dirty(capturer)
        before = capturer.buffer.clone()
        try:
            snapshot = step(capturer, counted(count), torch.tensor(shards[rank], dtype=torch.int32))
        except LayoutError:
            assert torch.equal(before, capturer.buffer)
            assert capturer.snapshot() is None
            raise
        return snapshot, capturer.buffer.clone()

    return group.run(work), group.calls


# --- worked inputs


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (
            [[[0, 1], [2, 3], [4, 5]], [[6, 7], [1, 0], [3, 2]]],
            [[0, 1], [2, 3], [4, 5], [6, 7], [1, 0], [3, 2]],
        ),
        ([[[0, 1], [2, 3]], [[4, 5], PAD]], [[0, 1], [2, 3], [4, 5]]),
        ([[[1, 2]], [[3, 4]], [PAD], [PAD]], [[1, 2], [3, 4]]),
        (
            [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[1, 0]], [PAD], [PAD], [PAD]],
            [[0, 1], [2, 3], [4, 5], [6, 7], [1, 0]],
        ),
    ],
)
def test_shards_are_restored_with_one_gather(shards, expected):
    results, calls = sharded(len(expected), shards)
    assert results[0][0].numpy()[:, 0].tolist() == expected
    buffer = results[0][1]
    assert buffer[: len(expected), 0].tolist() == expected
    assert (buffer[len(expected) :] == 6).all()
    assert [snapshot is None for snapshot, _ in results] == [rank > 0 for rank in range(len(shards))]
    size = -(-(16 + 2 * len(shards[0])) // 16) * 16
    assert calls == [[(torch.uint8, (size,), True)]] * len(shards)


def test_one_token_needs_no_gather():
    results, calls = sharded(1, [[[3, 4]], [PAD]])
    assert results[0][0].numpy().tolist() == [[[3, 4]]]
    assert calls == [[], []]


def test_one_row_of_six_tokens_is_rejected_on_every_rank():
    results, calls = sharded(6, [[[3, 4]], [[5, 6]]])
    assert all(isinstance(result, LayoutError) for result in results)
    assert calls == [[], []]


@pytest.mark.parametrize(("count", "n"), [(3, 4), (5, 6)])
def test_gathered_rows_with_padding_are_trimmed_without_a_gather(count, n):
    rows = tokens(count)[0].tolist()
    results, calls = sharded(count, [rows + [PAD] * (n - count)] * 2)
    assert results[0][0].numpy()[:, 0].tolist() == rows
    assert calls == [[], []]


@pytest.mark.parametrize("count", range(1, 17))
def test_four_ranks_any_count(count):
    rows, size = tokens(count)[0].tolist(), -(-count // 4)
    padded = rows + [PAD] * (4 * size - count)
    results, _ = sharded(count, [padded[t * size : (t + 1) * size] for t in range(4)])
    assert results[0][0].numpy()[:, 0].tolist() == rows


def test_declared_padded_local_at_two_dp_ranks():
    capturer = alone(rank=place(tp=2, dp=2, d=1))
    rows = tokens(4)[0]
    assert (
        step(capturer, counted(1, 3, declared=Layout.PADDED_LOCAL), rows).numpy()[:, 0].tolist()
        == rows[:3].tolist()
    )


def test_shard_groups_of_two_dp_ranks():
    rows = tokens(10)[0]
    for d, own in enumerate([slice(5), slice(6, 9)]):
        capturer = alone(rank=place(tp=2, dp=2, d=d))
        got = step(capturer, counted(5, 3, shard_sizes=(3, 3, 2, 2)), rows)
        assert got.numpy()[:, 0].tolist() == rows[own].tolist()
        capturer.begin_step(counted(5, 3, shard_sizes=(3, 3, 4)))
        with pytest.raises(ShardGroupError, match="layer 0"):
            capturer.capture(0, rows)


def test_microbatches_publish_their_real_rows_in_order():
    parts = (
        Microbatch(offset=0, counts=(8,), real=(4,)),
        Microbatch(offset=8, counts=(8,), real=(3,)),
    )
    capturer, ids = alone(layers=2), tokens(16, layers=2)
    capturer.begin_step(counted(16, real=(7,), microbatches=parts))
    for layer in range(2):
        for part in range(2):
            capturer.capture(layer, ids[layer, 8 * part : 8 * part + 8], part)
    capturer.end_step()
    want = ids[:, [0, 1, 2, 3, 8, 9, 10]].permute(1, 0, 2)
    assert capturer.snapshot().numpy().tolist() == want.tolist()
    assert torch.equal(capturer.buffer[:16], ids.permute(1, 0, 2))


def test_microbatches_use_their_own_counts_and_shard_sizes():
    parts = (
        Microbatch(offset=0, counts=(5, 3), real=(5, 3), shard_sizes=(3, 3, 2, 2)),
        Microbatch(offset=6, counts=(2, 2), real=(1, 2), shard_sizes=(1, 1, 1, 1)),
    )
    capturer, first, second = alone(rank=place(tp=2, dp=2)), tokens(10)[0], tokens(4, first=20)[0]
    capturer.begin_step(counted(9, 9, real=(6, 5), microbatches=parts))
    capturer.capture(0, first, 0)
    capturer.capture(0, second, 1)
    capturer.end_step()
    assert capturer.snapshot().numpy()[:, 0].tolist() == first[:5].tolist() + second[:1].tolist()


def test_a_layer_of_some_microbatches_only_is_not_published():
    parts = tuple(Microbatch(offset=2 * i, counts=(2,), real=(2,)) for i in range(2))
    capturer = alone(layers=3)
    capturer.begin_step(counted(4, microbatches=parts))
    for layer, part in [(0, 0), (0, 1), (2, 1)]:
        capturer.capture(layer, tokens(2)[0], part)
    with pytest.raises(StepError, match=r"\[\(2, 0\)\]"):
        capturer.end_step()
    assert capturer.snapshot() is None
    assert step(capturer, counted(1), *tokens(1, layers=3)).numpy().shape == (1, 3, 2)


@pytest.mark.parametrize(
    ("experts", "dtype"),
    [(256, "uint8"), (257, "uint16"), (32766, "uint16"), (32769, "uint16"), (65536, "uint16")],
)
def test_element_types_hold_every_id(experts, dtype):
    capturer = alone(experts=experts)
    got = step(capturer, counted(2), [[experts - 1, 0], [255, 254]]).numpy()
    assert got.dtype == np.dtype(dtype)
    assert got.tolist() == [[[experts - 1, 0]], [[255, 254]]]


def test_more_experts_are_refused():
    with pytest.raises(ExpertIdError, match="65537"):
        alone(experts=65537)


@pytest.mark.parametrize(
    ("experts", "bad", "dtype"),
    [
        (256, 300, torch.int32),
        (256, 256, torch.int16),
        (256, -1, torch.int8),
        (256, 2**32 + 5, torch.int64),
        (256, 2**16 + 5, torch.int32),
        (8, 255, torch.uint8),
        (256, -(2**40) + 5, torch.int64),
        (65536, 65536, torch.int32),
        (512, 65535, torch.uint16),
        (512, 2**31 + 5, torch.uint32),
        (512, 2**63 + 5, torch.uint64),
        (8, 2**33 + 5, torch.uint64),
    ],
)
def test_ids_out_of_range_never_wrap_and_the_next_step_is_fine(experts, bad, dtype):
    capturer = alone(experts=experts, layers=2)
    capturer.begin_step(counted(3, real=(2,)))
    capturer.capture(0, torch.tensor([[1, 2]] * 3, dtype=dtype))
    capturer.capture(1, torch.tensor([[1, 2], [3, bad], [1, 2]], dtype=dtype))
    capturer.end_step()
    snapshot = capturer.snapshot()
    assert snapshot.shape == (2, 2, 2)
    for _ in range(2):
        with pytest.raises(ExpertIdError, match="TP rank 0 captured an id out of range"):
            snapshot.numpy()
        with pytest.raises(ExpertIdError):
            snapshot.tensor()
    assert not 0 <= int(capturer.buffer[1, 1, 1]) < experts
    assert step(capturer, counted(1), [[0, 1]], [[1, 0]]).numpy().tolist() == [[[0, 1], [1, 0]]]


def test_ids_of_padding_rows_may_be_anything():
    assert step(alone(), counted(3, real=(2,)), [[0, 1], [2, 3], [-1, 99]]).numpy()[:, 0].tolist() == [
        [0, 1],
        [2, 3],
    ]


def test_shared_columns_are_dropped():
    capturer = alone(top_k=6, shared_columns=1, experts=384)
    row = [343, 178, 114, 6, 141, 378, 384]
    assert step(capturer, counted(1), [row]).numpy().tolist() == [[row[:6]]]
    for width in (6, 8):
        capturer.begin_step(counted(1))
        with pytest.raises(WidthError):
            capturer.capture(0, torch.zeros((1, width), dtype=torch.int64))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.uint16,
        torch.int32,
        torch.uint32,
        torch.int64,
        torch.uint64,
    ],
)
@pytest.mark.parametrize("shared", [0, 1])
def test_gather_inputs_are_contiguous_and_movable(dtype, shared):
    group = Group(2)
    rows = tokens(5)[0].to(dtype)

    def work(rank, comm):
        capturer = RoutedExpertsCapturer(config(shared_columns=shared), place(tp=2, t=rank), comm)
        mine = torch.zeros((2 + shared, 3), dtype=dtype).t()  # column-major
        for index, row in enumerate(range(3 * rank, min(3 * rank + 3, 5))):
            mine[index, :2] = rows[row]
        assert not mine.is_contiguous()
        return step(capturer, counted(5), mine)

    assert group.run(work)[0].numpy()[:, 0].tolist() == rows.tolist()
    assert all(
        contiguous and kind in {torch.uint8, torch.int8, torch.int32, torch.int64}
        for calls in group.calls
        for kind, _, contiguous in calls
    )
    assert [len(calls) for calls in group.calls] == [1, 1]


# --- steps


def test_an_abandoned_step_publishes_nothing():
    capturer = alone(layers=2)
    step(capturer, counted(2), *tokens(2, layers=2))
    capturer.begin_step(counted(3))
    capturer.capture(0, tokens(3)[0])
    capturer.begin_step(counted(1))
    assert capturer.snapshot() is None
    capturer.capture(1, tokens(1)[0])
    capturer.end_step()
    assert capturer.snapshot().numpy().tolist() == [[[0, 0], tokens(1)[0, 0].tolist()]]


def test_layers_not_captured_hold_the_fill_and_not_an_earlier_step():
    capturer = alone(layers=5)
    dirty(capturer)
    ids = tokens(2, layers=5)
    capturer.begin_step(counted(2))
    for layer in (3, 1, 4):
        capturer.capture(layer, ids[layer])
    capturer.end_step()
    got = capturer.snapshot().numpy()
    assert got[:, [1, 3, 4]].tolist() == ids[[1, 3, 4]].permute(1, 0, 2).tolist()
    assert (got[:, [0, 2]] == 0).all()


def test_marks_of_an_earlier_step_in_a_layer_not_captured_do_not_count():
    capturer = alone(layers=2)
    step(capturer, counted(1), [[99, 1]], [[1, 0]])
    capturer.begin_step(counted(1))
    capturer.capture(1, tokens(1)[0])
    capturer.end_step()
    assert capturer.snapshot().numpy()[0, 0].tolist() == [0, 0]


def test_a_step_without_captures():
    assert (step(alone(), counted(2)).numpy() == np.zeros((2, 1, 2))).all()


@pytest.mark.parametrize("n", [0, 3])
def test_zero_tokens_beside_a_busy_rank(n):
    comm = Echo(0, 2)
    capturer = alone(comm, place(tp=2, dp=2))
    dirty(capturer, dp=2)
    before = capturer.buffer.clone()
    got = step(capturer, counted(0, 3), tokens(n)[0])
    assert got.numpy().shape == (0, 1, 2)
    assert torch.equal(before, capturer.buffer)
    assert comm.calls == 0


def test_a_snapshot_is_not_changed_by_later_steps_or_the_buffer():
    capturer = alone()
    first = step(capturer, counted(2), tokens(2)[0])
    array = first.numpy()
    step(capturer, counted(2), tokens(2, first=5)[0])
    capturer.buffer.fill_(7)
    assert array.tolist() == first.numpy().tolist() == tokens(2).permute(1, 0, 2).tolist()


def test_only_tp_rank_0_publishes():
    assert step(alone(rank=place(tp=2, t=1)), counted(2), tokens(2)[0]) is None


def test_uncounted_rows_pass_through():
    capturer = alone(layers=2, max_tokens=4)
    got = step(capturer, StepContext(counts=None, real=(2,)), *tokens(3, layers=2))
    assert got.numpy().tolist() == tokens(3, layers=2)[:, :2].permute(1, 0, 2).tolist()
    capturer.begin_step(StepContext(counts=None, real=(2,)))
    with pytest.raises(CapacityError, match=r"5 rows.* 4"):
        capturer.capture(0, tokens(5)[0])
    capturer.begin_step(StepContext(counts=None, real=(2,)))
    capturer.capture(0, tokens(2)[0])
    capturer.capture(1, tokens(1)[0])
    with pytest.raises(LayoutError, match="2 rows"):
        capturer.end_step()
    assert capturer.snapshot() is None


def test_a_group_of_one_without_torch_distributed():
    comm = TorchCommunicator()
    assert (comm.rank, comm.size) == (0, 1)
    rows = tokens(3)[0]
    assert torch.equal(comm.all_gather(rows), rows)
    assert torch.equal(comm.gather(rows), rows)
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_gather(rows.t())
    with pytest.raises(ValueError, match="outside"):
        comm.gather(rows, 1)


@pytest.mark.parametrize("inside", [False, True])
def test_inference_mode_on_either_side(inside):
    with torch.inference_mode(mode=inside):
        capturer = alone()
    with torch.inference_mode(mode=not inside):
        got = step(capturer, counted(2), tokens(2)[0])
    assert not got.tensor().is_inference()
    assert got.numpy()[:, 0].tolist() == tokens(2)[0].tolist()


def test_no_assertion_and_no_reference_in_the_source():
    folder = Path(routeproof_impl.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert), path
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(
                name.startswith(("routeproof_reference", "routeproof_conformance")) for name in names
            )
