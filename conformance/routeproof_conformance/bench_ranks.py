"""What one rank of a benchmark does: the engines side by side, step by step."""

import gc
import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routeproof_spec import CaptureConfig, Layout, Rank, StepContext, Topology

from routeproof_conformance.engines import load

TOP_K = 8
EXPERTS = 256
LEAST_ROUNDS, MOST_ROUNDS = 3, 100
STEPS_A_TURN = 4
"""An engine's turn: in a server, its steps follow its own and not those of another one."""


class Point(NamedTuple):
    """One comparison."""

    tp: int
    tokens: int
    layers: int
    layout: Layout


@dataclass(frozen=True)
class Job:
    """What a pool of ranks measures."""

    tp: int
    points: tuple[Point, ...]
    engines: tuple[str, ...]
    folder: Path
    seconds: float
    """How long one comparison may take, about."""


@dataclass
class Sample:
    """What one engine did at one point on one rank."""

    steps: list[float] = field(default_factory=list)
    """Seconds of a step: layer calls, end of the step, rows on the host at the publisher."""
    calls: list[float] = field(default_factory=list)
    """Seconds of one layer call, on average over a step."""
    collectives: int = 0
    wire_bytes: int = 0
    """Bytes this rank sends to others in a step."""
    device_bytes: int = 0
    problem: str = ""

    def summary(self) -> dict[str, Any]:
        """Give medians and counts."""
        cuts = statistics.quantiles(self.steps, n=4) if self.steps else []
        return {
            "median_ms": statistics.median(self.steps) * 1e3 if self.steps else None,
            "layer_call_us": statistics.median(self.calls) * 1e6 if self.calls else None,
            "quartiles_ms": [cut * 1e3 for cut in cuts],
            "steps": len(self.steps),
            "collectives": self.collectives,
            "wire_bytes": self.wire_bytes,
            "device_bytes": self.device_bytes,
            "problem": self.problem,
        }


class CountingCommunicator:
    """A TP group that counts collectives and the bytes that this rank sends."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - torch is optional
        """Wrap a communicator of the implementation."""
        self._inner = inner
        self.rank = inner.rank
        self.size = inner.size
        self.calls = 0
        self.sent = 0

    def all_gather(self, rows: Any) -> Any:  # noqa: ANN401
        """Count, then gather to every rank."""
        self._count(rows, self.size - 1)
        return self._inner.all_gather(rows)

    def gather(self, rows: Any, dst: int = 0) -> Any:  # noqa: ANN401
        """Count, then gather to one rank."""
        self._count(rows, int(self.rank != dst))
        return self._inner.gather(rows, dst)

    def gather_into(self, rows: Any, out: Any, dst: int = 0) -> None:  # noqa: ANN401
        """Count, then gather to one rank, into memory that is there."""
        self._count(rows, int(self.rank != dst))
        self._inner.gather_into(rows, out, dst)

    def _count(self, rows: Any, receivers: int) -> None:  # noqa: ANN401
        self.calls += 1
        self.sent += rows.nbytes * receivers


class _Driver:
    """One engine's capturer, called as its model runner calls it: without the adapter in between."""

    def __init__(self, name: str, config: CaptureConfig, rank: Rank, layout: Layout, comm: Any) -> None:  # noqa: ANN401
        self.name = name
        self.comm = CountingCommunicator(comm)
        self.own = name.startswith("routeproof")
        if name.startswith("sglang"):
            config = config.model_copy(update={"layouts": frozenset({layout})})
        self.adapter: Any = load(name).engine.create(config, rank, self.comm)
        inner: Any = getattr(self.adapter, "capturer" if self.own else "_capturer")
        self.capture: Callable[[int, Any], None] = inner.capture
        self.inner: Any = inner

    def begin(self, step: StepContext) -> None:
        """Open a step."""
        self.adapter.begin_step(step)
        if self.name.startswith("vllm"):
            seat, parts = self.adapter._seat, self.adapter._parts  # noqa: SLF001
            seat.context, seat.offset = parts[0]

    def device_bytes(self) -> int:
        """Give the device memory that is held for the capture."""
        if self.own:
            return int(self.inner.device_bytes)
        if self.name.startswith("vllm"):
            return int(self.inner.device_buffer.nbytes)
        return int(self.inner.device_cache.buffer.nbytes)


