"""Simulated ranks: one process, one thread a rank, a baton so that exactly one runs.

The ranks of a TP group meet in collectives; ranks of different DP ranks share none, so
the groups of a case run one after the other. The order is fixed: the lowest rank that
can run, runs until it waits. A rank that waits for one that has ended the step is a
deadlock, reported at once.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, Literal

import numpy as np
from routeproof_reference import Producer
from routeproof_spec import Case, Failure, Observation, Rank, StepObservation

from routeproof_conformance.arrays import MOVABLE, Operation, concatenate, describe
from routeproof_conformance.engine import Engine
from routeproof_conformance.worlds import WorldError
from routeproof_conformance.worlds.rank import CollectiveFault, run_rank

HANG_SECONDS = 10.0
"""A rank that computes this long, without a collective, is given up."""


class _State(Enum):
    READY = auto()
    COLLECTIVE = auto()
    FENCE = auto()
    DONE = auto()


class _Member:
    """One rank's seat in a group: its state, its baton, and what it waits for."""

    def __init__(self) -> None:
        self.state = _State.READY
        self.baton = threading.Lock()
        self.baton.acquire()
        self.request: tuple[Operation, Any, int] | None = None
        self.answer: Any = None


class _Group:
    """A TP group. A rank that has to wait picks who runs next and hands the baton over."""

    def __init__(self, size: int) -> None:
        self.members = [_Member() for _ in range(size)]
        self.over = threading.Lock()
        self.over.acquire()
        self.faulty = False
        self.abandoned = False
        self.turns = 0

    def wait(self, member: _Member, state: _State) -> Any:  # noqa: ANN401
        """Hand the baton on until the wait is over; called on the rank's own thread."""
        member.state = state
        self.hand_on()
        member.baton.acquire()
        answer, member.answer = member.answer, None
        if isinstance(answer, CollectiveFault):
            raise answer
        return answer

    def hand_on(self) -> None:
        """Give the baton to the lowest rank that can run, or end."""
        if self.abandoned:
            threading.Event().wait()
        self.turns += 1
        chosen = self._ready()
        if chosen is None:
            self._resolve()
            chosen = self._ready()
        if chosen is None:
            self.over.release()
        else:
            chosen.baton.release()

    def _ready(self) -> _Member | None:
        return next((m for m in self.members if m.state is _State.READY), None)

    def _resolve(self) -> None:
        """No rank can run: complete a collective, report it, or pass the fence."""
        waiting = [m for m in self.members if m.state is _State.COLLECTIVE]
        if waiting:
            self._complete(waiting)
        for member in self.members:
            if member.state is not _State.DONE:
                member.state = _State.READY

    def join(self, patience: float | None) -> int | None:
        """Wait until all ranks are done; give the one that runs for `patience` seconds, if one does.

        The group is abandoned then: its threads run no further than their next wait.
        """
        seen = -1
        while not self.over.acquire(timeout=-1 if patience is None else patience):
            if seen == self.turns:
                self.abandoned = True
                return next(i for i, m in enumerate(self.members) if m.state is _State.READY)
            seen = self.turns
        return None

    def _complete(self, waiting: list[_Member]) -> None:
        """Answer a collective that all ranks joined; else tell the waiting ones why not."""
        fault = self._fault(waiting)
        if fault is not None:
            self.faulty = True
            for member in waiting:
                member.answer = CollectiveFault(fault.kind, str(fault))
            return
        requests = [m.request for m in waiting if m.request is not None]
        op, _, dst = requests[0]
        for number, member in enumerate(waiting):
            wanted = op == "all_gather" or number == dst
            member.answer = concatenate([rows for _, rows, _ in requests]) if wanted else None

    def _fault(self, waiting: list[_Member]) -> CollectiveFault | None:
        numbers = [self.members.index(m) for m in waiting]
        if len(waiting) < len(self.members):
            absent = [i for i in range(len(self.members)) if i not in numbers]
            return CollectiveFault(
                "deadlock", f"TP ranks {numbers} wait in a collective that TP ranks {absent} never join"
            )
        seen = [
            (describe(request[0], request[1]), request[2])
            for m in waiting
            if (request := m.request) is not None
        ]
        kinds = [(call.op, call.dtype, call.shape, dst) for call, dst in seen]
        if len(set(kinds)) > 1:
            listed = ", ".join(f"rank {i}: {kind}" for i, kind in zip(numbers, kinds, strict=True))
            return CollectiveFault("mismatch", f"TP ranks meet in different collectives: {listed}")
        return None


