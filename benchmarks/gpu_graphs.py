"""Graphs of two sizes and eager steps on one GPU, in the sync-debug mode; then what a layer's call takes.

NCCL and CUDA graphs: not yet executed. `gpu_check.sh` runs this.
"""

import statistics
import sys
import time

import torch
from routeproof_impl import RoutedExpertsCapturer, TorchCommunicator
from routeproof_spec import CaptureConfig, Rank, StepContext, Topology

LAYERS, TOP_K, EXPERTS = 60, 8, 256
SIZES = (16, 256)
ROUNDS = 50


def ids(tokens: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Give [layers, tokens, K] on the host."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, EXPERTS, (LAYERS, tokens, TOP_K), generator=made).to(dtype)


def context(tokens: int, real: int) -> StepContext:
    """Give a step of one DP rank."""
    return StepContext(counts=(tokens,), real=(real,))


def check(capturer: RoutedExpertsCapturer, rows: torch.Tensor, real: int) -> None:
    """Compare the snapshot with what was handed over."""
    snapshot = capturer.snapshot()
    if snapshot is None or snapshot.numpy().tolist() != rows[:, :real].permute(1, 0, 2).tolist():
        sys.exit("wrong rows")


def run(dtype: torch.dtype) -> None:
    """Record a graph of each size, then replay them with eager steps between."""
    config = CaptureConfig(max_tokens=max(SIZES), layers=LAYERS, top_k=TOP_K, experts=EXPERTS)
    rank = Rank(topology=Topology(), dp=0, tp=0)
    capturer = RoutedExpertsCapturer(config, rank, TorchCommunicator(), "cuda")
    graphs = {}
    for size in SIZES:
        inputs = ids(size, size, dtype).cuda()
        for _ in range(2):
            capturer.begin_step(context(size, size))
            for layer in range(LAYERS):
                capturer.capture(layer, inputs[layer])
            capturer.end_step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        capturer.begin_step(context(size, size))
        with torch.cuda.graph(graph):
            for layer in range(LAYERS):
                capturer.capture(layer, inputs[layer])
        capturer.end_recording()
        graphs[size] = graph, inputs
    calls, held = [], torch.cuda.memory_allocated()
    for turn in range(ROUNDS):
        size = SIZES[turn % len(SIZES)]
        graph, inputs = graphs[size]
        rows, eager = ids(size, turn, dtype), ids(33, 1000 + turn, dtype)
        inputs.copy_(rows)
        handed = list(eager.cuda())
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        capturer.begin_step(context(size, size - turn % 5), replayed=True)
        graph.replay()
        capturer.end_step()
        torch.cuda.set_sync_debug_mode("default")
        check(capturer, rows, size - turn % 5)
        torch.cuda.set_sync_debug_mode("error")
        capturer.begin_step(context(33, 33))
        start = time.perf_counter()
        for layer in range(LAYERS):
            capturer.capture(layer, handed[layer])
        calls.append((time.perf_counter() - start) / LAYERS)
        capturer.end_step()
        torch.cuda.set_sync_debug_mode("default")
        check(capturer, eager, 33)
        del handed
    torch.cuda.synchronize()
    grown = torch.cuda.memory_allocated() - held
    print(f"{dtype}: {ROUNDS} replays and {ROUNDS} eager steps right, no synchronisation")
    print(f"{dtype}: a layer's call {statistics.median(calls) * 1e6:.1f} us of the host, {grown} bytes grown")


if __name__ == "__main__":
    for kind in (torch.int32, torch.int64):
        run(kind)
