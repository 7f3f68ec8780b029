"""The capturer: what it refuses, before any collective and any write."""

import pytest
import torch
from routeproof_spec import (
    CapacityError,
    LayerIndexError,
    LayoutError,
    Microbatch,
    StepContext,
    StepError,
    WidthError,
)

from tests.impl_support import Echo, alone, counted, dirty, place, step, tokens


def test_capacity_names_both_figures():
    capturer = alone(max_tokens=8)
    dirty(capturer)
    before = capturer.buffer.clone()
    part = Microbatch(offset=6, counts=(3,), real=(3,))
    for context in (
        counted(9),
        counted(9, real=(3,), microbatches=(part,)),
        StepContext(counts=None, real=(9,)),
    ):
        with pytest.raises(CapacityError, match=r"9 rows.* 8"):
            capturer.begin_step(context)
        assert capturer.snapshot() is None
        with pytest.raises(StepError):
            capturer.capture(0, tokens(9)[0])
        assert torch.equal(before, capturer.buffer)
        assert step(capturer, counted(8), tokens(8)[0]).numpy().shape == (8, 1, 2)
        dirty(capturer)


def test_counts_of_another_number_of_dp_ranks():
    for context in (counted(1, 1), StepContext(counts=None, real=(1, 1))):
        with pytest.raises(LayoutError, match="2 DP ranks"):
            alone().begin_step(context)


WRONG = [
    (LayerIndexError, (-1, tokens(6)[0], 0)),
    (LayerIndexError, (2, tokens(6)[0], 0)),
    (LayerIndexError, (True, tokens(6)[0], 0)),
    (StepError, (0, tokens(6)[0], 1)),
    (StepError, (0, tokens(6)[0], -1)),
    (StepError, (0, tokens(6)[0], False)),
    (WidthError, (0, tokens(6)[0][:, :1], 0)),
    (WidthError, (0, tokens(6)[0][0], 0)),
    (WidthError, (0, tokens(6), 0)),
    (WidthError, (0, tokens(6)[0].float(), 0)),
    (WidthError, (0, tokens(6)[0].bool(), 0)),
    (WidthError, (0, tokens(6)[0].to("meta"), 0)),
    (TypeError, (0, tokens(6)[0].numpy(), 0)),
    (LayoutError, (0, tokens(4)[0], 0)),
    (LayerIndexError, (2, tokens(4)[0][:, :1], 1)),
    (StepError, (0, tokens(4)[0][:, :1], 1)),
    (WidthError, (0, tokens(4)[0][:, :1], 0)),
]


@pytest.mark.parametrize(("error", "call"), WRONG)
@pytest.mark.parametrize("earlier", [False, True])
def test_a_rejected_call_leaves_the_buffer_and_publishes_nothing(error, call, earlier):
    comm = Echo(0, 2)
    capturer = alone(comm, place(tp=2), layers=2)
    dirty(capturer)
    capturer.begin_step(counted(6))
    if earlier:
        capturer.capture(1, tokens(3)[0])
    before, calls = capturer.buffer.clone(), comm.calls
    with pytest.raises(error) as caught:
        capturer.capture(*call)
    assert type(caught.value) is error
    assert torch.equal(before, capturer.buffer)
    assert comm.calls == calls
    assert capturer.snapshot() is None
    if earlier:
        with pytest.raises(StepError, match="rejected"):
            capturer.end_step()
    rows = tokens(2, layers=2)
    assert step(capturer, counted(2), *rows).numpy().tolist() == rows.permute(1, 0, 2).tolist()


def test_a_failing_collective_leaves_the_buffer():
    class Broken(Echo):
        def all_gather(self, rows):
            return rows[:1]

    capturer = alone(Broken(0, 2), place(tp=2), mode="per-layer")
    dirty(capturer)
    before = capturer.buffer.clone()
    capturer.begin_step(counted(6))
    with pytest.raises(RuntimeError, match="gathered"):
        capturer.capture(0, tokens(3)[0])
    assert torch.equal(before, capturer.buffer)
    with pytest.raises(StepError, match="rejected"):
        capturer.end_step()


def test_a_failing_collective_publishes_nothing_and_the_next_step_is_fine():
    class Broken(Echo):
        def gather(self, rows, dst=0):
            del dst
            return rows[:1]

    capturer = alone(Broken(0, 2), place(tp=2))
    capturer.begin_step(counted(6))
    capturer.capture(0, tokens(3)[0])
    with pytest.raises(RuntimeError, match="gathered"):
        capturer.end_step()
    assert capturer.snapshot() is None
    assert step(capturer, counted(6), tokens(6)[0]).numpy()[:, 0].tolist() == tokens(6)[0].tolist()


def test_steps_out_of_order():
    capturer = alone()
    for call in (capturer.end_step, lambda: capturer.capture(0, tokens(1)[0])):
        with pytest.raises(StepError):
            call()
    snapshot = step(capturer, counted(1), tokens(1)[0])
    with pytest.raises(StepError):
        capturer.end_step()
    assert capturer.snapshot() is snapshot


def test_close():
    capturer = alone()
    snapshot = step(capturer, counted(1), tokens(1)[0])
    capturer.close()
    capturer.close()
    for call in (
        lambda: capturer.begin_step(counted(1)),
        lambda: capturer.capture(0, tokens(1)[0]),
        capturer.end_step,
        capturer.snapshot,
        lambda: capturer.buffer,
    ):
        with pytest.raises(StepError, match="closed"):
            call()
    assert snapshot.numpy().shape == (1, 1, 2)


def test_a_communicator_of_another_group():
    for comm in (Echo(1, 2), Echo(0, 1)):
        with pytest.raises(ValueError, match="communicator"):
            alone(comm, place(tp=2))