class _SimulatedCommunicator:
    """The group as one rank sees it."""

    def __init__(self, group: _Group, rank: int, device: str) -> None:
        self.device = device
        self.group = group
        self.rank = rank
        self.size = len(group.members)

    def all_gather(self, rows: Any) -> Any:  # noqa: ANN401
        """Concatenate along axis 0 in rank order."""
        return self._meet("all_gather", rows, 0)

    def gather(self, rows: Any, dst: int = 0) -> Any:  # noqa: ANN401
        """Concatenate at rank `dst`."""
        return self._meet("gather", rows, dst)

    def _meet(self, op: Operation, rows: Any, dst: int) -> Any:  # noqa: ANN401
        _refuse_like_nccl(op, rows)
        if self.group.faulty:
            raise CollectiveFault("deadlock", "a collective of this group has failed before")
        member = self.group.members[self.rank]
        sent = rows.copy() if isinstance(rows, np.ndarray) else rows.clone()
        member.request = (op, sent, dst)
        return self.group.wait(member, _State.COLLECTIVE)


def _refuse_like_nccl(op: Operation, rows: Any) -> None:  # noqa: ANN401
    """Raise for input that NCCL does not take, so that code that works on gloo alone is found here."""
    call = describe(op, rows)
    if call.dtype not in MOVABLE:
        raise RuntimeError(f"{op}: the backend does not move {call.dtype}")
    if not call.contiguous:
        raise RuntimeError(f"{op}: tensors must be contiguous, this one is {list(call.shape)} with gaps")


class SimulatedWorld:
    """Ranks as threads of this process."""

    name = "simulated"

    def __init__(self, debug_rank: int | None = None, stop: Callable[[], object] = breakpoint) -> None:
        """`debug_rank`: global rank that runs on the calling thread and stops in `stop`."""
        self.debug_rank = debug_rank
        self.stop = stop
        self._jobs: list[queue.SimpleQueue[Callable[[], object]]] = []

    def run(self, engine: Engine, case: Case, steps: tuple[Producer, ...]) -> tuple[Observation, ...]:
        """Run the groups of a case one after the other."""
        ranks = list(case.topology.ranks())
        tp = case.topology.tp
        groups = [ranks[i : i + tp] for i in range(0, len(ranks), tp)]
        with _on_one_core():
            return tuple(seen for group in groups for seen in self._run_group(engine, case, steps, group))

    def _run_group(
        self, engine: Engine, case: Case, steps: tuple[Producer, ...], ranks: list[Rank]
    ) -> list[Observation]:
        group = _Group(len(ranks))
        seen: list[Observation | BaseException | None] = [None] * len(ranks)
        debugged = next((i for i, rank in enumerate(ranks) if rank.index == self.debug_rank), None)

        def play(number: int) -> None:
            member = group.members[number]
            member.baton.acquire()

            def fence() -> bool:
                group.wait(member, _State.FENCE)
                return not group.faulty

            stop = self.stop if number == debugged else None
            comm = _SimulatedCommunicator(group, number, case.device)
            try:
                seen[number] = run_rank(engine, case, ranks[number], steps, comm, fence, stop)
            except BaseException as error:  # noqa: BLE001 - raised again on the calling thread
                seen[number] = error
            member.state = _State.DONE
            group.hand_on()

        for number in range(len(ranks)):
            if number != debugged:
                self._start(number, partial(play, number))
        group.hand_on()
        if debugged is not None:
            play(debugged)
        hung = group.join(HANG_SECONDS if debugged is None else None)
        if hung is not None:
            self._jobs = []
            return [self._abandoned(ranks[i], result, i == hung, hung) for i, result in enumerate(seen)]
        return [self._result(result) for result in seen]

    @staticmethod
    def _abandoned(
        rank: Rank, result: Observation | BaseException | None, culprit: bool, hung: int
    ) -> Observation:
        """Describe a rank of a group that was given up: the one that hung, or one that waits for it."""
        if isinstance(result, Observation):
            return result
        kind: Literal["timeout", "deadlock"] = "timeout" if culprit else "deadlock"
        message = f"TP rank {hung} computed for {HANG_SECONDS:g} s without an end"
        failure = Failure(phase="some step", kind=kind, types=("LostRank",), message=message)
        return Observation(rank=rank, steps=(StepObservation(failure=failure),))

    @staticmethod
    def _result(result: Observation | BaseException | None) -> Observation:
        if isinstance(result, BaseException):
            raise result
        if result is None:
            raise WorldError("a rank ended without an observation")
        return result

    def _start(self, seat: int, job: Callable[[], object]) -> None:
        """Run a job on the thread of a seat; threads are kept for the next case."""
        while len(self._jobs) <= seat:
            jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(jobs,), daemon=True, name=f"rank-{seat}").start()
            self._jobs.append(jobs)
        self._jobs[seat].put(job)


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Keep this thread, and those it starts, on one core: handing a baton over is then four times faster."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _serve(jobs: "queue.SimpleQueue[Callable[[], object]]") -> None:
    while True:
        jobs.get()()
