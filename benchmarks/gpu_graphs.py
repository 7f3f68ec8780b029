"""Graphs of two sizes and eager steps on one GPU, in the sync-debug mode; then what a layer's call takes.

At TP 1, and at TP 2 with both ranks in this process and copies on the device for the gather: what is
left of NCCL's part is the collective itself.

NCCL and CUDA graphs: not yet executed. `gpu_check.sh` runs this.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from routeproof_impl import RoutedExpertsCapturer
from routeproof_spec import CaptureConfig, Rank, StepContext, Topology

LAYERS, TOP_K, EXPERTS = 60, 8, 256
SIZES = (16, 256)
EAGER = 33
ROUNDS = 50


class Seat:
    """The TP group of one rank in this process: rank 0 ends its steps last."""

    def __init__(self, rank: int, sent: list[torch.Tensor]) -> None:
        """Take one of as many ranks as there are places in `sent`."""
        self.rank = rank
        self.size = len(sent)
        self._sent = sent

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Refuse: no rank asks for it in mode "deferred"."""
        raise NotImplementedError(f"rank {self.rank} gathers {tuple(rows.shape)} to every rank")

    def gather(self, rows: torch.Tensor, dst: int = 0) -> torch.Tensor | None:
        """Refuse: `gather_into` is used."""
        raise NotImplementedError(f"rank {self.rank} gathers {tuple(rows.shape)} to rank {dst}")

    def gather_into(self, rows: torch.Tensor, out: torch.Tensor | None, dst: int = 0) -> None:
        """Keep the rows, or at `dst` copy those of all ranks."""
        self._sent[self.rank] = rows
        if out is not None and self.rank == dst:
            for part, sent in zip(out.chunk(self.size)[1:], self._sent[1:], strict=True):
                part.copy_(sent)


class Team:
    """The ranks of a TP group, called one after the other, the publisher last."""

    def __init__(self, tp: int) -> None:
        """Make all of them."""
        config = CaptureConfig(max_tokens=max(SIZES), layers=LAYERS, top_k=TOP_K, experts=EXPERTS)
        sent = [torch.empty(0) for _ in range(tp)]
        topology = Topology(tp=tp)
        self.ranks = [
            RoutedExpertsCapturer(config, Rank(topology=topology, dp=0, tp=t), Seat(t, sent), "cuda")
            for t in reversed(range(tp))
        ]

    def begin(self, tokens: int, real: int, *, replayed: bool = False) -> None:
        """Begin a step on all ranks."""
        for rank in self.ranks:
            rank.begin_step(StepContext(counts=(tokens,), real=(real,)), replayed=replayed)

    def capture(self, handed: list[torch.Tensor]) -> None:
        """Capture all layers, each rank its shard [L, s, K] of `handed`."""
        for rank, shards in zip(self.ranks, reversed(handed), strict=True):
            for layer in range(LAYERS):
                rank.capture(layer, shards[layer])

    def end(self) -> None:
        """End the step on all ranks."""
        for rank in self.ranks:
            rank.end_step()

    def check(self, rows: torch.Tensor, real: int) -> None:
        """Compare the snapshot with what was handed over."""
        snapshot = self.ranks[-1].snapshot()
        if snapshot is None or snapshot.numpy().tolist() != rows[:, :real].permute(1, 0, 2).tolist():
            sys.exit("wrong rows")

    def shards(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Give each rank's shard on the device; the last one is padded with ids out of range."""
        tp = len(self.ranks)
        size = -(-rows.shape[1] // tp)
        padded = torch.nn.functional.pad(rows, (0, 0, 0, size * tp - rows.shape[1]), value=-1)
        return [shard.contiguous().cuda() for shard in padded.split(size, 1)]


def ids(tokens: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Give [layers, tokens, K] on the host."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, EXPERTS, (LAYERS, tokens, TOP_K), generator=made).to(dtype)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Make whatever waits for the device an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def recorded(team: Team, size: int, dtype: torch.dtype) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """Record the layer calls of a step of all ranks; give the graph and its inputs."""
    inputs = team.shards(ids(size, size, dtype))
    for _ in range(2):
        team.begin(size, size)
        team.capture(inputs)
        team.end()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    team.begin(size, size)
    with torch.cuda.graph(graph):
        team.capture(inputs)
    for rank in team.ranks:
        rank.end_recording()
    return graph, inputs


def run(dtype: torch.dtype, tp: int) -> None:
    """Record a graph of each size, then replay them with eager steps between."""
    team = Team(tp)
    graphs = {size: recorded(team, size, dtype) for size in SIZES}
    calls, held = [], torch.cuda.memory_allocated()
    for turn in range(ROUNDS):
        size = SIZES[turn % len(SIZES)]
        graph, inputs = graphs[size]
        real = size - turn % 5
        rows, eager = ids(size, turn, dtype), ids(EAGER, 1000 + turn, dtype)
        for mine, new in zip(inputs, team.shards(rows), strict=True):
            mine.copy_(new)
        handed = team.shards(eager)
        with no_synchronisation():
            team.begin(size, real, replayed=True)
            graph.replay()
            team.end()
        team.check(rows, real)
        with no_synchronisation():
            team.begin(EAGER, EAGER)
            start = time.perf_counter()
            team.capture(handed)
            calls.append((time.perf_counter() - start) / LAYERS / tp)
            team.end()
        team.check(eager, EAGER)
        del handed
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - held
    print(f"tp {tp}, {dtype}: {ROUNDS} replays and {ROUNDS} eager steps right, no synchronisation")
    print(
        f"tp {tp}, {dtype}: a layer's call {statistics.median(calls) * 1e6:.1f} us of the host, "
        f"{grown} bytes grown"
    )


if __name__ == "__main__":
    for kind in (torch.int32, torch.int64):
        for ranks in (1, 2):
            run(kind, ranks)
