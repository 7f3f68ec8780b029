"""What the tests of the capturer share: groups in one process, configurations, steps."""

import threading

import torch
from routeproof_impl import RoutedExpertsCapturer
from routeproof_spec import CaptureConfig, Layout, Rank, StepContext, Topology

PAD = [7, 0]


class Group:
    """A TP group in one process: a thread per rank, a barrier for each collective."""

    def __init__(self, size):
        self.size, self.slots, self.barrier = size, [None] * size, threading.Barrier(size)
        self.calls = [[] for _ in range(size)]

    def run(self, work):
        """Run work(rank, comm) on every rank; give results, or the exception where one was raised."""
        results = [None] * self.size

        def body(rank):
            try:
                results[rank] = work(rank, Member(self, rank))
            except Exception as error:  # noqa: BLE001
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        return results


class Member:
    def __init__(self, group, rank):
        self.group, self.rank, self.size = group, rank, group.size

    def all_gather(self, rows):
        self.group.calls[self.rank].append((rows.dtype, tuple(rows.shape), rows.is_contiguous()))
        self.group.slots[self.rank] = rows.clone()
        self.group.barrier.wait(20)
        gathered = torch.cat(self.group.slots)
        self.group.barrier.wait(20)
        return gathered

    def gather(self, rows, dst=0):
        gathered = self.all_gather(rows)
        return gathered if self.rank == dst else None


class Echo:
    """A group whose other ranks hand over what this one does; it counts its collectives."""

    def __init__(self, rank=0, size=1):
        self.rank, self.size, self.calls = rank, size, 0

    def all_gather(self, rows):
        self.calls += 1
        return torch.cat([rows] * self.size)

    def gather(self, rows, dst=0):
        return self.all_gather(rows) if dst == self.rank else None


def config(**changes):
    return CaptureConfig(**({"max_tokens": 16, "layers": 1, "top_k": 2, "experts": 8} | changes))


def place(tp=1, dp=1, d=0, t=0):
    return Rank(topology=Topology(tp=tp, dp=dp), dp=d, tp=t)


def alone(comm=None, rank=None, mode="deferred", **changes):
    rank = rank or place()
    return RoutedExpertsCapturer(config(**changes), rank, comm or Echo(rank.tp, rank.topology.tp), mode=mode)


def counted(*counts, real=None, **more):
    return StepContext(counts=counts, real=counts if real is None else real, **more)


def tokens(count, layers=1, width=2, first=0):
    """Ids [layers, count, width] in [0, 8), all rows of a layer different for count <= 28."""
    pairs = [[a, b] for a in range(8) for b in range(8) if a != b]
    rows = [[(pairs[(first + i + 9 * layer) % 56])[:width] for i in range(count)] for layer in range(layers)]
    return torch.tensor(rows, dtype=torch.int32).reshape(layers, count, width)


def dirty(capturer, dp=1):
    """A full-size step that leaves other rows everywhere."""
    storage = capturer.buffer
    capturer.begin_step(counted(*[storage.shape[0]] * dp, declared=Layout.FULL))
    for layer in range(storage.shape[1]):
        capturer.capture(layer, torch.full((storage.shape[0], storage.shape[2]), 6, dtype=torch.int32))
    capturer.end_step()


def step(capturer, context, *layers):
    capturer.begin_step(context)
    for layer, ids in enumerate(layers):
        capturer.capture(layer, torch.as_tensor(ids))
    capturer.end_step()
    return capturer.snapshot()
