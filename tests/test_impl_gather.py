"""The packed gather: one collective a step, whatever layouts its layers have."""

import weakref

import numpy as np
import pytest
import torch
from routeproof_impl import RoutedExpertsCapturer
from routeproof_spec import ExpertIdError, Layout, LayoutError, Microbatch, StepContext, StepError

from tests.impl_support import Echo, Group, alone, config, counted, dirty, place, step, tokens

HEADER = 16


def shard(rows, rank, size):
    """Rows [rank * size, +size), the tail padded with an id that is out of range."""
    padded = torch.cat([rows, torch.full((size * 4, rows.shape[1]), 99, dtype=rows.dtype)])
    return padded[rank * size : (rank + 1) * size].contiguous()


def on(size, work, mode="deferred", **changes):
    """Run work(capturer, rank) on the ranks of a group; give results and each rank's collectives."""
    group = Group(size)

    def body(rank, comm):
        return work(RoutedExpertsCapturer(config(**changes), place(tp=size, t=rank), comm, mode=mode), rank)

    return group.run(body), group.calls


def chunk(*shards, layers=1, width=2, item=1):
    return [(torch.uint8, (-(-(HEADER + sum(shards) * layers * width * item) // 16) * 16,), True)]


@pytest.mark.parametrize(("experts", "item"), [(8, 1), (512, 2)])
@pytest.mark.parametrize("count", [2, 5, 8])
def test_all_layers_travel_in_one_collective(count, experts, item):
    ids, size = tokens(count, layers=7), -(-count // 2)

    def work(capturer, rank):
        dirty(capturer)
        got = step(capturer, counted(count), *[shard(layer, rank, size) for layer in ids])
        return None if got is None else got.numpy().tolist(), capturer.buffer[:count].tolist()

    results, calls = on(2, work, layers=7, experts=experts)
    assert results[0] == (ids.permute(1, 0, 2).tolist(),) * 2
    assert results[1][0] is None
    assert calls == [chunk(size, layers=7, item=item)] * 2


def test_layers_of_different_layouts_share_the_collective():
    ids = tokens(5, layers=5)

    def work(capturer, rank):
        dirty(capturer)
        handed = [shard(layer, rank, 3) if index in (1, 2, 4) else layer for index, layer in enumerate(ids)]
        got = step(capturer, counted(5, real=(4,)), *handed)
        return None if got is None else got.numpy().tolist(), capturer.buffer[:5].tolist()

    results, calls = on(2, work, layers=5)
    assert results[0][0] == ids[:, :4].permute(1, 0, 2).tolist()
    assert results[0][1] == ids.permute(1, 0, 2).tolist()
    assert calls == [chunk(3, layers=5)] * 2


def test_microbatches_share_the_collective():
    parts = (
        Microbatch(offset=0, counts=(5,), real=(4,)),
        Microbatch(offset=5, counts=(1,), real=(1,)),
        Microbatch(offset=8, counts=(6,), real=(6,)),
    )
    ids = tokens(14, layers=3)

    def work(capturer, rank):
        capturer.begin_step(counted(14, real=(11,), microbatches=parts))
        for layer in range(3):
            capturer.capture(layer, shard(ids[layer, :5], rank, 3), 0)
            capturer.capture(layer, ids[layer, 5:6] if rank == 0 else ids[layer, :1], 1)
            capturer.capture(layer, shard(ids[layer, 8:], rank, 3), 2)
        capturer.end_step()
        got = capturer.snapshot()
        return None if got is None else got.numpy().tolist()

    results, calls = on(2, work, layers=3)
    assert results[0] == ids[:, [0, 1, 2, 3, 5, *range(8, 14)]].permute(1, 0, 2).tolist()
    assert calls == [chunk(3, 3, layers=3)] * 2


def test_microbatches_of_shards_alone():
    parts = tuple(Microbatch(offset=4 * i, counts=(3 + i,), real=(3,)) for i in range(2))
    ids = tokens(8)[0]

    def work(capturer, rank):
        capturer.begin_step(counted(8, real=(6,), microbatches=parts))
        capturer.capture(0, shard(ids[:3], rank, 2), 0)
        capturer.capture(0, shard(ids[4:], rank, 2), 1)
        capturer.end_step()
        got = capturer.snapshot()
        return None if got is None else got.numpy()[:, 0].tolist(), capturer.buffer[:8, 0].tolist()

    results, calls = on(2, work)
    assert results[0] == (ids[[0, 1, 2, 4, 5, 6]].tolist(), [*ids[:3].tolist(), [0, 0], *ids[4:].tolist()])
    assert calls == [chunk(2, 2)] * 2


HALVES = tuple(Microbatch(offset=4 * i, counts=(4,), real=(real,)) for i, real in enumerate((3, 4)))


def test_padding_of_a_microbatch_is_not_published():
    ids = tokens(8)[0]

    def work(capturer, rank):
        capturer.begin_step(counted(8, real=(7,), microbatches=HALVES))
        for part in (0, 1):
            capturer.capture(0, shard(ids[4 * part : 4 * part + 4], rank, 2), part)
        capturer.end_step()
        got = capturer.snapshot()
        return None if got is None else got.numpy()[:, 0].tolist()

    assert on(2, work)[0][0] == ids[[0, 1, 2, 4, 5, 6, 7]].tolist()


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("bad", [-1, 8])
def test_an_id_out_of_range_in_one_microbatch(part, bad):
    def work(capturer, rank):
        rows = tokens(8)[0]
        rows[4 * part] = torch.tensor([bad, 1])
        capturer.begin_step(counted(8, real=(7,), microbatches=HALVES))
        for number in (0, 1):
            capturer.capture(0, shard(rows[4 * number : 4 * number + 4], rank, 2), number)
        capturer.end_step()
        return capturer.snapshot()

    with pytest.raises(ExpertIdError, match="TP rank 0"):
        on(2, work)[0][0].numpy()


def test_a_rank_without_real_rows_says_nothing_of_earlier_ones():
    def work(capturer, rank):
        rows = tokens(4)[0]
        rows[3, 0] = -5
        for real in (4, 1):
            got = step(capturer, counted(4, real=(real,)), shard(rows, rank, 2))
        return got

    assert on(2, work)[0][0].numpy()[:, 0].tolist() == tokens(4)[0][:1].tolist()


@pytest.mark.parametrize(
    "given",
    [
        lambda rows: None,  # noqa: ARG005
        lambda rows: rows,
        lambda rows: torch.cat([rows, rows])[:-1],
        lambda rows: torch.cat([rows, rows]).to(torch.int8),
    ],
)
def test_what_is_no_gather_is_an_error(given, monkeypatch):
    monkeypatch.setattr(Echo, "gather", lambda _, rows, dst=0: given(rows) if dst == 0 else None)
    capturer = alone(Echo(0, 2), place(tp=2))
    capturer.begin_step(counted(4))
    capturer.capture(0, tokens(2)[0])
    with pytest.raises(RuntimeError, match=r"communicator gathered .*, expected"):
        capturer.end_step()
    assert capturer.snapshot() is None
    monkeypatch.undo()
    assert step(capturer, counted(4), tokens(2)[0]).numpy()[:, 0].tolist() == tokens(2)[0].tolist() * 2


def test_memory_that_was_too_small_is_let_go():
    capturer = alone(Echo(0, 2), place(tp=2), max_tokens=12, layers=8)
    ids = tokens(2, layers=8)
    step(capturer, counted(4), *ids)
    small = weakref.ref(capturer._packer._bytes)
    parts = tuple(Microbatch(offset=3 * i, counts=(3,), real=(3,)) for i in range(4))
    capturer.begin_step(counted(12, microbatches=parts))
    for layer, rows in enumerate(ids):
        for part in range(4):
            capturer.capture(layer, rows, part)
    capturer.end_step()
    assert small() is None
    want = torch.cat([ids, ids], 1).permute(1, 0, 2)
    assert step(capturer, counted(4), *ids).numpy().tolist() == want.tolist()


def test_more_microbatches_than_the_preallocated_room():
    parts = tuple(Microbatch(offset=2 * i, counts=(2,), real=(2,)) for i in range(8))
    ids = tokens(16)[0]

    def work(capturer, rank):
        capturer.begin_step(counted(16, microbatches=parts))
        for part in range(8):
            capturer.capture(0, shard(ids[2 * part : 2 * part + 2], rank, 1), part)
        capturer.end_step()
        got = capturer.snapshot()
        return None if got is None else got.numpy()[:, 0].tolist()

    assert on(4, work)[0][0] == ids.tolist()


@pytest.mark.parametrize("bad", [-1, 8, 300, 2**31 - 1])
def test_an_id_out_of_range_on_another_rank(bad):
    def work(capturer, rank):
        rows = tokens(5, layers=2)
        if rank == 1:
            rows[1, 3, 0] = bad
        first = step(capturer, counted(5), *[shard(layer, rank, 3) for layer in rows])
        buffer = capturer.buffer[:5].clone()
        second = step(capturer, counted(4), *[shard(layer, rank, 2) for layer in tokens(4, layers=2)])
        return first, buffer, second

    (first, buffer, second), _ = on(2, work, layers=2)[0]
    for _ in range(2):
        with pytest.raises(ExpertIdError, match="TP rank 1"):
            first.numpy()
    with pytest.raises(ExpertIdError):
        first.tensor()
    assert buffer[:3].tolist() == tokens(5, layers=2)[:, :3].permute(1, 0, 2).tolist()
    assert (buffer[3:] == -1).all()
    assert second.numpy().tolist() == tokens(4, layers=2).permute(1, 0, 2).tolist()


@pytest.mark.parametrize("whole_first", [False, True])
def test_an_id_out_of_range_beside_whole_layers(whole_first):
    def work(capturer, rank):
        rows = tokens(4, layers=2)
        rows[0 if whole_first else 1, 3, 1] = 77
        handed = [rows[0], shard(rows[1], rank, 2)]
        return step(capturer, counted(4), *handed)

    with pytest.raises(ExpertIdError):
        on(2, work, layers=2)[0][0].numpy()


def test_ids_of_padding_may_be_anything():
    def work(capturer, rank):
        rows = tokens(6)[0]
        rows[4:] = torch.tensor([[-7, 900]])
        return step(capturer, counted(6, real=(4,)), shard(rows, rank, 3))

    assert on(2, work)[0][0].numpy()[:, 0].tolist() == tokens(4)[0].tolist()


def test_a_rank_that_captured_fewer_layers_hangs_nobody_and_is_told():
    def work(capturer, rank):
        ids = tokens(4, layers=3)
        return step(capturer, counted(4), *[shard(layer, rank, 2) for layer in ids[: 3 - rank]])

    results, calls = on(2, work, layers=3)
    assert calls == [chunk(2, layers=3)] * 2
    with pytest.raises(StepError, match="TP rank 1 did not capture the same layers"):
        results[0].numpy()


def test_a_layer_not_captured_holds_the_fill_on_every_rank():
    def work(capturer, rank):
        dirty(capturer)
        ids = shard(tokens(4)[0], rank, 2)
        capturer.begin_step(counted(4))
        capturer.capture(1, ids)
        capturer.end_step()
        return capturer.snapshot()

    rows = on(2, work, layers=3)[0][0].numpy()
    assert rows[:, 1].tolist() == tokens(4)[0].tolist()
    assert (rows[:, [0, 2]] == 0).all()


def test_a_step_rejected_at_its_end_issues_no_collective():
    comm = Echo(0, 2)
    capturer = alone(comm, place(tp=2), layers=2)
    capturer.begin_step(counted(6))
    capturer.capture(0, tokens(3)[0])
    with pytest.raises(LayoutError):
        capturer.capture(1, tokens(4)[0])
    with pytest.raises(StepError, match="rejected"):
        capturer.end_step()
    assert comm.calls == 0


def test_real_rows_that_are_known_at_the_end():
    def work(capturer, rank):
        capturer.begin_step(counted(6))
        capturer.capture(0, shard(tokens(6)[0], rank, 3))
        capturer.end_step(real=4)
        return capturer.snapshot()

    assert on(2, work)[0][0].numpy()[:, 0].tolist() == tokens(4)[0].tolist()
    for real in (-1, 7):
        capturer = alone()
        capturer.begin_step(counted(6))
        with pytest.raises(ValueError, match=f"{real} real rows"):
            capturer.end_step(real=real)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_mode_per_layer_has_own_rows_on_every_rank_inside_the_step(dtype):
    ids = tokens(5, layers=2).to(dtype)

    def work(capturer, rank):
        seen = []
        capturer.begin_step(counted(5))
        for layer in range(2):
            capturer.capture(layer, shard(ids[layer], rank, 3))
            seen.append(capturer.buffer[:5, layer].tolist())
        capturer.end_step()
        got = capturer.snapshot()
        return seen, None if got is None else got.numpy().tolist()

    results, calls = on(2, work, mode="per-layer", layers=2)
    assert [seen for seen, _ in results] == [ids.tolist()] * 2
    assert [rows for _, rows in results] == [ids.permute(1, 0, 2).tolist(), None]
    assert calls == [[(dtype, (3, 2), True)] * 2] * 2


def test_both_modes_give_the_same_rows():
    ids = tokens(13, layers=4)

    def work(capturer, rank):
        got = []
        for count in range(1, 14):
            taken = step(capturer, counted(count), *[shard(x[:count], rank, -(-count // 3)) for x in ids])
            got.append(None if taken is None else taken.numpy().copy())
        return got

    first, second = (on(3, work, mode=mode, layers=4)[0][0] for mode in ("deferred", "per-layer"))
    for count, (one, other) in enumerate(zip(first, second, strict=True), 1):
        assert np.array_equal(one, other)
        assert one.tolist() == ids[:, :count].permute(1, 0, 2).tolist()


def test_an_unknown_mode_or_no_snapshots():
    with pytest.raises(ValueError, match="mode"):
        alone(mode="sometimes")
    with pytest.raises(ValueError, match="snapshots"):
        RoutedExpertsCapturer(config(), place(), Echo(), snapshots=0)


def test_declared_layouts_are_kept_apart_from_inferred_ones():
    """Two steps with the same counts, of which one declares: their plans differ."""
    rows, capturer = tokens(4)[0], alone(rank=place(tp=2, dp=2, d=1))
    inferred = step(capturer, counted(1, 3), rows).numpy()[:, 0].tolist()
    declared = step(capturer, counted(1, 3, declared=Layout.PADDED_LOCAL), rows).numpy()[:, 0].tolist()
    again = step(capturer, counted(1, 3), rows).numpy()[:, 0].tolist()
    assert (inferred, declared, again) == (rows[1:].tolist(), rows[:3].tolist(), rows[1:].tolist())


def test_uncounted_steps_have_no_collective():
    comm = Echo(0, 2)
    capturer = alone(comm, place(tp=2))
    got = step(capturer, StepContext(counts=None, real=(2,)), tokens(3)[0])
    assert got.numpy()[:, 0].tolist() == tokens(2)[0].tolist()
    assert comm.calls == 0
