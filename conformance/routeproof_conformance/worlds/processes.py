"""Real ranks: processes of this machine in a process group, gloo or NCCL, one code path."""

import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from routeproof_reference import Producer, producers
from routeproof_spec import Case, Failure, Observation, Rank, StepObservation, Topology

from routeproof_conformance.engine import Engine
from routeproof_conformance.engines import Loaded
from routeproof_conformance.worlds import WorldError
from routeproof_conformance.worlds.group import Seat, distributed
from routeproof_conformance.worlds.rank import run_rank
from routeproof_conformance.worlds.zygote import Zygote

TIMEOUT_SECONDS = 10.0
"""How long a case may take, and a rank may wait in a collective."""

START_SECONDS = 60.0
"""How long a pool may take to come up."""

LATE_SECONDS = 2.0
"""How much later than its own time-out a rank may answer."""

LOG_TAIL = 400
"""Characters of a lost rank's output that its failure tells."""


class _Job(NamedTuple):
    """What a pool of ranks is for."""

    topology: Topology
    backend: str
    folder: Path
    timeout: float


class _Answer(NamedTuple):
    """What a rank says after a case."""

    seen: Any
    """Its observation; None where its process ended."""
    healthy: bool
    """Whether its groups can be used again."""


class _Pool:
    """Rank processes of one topology."""

    def __init__(self, zygote: Zygote, job: _Job) -> None:
        self.job = job
        self.zygote = zygote
        self.pids, self.lines = zygote.fork(job.topology.size, job)

    def close(self) -> dict[int, int]:
        """End the ranks; give their exit codes."""
        for line in self.lines:
            line.close()
        ended = self.zygote.reap(self.pids)
        shutil.rmtree(self.job.folder, ignore_errors=True)
        return ended


class ProcessWorld:
    """Ranks as processes, case after case on the same pool, which is built anew when one is lost."""

    def __init__(self, backend: str, engine: Loaded, timeout: float = TIMEOUT_SECONDS) -> None:
        """Fork the zygote: before this process has threads or has made torch compute."""
        self.name = backend
        self.engine = engine
        self.timeout = timeout
        self.rebuilt = 0
        """Pools that were lost."""
        importlib.import_module("torch")
        self._pools: dict[Topology, _Pool] = {}
        self._zygote = Zygote(_RankMain(engine))

    def run(self, engine: Engine, case: Case, steps: tuple[Producer, ...]) -> tuple[Observation, ...]:
        """Run one case; a rank that hangs, dies or poisons its group is an observation."""
        del steps
        pool = self._pool_of(case.topology)
        which = engine is self.engine.unasserted
        started = time.monotonic()
        for line in pool.lines:
            with contextlib.suppress(OSError):
                line.send((which, case))
        answers = _collect(pool, started + self.timeout + LATE_SECONDS)
        took = time.monotonic() - started
        ranks = case.topology.ranks()
        if len(answers) == len(ranks) and all(answer.healthy for answer in answers.values()):
            return tuple(answers[rank.index].seen for rank in ranks)
        logs = [_log_tail(pool.job.folder, rank.index) for rank in ranks]
        ended = self._pools.pop(case.topology).close()
        self.rebuilt += 1
        return tuple(
            answers[rank.index].seen
            if rank.index in answers and answers[rank.index].seen is not None
            else _lost(rank, rank.index in answers, ended[pool.pids[rank.index]], took, logs[rank.index])
            for rank in ranks
        )

    def _pool_of(self, topology: Topology) -> _Pool:
        if topology not in self._pools:
            folder = Path(tempfile.mkdtemp(prefix="routeproof-"))
            pool = _Pool(self._zygote, _Job(topology, self.name, folder, self.timeout))
            ready = _collect(pool, time.monotonic() + START_SECONDS)
            if len(ready) < topology.size or not all(answer.healthy for answer in ready.values()):
                said = "; ".join(filter(None, (_log_tail(folder, number) for number in range(topology.size))))
                ended = pool.close()
                raise WorldError(f"the {self.name} ranks of {topology} did not start ({ended}): {said}")
            self._pools[topology] = pool
        return self._pools[topology]

    def close(self) -> None:
        """End all processes."""
        while self._pools:
            self._pools.popitem()[1].close()
        self._zygote.close()


def _collect(pool: _Pool, deadline: float) -> dict[int, _Answer]:
    """Take an answer from each rank until the deadline; a line that closed is an answer without content."""
    answers: dict[int, _Answer] = {}
    waiting = dict(enumerate(pool.lines))
    while waiting:
        ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for number in [number for number, line in waiting.items() if line in ready]:
            line = waiting.pop(number)
            try:
                answers[number] = _Answer(*line.recv())
            except (EOFError, OSError):
                answers[number] = _Answer(None, healthy=False)
    return answers


def _lost(rank: Rank, closed: bool, code: int, took: float, log: str) -> Observation:
    """Describe a rank that gave no observation; `closed`: its process ended by itself."""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    message = f"the rank's process {how} after {took:.1f} s" if closed else f"no answer within {took:.1f} s"
    said = f"; its last output: {log}" if log else ""
    failure = Failure(
        phase="some step", kind="died" if closed else "timeout", types=("LostRank",), message=message + said
    )
    return Observation(rank=rank, steps=(StepObservation(failure=failure),))


def _log_tail(folder: Path, number: int) -> str:
    try:
        return (folder / f"rank-{number}.log").read_text("utf-8", "replace")[-LOG_TAIL:].strip()
    except OSError:
        return ""


class _RankMain:
    """What a forked rank does."""

    def __init__(self, engine: Loaded) -> None:
        self.engine = engine

    def __call__(self, number: int, job: _Job, line: Connection) -> None:
        """Join the world, then play cases until the line closes."""
        _own_output(job.folder / f"rank-{number}.log")
        seat = join(number, job)
        line.send((None, True))
        while True:
            try:
                unasserted, case = line.recv()
            except (EOFError, OSError):
                return
            engine = self.engine.unasserted if unasserted else self.engine.engine
            if engine is None:
                raise WorldError("the engine has no twin without assertions")
            seen = run_rank(engine, case, seat.rank, producers(case), seat.comm, seat.fence)
            line.send((seen, usable(case, seen)))


def usable(case: Case, seen: Observation) -> bool:
    """Say whether a rank's groups are as they were: it played all steps, or refused to be made."""
    if seen.create is not None:
        return True
    faults = any(
        step.failure is not None and step.failure.kind in ("deadlock", "mismatch") for step in seen.steps
    )
    return not faults and len(seen.steps) == len(case.steps)


def _own_output(path: Path) -> None:
    """Send what the engine prints to a file: stdout is the report's."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)


def join(number: int, job: _Job) -> Seat:
    """Initialise torch.distributed in this process and make its groups."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    device = "cpu"
    if job.backend == "nccl":
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        device = f"cuda:{number % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    distributed().init_process_group(
        "gloo",
        init_method=f"file://{job.folder / 'rendezvous'}",
        rank=number,
        world_size=job.topology.size,
        timeout=timedelta(seconds=START_SECONDS),
    )
    return Seat(job.topology, job.backend, job.timeout, device)
