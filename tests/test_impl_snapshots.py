"""Snapshots: a ring of host buffers, none of which changes or is reused while somebody can see it."""

import gc

import numpy as np
import pytest
import torch
from routeproof_impl import RoutedExpertsCapturer
from routeproof_spec import CapacityError

from tests.impl_support import Echo, alone, config, counted, place, step, tokens


def limited(limit, tp=1, **changes):
    comm = Echo(0, tp)
    return RoutedExpertsCapturer(config(**changes), place(tp=tp), comm, snapshots=limit), comm


def test_a_slot_is_reused_when_it_is_consumed():
    capturer = alone()
    seen = set()
    for first in range(6):
        rows = step(capturer, counted(4), tokens(4, first=first)[0]).numpy()
        assert rows[:, 0].tolist() == tokens(4, first=first)[0].tolist()
        seen.add(rows.ctypes.data)
    assert len(seen) <= 2


@pytest.mark.parametrize("keep", ["snapshot", "array", "slice", "tensor"])
def test_what_is_held_never_changes(keep):
    capturer, _ = limited(20)
    held = []
    for first in range(10):
        snapshot = step(capturer, counted(4), tokens(4, first=first)[0])
        kept = {
            "snapshot": lambda it: it,
            "array": lambda it: it.numpy(),
            "slice": lambda it: it.numpy()[1:3],
            "tensor": lambda it: it.tensor()[1:],
        }[keep](snapshot)
        held.append(kept)
        del snapshot, kept
    gc.collect()
    for first, it in enumerate(held):
        rows = tokens(4, first=first).permute(1, 0, 2).tolist()
        got = it.numpy() if keep == "snapshot" else np.asarray(it)
        assert got.tolist() == {"slice": rows[1:3], "tensor": rows[1:]}.get(keep, rows)


@pytest.mark.parametrize("tp", [1, 2])
def test_too_many_in_flight(tp):
    capturer, comm = limited(3, tp)
    rows = [tokens(6, first=first)[0] for first in range(5)]
    handed = [each[: 6 // tp] for each in rows]
    held = [step(capturer, counted(6), handed[index]).numpy() for index in range(3)]
    before = comm.calls
    capturer.begin_step(counted(6))
    capturer.capture(0, handed[3])
    with pytest.raises(CapacityError, match="3 snapshots are in flight, the limit is 3"):
        capturer.end_step()
    assert comm.calls - before == tp - 1  # the other ranks wait in the collective: it takes place
    assert capturer.snapshot() is None
    assert capturer.buffer[: 6 // tp, 0].tolist() == handed[3].tolist()
    assert [array[: 6 // tp, 0].tolist() for array in held] == [each.tolist() for each in handed[:3]]
    held.pop()
    got = step(capturer, counted(6), handed[4]).numpy()
    assert got[: 6 // tp, 0].tolist() == handed[4].tolist()


def test_a_dropped_step_gives_its_slot_back():
    capturer, _ = limited(1)
    for first in range(4):
        assert step(capturer, counted(3), tokens(3, first=first)[0]).numpy().shape == (3, 1, 2)
        capturer.begin_step(counted(3))
    assert capturer._publisher._ring._made == 1


def test_nothing_to_publish_takes_no_slot():
    capturer, _ = limited(1)
    held = step(capturer, counted(3), tokens(3)[0])
    empty = [step(capturer, counted(3, real=(0,)), tokens(3)[0]) for _ in range(3)]
    assert [it.numpy().shape for it in empty] == [(0, 1, 2)] * 3
    assert empty[0].tensor().dtype == empty[0].dtype == torch.uint8
    assert held.numpy().shape == (3, 1, 2)


def test_a_snapshot_tells_its_form_without_a_look_at_the_rows():
    snapshot = step(alone(experts=300), counted(3, real=(2,)), tokens(3)[0])
    assert (snapshot.shape, snapshot.dtype, snapshot.ready()) == ((2, 1, 2), torch.uint16, True)
    assert snapshot.numpy() is snapshot.numpy()
    assert snapshot.tensor().data_ptr() == snapshot.numpy().ctypes.data


def test_snapshots_outlive_the_capturer():
    capturer = alone()
    snapshot = step(capturer, counted(2), tokens(2)[0])
    capturer.close()
    del capturer
    gc.collect()
    assert snapshot.numpy()[:, 0].tolist() == tokens(2)[0].tolist()
