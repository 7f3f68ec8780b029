"""Running many cases: on several processes where that helps, in the order of the cases."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from routeproof_spec import AnyCase, Finding, Rank, Topology, Verdict
from routeproof_spec.rules import RULES

from routeproof_conformance.cases.build import config, filling
from routeproof_conformance.engine import Array
from routeproof_conformance.engines import EngineError, Loaded
from routeproof_conformance.runner import Run, Runner
from routeproof_conformance.worlds import WorldError
from routeproof_conformance.worlds.simulated import SimulatedWorld

CHUNK = 16
"""Cases that a process takes at a time: neighbours share steps."""

_worker: tuple[Runner, tuple[AnyCase, ...]] | None = None
"""What this worker process runs."""

_Packed = tuple[str, str, str]
"""Rule, verdict and message of a finding."""


def cores() -> int:
    """Give the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


class _Alone:
    """The communicator of a group of one, before any world exists."""

    rank = 0
    size = 1

    def all_gather(self, rows: Array) -> Array:
        """Give the rows back."""
        return rows

    def gather(self, rows: Array, dst: int = 0) -> Array:
        """Give the rows back."""
        del dst
        return rows


def preflight(engine: Loaded) -> None:
    """Make one capturer, begin a step, close it; raise EngineError if that fails.

    So a broken adapter is reported once, not once per case.
    """
    topology = Topology()
    rank = Rank(topology=topology, dp=0, tp=0)
    context = filling(topology).context
    phase = "create"
    try:
        capturer = engine.engine.create(config(), rank, _Alone())
        phase = "begin_step"
        capturer.begin_step(context)
        phase = "close"
        capturer.close()
    except (Exception, SystemExit) as error:
        raise EngineError(
            f"engine {engine.name!r}: {phase} raised {type(error).__name__}: {error} "
            f"(tp1, {config().max_tokens} tokens, before any case)"
        ) from error


def run_simulated(
    run: Run, cases: tuple[AnyCase, ...], jobs: int, debug_rank: int | None = None
) -> Iterator[tuple[AnyCase, list[Finding]]]:
    """Run cases on simulated ranks and add their findings to `run`, giving each as it comes."""
    if debug_rank is not None or jobs == 1 or sys.platform != "linux":
        runner = Runner(run.engine, SimulatedWorld(debug_rank))
        results = (runner.run(case) for case in cases)
        yield from collect(run, cases, results)
        return
    with _pool(run.engine, cases, jobs) as pool:
        packed = pool.map(_run_case, range(len(cases)), chunksize=CHUNK)
        yield from collect(run, cases, map(_unpacked, cases, packed))


def collect(
    run: Run, cases: tuple[AnyCase, ...], results: Iterator[list[Finding]]
) -> Iterator[tuple[AnyCase, list[Finding]]]:
    """Add the findings of each case to `run` as they come.

    A world that breaks, a worker that dies and Ctrl-C cut the run short: `run` says why, and
    keeps what was found before.
    """
    for case in cases:
        try:
            found = next(results)
        except (WorldError, BrokenProcessPool) as error:
            run.cut_short = f"{error} (at or after case {case.id})"
            return
        except KeyboardInterrupt:
            run.cut_short = f"interrupted (at case {case.id})"
            return
        run.cases += any(item.verdict is not Verdict.UNSUPPORTED for item in found)
        run.findings += found
        yield case, found


@contextmanager
def _pool(engine: Loaded, cases: tuple[AnyCase, ...], jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Fork the workers, before this process has any thread or has made torch compute."""
    fork = get_context("fork")
    gc.freeze()
    started = fork.Value("i", 0)
    pool = ProcessPoolExecutor(
        jobs, mp_context=fork, initializer=_start_worker, initargs=(engine, cases, started)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(engine: Loaded, cases: tuple[AnyCase, ...], started: Any) -> None:  # noqa: ANN401
    """Make a runner on a core of its own; Ctrl-C is the parent's to handle."""
    global _worker  # noqa: PLW0603 - a process pool has no other place for it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with started.get_lock():
        number = started.value
        started.value += 1
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[number % len(cpus)]})
    gc.set_threshold(100_000)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    _worker = Runner(engine, SimulatedWorld()), cases


def _run_case(index: int) -> list[_Packed]:
    """Run a case in a worker; most findings pass, so little travels."""
    if _worker is None:
        raise WorldError("a worker was not started")
    runner, cases = _worker
    return [(item.rule, item.verdict.value, item.message) for item in runner.run(cases[index])]


def _unpacked(case: AnyCase, packed: list[_Packed]) -> list[Finding]:
    return [
        Finding(
            case=case.id,
            rule=rule,
            level=RULES[rule].level,
            world=SimulatedWorld.name,
            topology=str(case.topology),
            verdict=Verdict(verdict),
            message=message,
        )
        for rule, verdict, message in packed
    ]