def rank_main(number: int, job: Job, line: Connection) -> None:
    """Measure all points of a job; send a summary of each engine after each point."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    impl: Any = importlib.import_module("routeproof_impl")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.folder / 'rendezvous'}",
        rank=number,
        world_size=job.tp,
    )
    rank = Topology(tp=job.tp).ranks()[number]
    gc.disable()
    for point in job.points:
        try:
            bench = _Comparison(torch, dist, point, rank, job, impl.TorchCommunicator())
            line.send(bench.run())
        except Exception as error:  # noqa: BLE001 - told to the parent
            line.send(f"{type(error).__name__}: {error}")
            return
        gc.collect()
    dist.destroy_process_group()


class _Comparison:
    """All engines at one point."""

    def __init__(
        self,
        torch: Any,  # noqa: ANN401
        dist: Any,  # noqa: ANN401
        point: Point,
        rank: Rank,
        job: Job,
        comm: Any,  # noqa: ANN401
    ) -> None:
        self.torch, self.dist, self.point, self.rank, self.job = torch, dist, point, rank, job
        config = CaptureConfig(
            max_tokens=max(p.tokens for p in job.points), layers=point.layers, top_k=TOP_K, experts=EXPERTS
        )
        self.context = StepContext(counts=(point.tokens,), real=(point.tokens,))
        self.ids, self.expected = self._inputs()
        self.drivers = [_Driver(name, config, rank, point.layout, comm) for name in job.engines]
        self.samples = {driver.name: Sample() for driver in self.drivers}

    def _inputs(self) -> tuple[list[Any], NDArray[np.uint8]]:
        """Give this rank's ids of each layer, and what the publisher has to show."""
        point, tp = self.point, self.job.tp
        seed = np.random.default_rng(point.tokens)
        rows = seed.integers(0, EXPERTS, (point.tokens, point.layers, TOP_K), dtype=np.int32)
        mine = rows
        if point.layout is Layout.TP_SHARD:
            shard = -(-point.tokens // tp)
            padded = np.zeros((shard * tp, *rows.shape[1:]), rows.dtype)
            padded[: point.tokens] = rows
            mine = padded[self.rank.tp * shard : (self.rank.tp + 1) * shard]
        ids = [self.torch.from_numpy(np.ascontiguousarray(mine[:, layer])) for layer in range(point.layers)]
        return ids, rows.astype(np.uint8)

    def run(self) -> dict[str, dict[str, Any]]:
        """Warm up and check, then take turns."""
        for driver in list(self.drivers):
            try:
                self._check(driver)
            except Exception as error:  # noqa: BLE001 - the others are measured without it
                self.samples[driver.name].problem = f"{type(error).__name__}: {error}"
                self.drivers.remove(driver)
        each = sum(self._step(driver)[0] for _ in range(2) for driver in self.drivers) / 2 * STEPS_A_TURN
        rounds = self.torch.tensor([min(max(int(self.job.seconds / each), LEAST_ROUNDS), MOST_ROUNDS)])
        self.dist.broadcast(rounds, 0)
        for turn in range(int(rounds)):
            first = turn % len(self.drivers)
            for driver in self.drivers[first:] + self.drivers[:first]:
                sample = self.samples[driver.name]
                for _ in range(STEPS_A_TURN):
                    whole, calls = self._step(driver)
                    sample.steps.append(whole)
                    sample.calls.append(calls / self.point.layers)
            gc.collect(0)
        for driver in self.drivers:
            driver.adapter.close()
        return {name: sample.summary() for name, sample in self.samples.items()}

    def _check(self, driver: _Driver) -> None:
        """Run a step that is not timed; note what it costs and whether its rows are right."""
        sample = self.samples[driver.name]
        calls, sent = driver.comm.calls, driver.comm.sent
        self._step(driver)
        sample.collectives = driver.comm.calls - calls
        sample.wire_bytes = driver.comm.sent - sent
        sample.device_bytes = driver.device_bytes()
        rows = driver.adapter.published()
        if self.rank.publishes and not np.array_equal(rows, self.expected):
            sample.problem = "the rows are not right"

    def _step(self, driver: _Driver) -> tuple[float, float]:
        """Time a step, and its layer calls. Another engine's context is its runner's work, not its own."""
        capture, adapter = driver.capture, driver.adapter
        self.dist.barrier()
        start = time.perf_counter()
        driver.begin(self.context)
        begun = time.perf_counter()
        for layer, ids in enumerate(self.ids):
            capture(layer, ids)
        called = time.perf_counter()
        adapter.end_step()
        adapter.published()
        end = time.perf_counter()
        return end - (start if driver.own else begun), called - begun
