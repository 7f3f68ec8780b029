"""The capturer on real gloo processes: this file is also the program of one rank."""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

LIMIT = 120
"""Seconds until ranks that hang are killed."""


LOST_AFTER = 10
"""Seconds that a rank may wait in a collective of the group that loses one."""


def run(size, work, folder, lost=None):
    """Run `work` on `size` ranks; give what each printed as its last line, as JSON; None for a `lost` one."""
    command = [sys.executable, "-W", "error", __file__, work, str(size), str(folder / f"meet-{work}")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(size)
    ]
    outputs = []
    try:
        outputs = [
            "null" if number == lost else rank.communicate(timeout=LIMIT)[0]
            for number, rank in enumerate(ranks)
        ]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
    for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
        assert number == lost or rank.returncode == 0, output
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def row(token, layer):
    """Two different ids in [0, 512) that tell token and layer."""
    return [2 * (8 * token + layer), 2 * (8 * token + layer) + 1]


@pytest.mark.parametrize("size", [2, 4])
def test_shards_of_any_count_are_restored(size, tmp_path):
    results = run(size, "shards", tmp_path)
    for count, shift in enumerate([0, 1] * (3 * size + 2)):
        want = [[row(token + shift, layer) for layer in range(3)] for token in range(count // 2)]
        assert results[0]["published"][count] == want
        assert results[0]["buffers"][count] == want
    assert all(result["published"] == [None] * len(results[0]["published"]) for result in results[1:])


def test_a_rejected_step_leaves_no_rank_waiting(tmp_path):
    results = run(2, "rejected", tmp_path)
    assert [result["errors"] for result in results] == [["LayoutError", "LayerIndexError"]] * 2
    assert results[0]["published"] == [[row(token, 0)] for token in range(3)]


@pytest.mark.parametrize("own_gather", [False, True])
def test_a_gather_left_out_by_one_rank_is_told_and_not_read_as_the_next_one(own_gather, tmp_path):
    first, _ = run(2, "astray_by_gather" if own_gather else "astray", tmp_path)
    assert first["steps"][:2] == [[row(t, 0) for t in range(4)]] * 2
    assert [told[:51] for told in first["steps"][2:]] == [
        f"TP rank 1 sent the rows of its step {step}, TP rank 0 is" for step in (2, 3)
    ]
    assert first["buffer"] == [row(0, 0), row(1, 0), [-1, -1], [-1, -1]]


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_rank_lost_in_the_gather_is_an_error_for_the_others(how, tmp_path):
    results = run(3, how, tmp_path, lost=1)
    assert [result["error"] for result in results if result is not None] == ["RuntimeError"] * 2
    assert all(result["seconds"] < 2 * LOST_AFTER for result in results if result is not None)


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_move_every_integer_type(size, tmp_path):
    results = run(size, "types", tmp_path)
    for name in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"):
        want = [[100 + rank, 3 + index] for rank in range(size) for index in range(3)]
        assert [result["all_gather"][name] for result in results] == [want] * size
        assert [result["gather"][name] for result in results] == [None] * (size - 1) + [want]
        assert [result["own gather"][name] for result in results] == [None] * (size - 1) + [want]
        assert [result["fallback"][name] for result in results] == [None] * (size - 1) + [want]
    for result in results:
        assert set(result["gather went through"].values()) == {"_sent"}
        assert set(result["own gather went through"].values()) == {"gather"}
        assert set(result["fallback went through"].values()) == {"all_gather"}
    assert all(result["strided"] for result in results)
    assert [result["backends"] for result in results] == [["_sent", "_sent"]] * size
    assert [result["subgroup"] for result in results] == ([[0, 2], [1, 2]] * 2)[:size]


# --- one rank


def shards(comm):
    """Two steps for every count, TP_SHARD handed over: all layers at once in one buffer."""
    capturer, rank = capturer_of(comm, layers=3)
    published, buffers = [], []
    for count, shift in [(count, shift) for count in range(3 * comm.size + 2) for shift in (0, 1)]:
        size = -(-count // comm.size)
        capturer.begin_step(StepContext(counts=(count,), real=(count,)))
        for layer in range(3):
            capturer.capture(layer, shard(count, size, rank, layer, shift))
        capturer.end_step()
        snapshot = capturer.snapshot()
        published.append(None if snapshot is None else snapshot.numpy().tolist())
        buffers.append(capturer.buffer[:count].tolist())
    return {"published": published, "buffers": buffers}


def rejected(comm):
    capturer, rank = capturer_of(comm, layers=1)
    errors = []
    for layer, rows in [(0, 1), (5, 2)]:
        capturer.begin_step(StepContext(counts=(5 if rows == 1 else 3,), real=(3,)))
        try:
            capturer.capture(layer, torch.zeros((rows, 2), dtype=torch.int64))
        except CaptureError as error:
            errors.append(type(error).__name__)
    capturer.begin_step(StepContext(counts=(3,), real=(3,)))
    capturer.capture(0, shard(3, 2, rank, 0))
    capturer.end_step()
    snapshot = capturer.snapshot()
    return {"errors": errors, "published": None if snapshot is None else snapshot.numpy().tolist()}


def astray(comm):
    """In the second of four steps rank 0 is handed the whole batch, and needs no gather."""
    capturer, rank = capturer_of(comm, layers=1)
    steps = []
    for number in range(4):
        capturer.begin_step(StepContext(counts=(4,), real=(4,)))
        whole = number == 1 and rank == 0
        capturer.capture(0, shard(4, 4 if whole else 2, rank, 0))
        capturer.end_step()
        if rank == 0:
            try:
                steps.append(capturer.snapshot().numpy()[:, 0].tolist())
            except CaptureError as error:
                steps.append(str(error))
    buffer = capturer.buffer[:4, 0].tolist()
    if rank == 0:  # what rank 1 sent last waits for a receiver
        comm.gather(torch.zeros(capturer._packer._form.chunk(2), dtype=torch.uint8))
    return {"steps": steps, "buffer": buffer}


def astray_by_gather(comm):
    with patch.multiple(communicator, SENDING=set(), GATHERING={"gloo"}):
        return astray(comm)


def dies(comm):
    return lose_a_rank(comm, lambda: os._exit(3))


def hangs(comm):
    return lose_a_rank(comm, lambda: time.sleep(LIMIT))


def lose_a_rank(comm, end):
    """A step in which rank 1 does not reach the gather, after one that all ranks ended."""
    group = dist.new_group(list(range(comm.size)), timeout=timedelta(seconds=LOST_AFTER))
    capturer, rank = capturer_of(communicator.TorchCommunicator(group), layers=2)
    for lost in (False, True):
        capturer.begin_step(StepContext(counts=(6,), real=(6,)))
        for layer in range(2):
            capturer.capture(layer, shard(6, 2, rank, layer))
        if lost and rank == 1:
            end()
        start = time.monotonic()
        try:
            capturer.end_step()
            if lost and rank > 0:  # it has sent its rows, and learns in its next collective
                comm_again = communicator.TorchCommunicator(group)
                comm_again.all_gather(torch.zeros(1))
        except RuntimeError as error:
            os.write(
                1, (json.dumps({"error": type(error).__name__, "seconds": time.monotonic() - start})).encode()
            )
            os._exit(0)
    return {"error": None, "seconds": 0}


def types(comm):
    ways = {"gather": ({"gloo"}, {"gloo"}), "own gather": (set(), {"gloo"}), "fallback": (set(), set())}
    result = {name: {} for name in ("all_gather", *ways, *(f"{way} went through" for way in ways))}
    result["strided"] = False
    for name in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"):
        rows = torch.tensor([[100 + comm.rank, 3 + i] for i in range(3)], dtype=getattr(torch, name))
        result["all_gather"][name] = comm.all_gather(rows).tolist()
        for way, sets in ways.items():
            with patch.multiple(communicator, SENDING=sets[0], GATHERING=sets[1]), Watch(comm) as watch:
                result[way][name] = as_list(comm.gather(rows, comm.size - 1))
            result[f"{way} went through"][name] = watch.seen
    try:
        comm.all_gather(torch.zeros((2, 3)).t())
    except ValueError:
        result["strided"] = True
    result["backends"] = []
    for backend in ("cpu:gloo", "cpu:gloo,cuda:gloo"):
        mixed = communicator.TorchCommunicator(dist.new_group(backend=backend))
        with Watch(mixed) as watch:
            gathered = as_list(mixed.gather(torch.tensor([mixed.rank])))
        right = gathered == (list(range(comm.size)) if comm.rank == 0 else None)
        result["backends"].append(watch.seen if right else gathered)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, comm.size, 2)]
    pair = communicator.TorchCommunicator(pairs[comm.rank // 2])
    mine = torch.tensor([comm.rank])
    base = comm.rank - pair.rank
    agreed = pair.all_gather(mine).tolist() == [base, base + 1]
    low = pair.gather(mine, 0)
    agreed = agreed and as_list(low) == ([base, base + 1] if pair.rank == 0 else None)
    result["subgroup"] = [pair.rank, pair.size] if agreed else "wrong rows"
    return result


class Watch:
    """Notes which of the three ways a gather takes."""

    def __init__(self, comm):
        self.seen, self.stack = None, ExitStack()
        for owner, name in [(comm, "_sent"), (comm, "all_gather"), (dist, "gather")]:
            self.stack.enter_context(patch.object(owner, name, self.noted(getattr(owner, name), name)))

    def noted(self, call, name):
        def noting(*args, **more):
            self.seen = name
            return call(*args, **more)

        return noting

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stack.close()


def as_list(tensor):
    return None if tensor is None else tensor.tolist()


def capturer_of(comm, layers):
    rank = Rank(topology=Topology(tp=comm.size), dp=0, tp=comm.rank)
    config = CaptureConfig(max_tokens=24, layers=layers, top_k=2, experts=512)
    return RoutedExpertsCapturer(config, rank, comm), comm.rank


def shard(count, size, rank, layer, shift=0):
    """Rows of one rank's shard, the tail padded with an id that is out of range."""
    rows = [row(t + shift, layer) if t < count else [-1, -1] for t in range(rank * size, (rank + 1) * size)]
    return torch.tensor(rows, dtype=torch.int64).reshape(size, 2)


if __name__ == "__main__":
    import torch
    import torch.distributed as dist
    from routeproof_impl import RoutedExpertsCapturer, communicator
    from routeproof_spec import CaptureConfig, CaptureError, Rank, StepContext, Topology

    _, chosen, world_size, meeting, own_rank = sys.argv
    dist.init_process_group(
        "gloo",
        init_method=Path(meeting).as_uri(),
        rank=int(own_rank),
        world_size=int(world_size),
        timeout=timedelta(seconds=LIMIT / 2),
    )
    done = globals()[chosen](communicator.TorchCommunicator())
    dist.destroy_process_group()
    print(json.dumps(done))  # noqa: T201
