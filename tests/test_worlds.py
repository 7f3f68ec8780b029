"""The simulated world: rendezvous in a fixed order, faults reported at once, nothing left behind."""

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from routeproof_conformance.cases import select
from routeproof_conformance.engines import Loaded
from routeproof_conformance.parallel import run_simulated
from routeproof_conformance.runner import Run, Runner
from routeproof_conformance.worlds import simulated
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_reference import producers
from routeproof_spec import Case, Observation, Verdict

from tests.toy_engines import PerLayerCapturer, ToyEngine

SIX = "LAY-02/six-tokens[tp=2,dp=1,N=6]"
FOUR = "LAY-03/shards[tp=4,dp=1,T=8,padded=0]"
BOTH = "LAY-03/shards[tp=2,dp=2,T=5+3,padded=0]"


def one(pattern: str) -> Case:
    (found,) = select(pattern)
    return found


def engine_of(capturer: type) -> ToyEngine:
    return type("Probe", (ToyEngine,), {"capturer": capturer, "sources": ()})()


def played(
    capturer: type, pattern: str = SIX, world: SimulatedWorld | None = None
) -> tuple[Observation, ...]:
    case = one(pattern)
    return (world or SimulatedWorld()).run(engine_of(capturer), case, producers(case))


def probe(act: Callable[[PerLayerCapturer], object]) -> type[PerLayerCapturer]:
    """A right capturer that does something more at the beginning of every step."""

    class Probe(PerLayerCapturer):
        def begin_step(self, step):
            super().begin_step(step)
            act(self)

    return Probe


# --- collectives


def test_rows_are_gathered_in_rank_order_to_everyone() -> None:
    got: dict[int, list[int]] = {}

    def act(capturer: PerLayerCapturer) -> None:
        rank = capturer.comm.rank
        rows = np.full((2, 1), 10 * rank, np.int64) + np.arange(2)[:, None]
        got[rank] = capturer.comm.all_gather(rows)[:, 0].tolist()

    played(probe(act), FOUR)
    assert list(got) == [0, 1, 2, 3]
    assert all(rows == [0, 1, 10, 11, 20, 21, 30, 31] for rows in got.values())


def test_rows_are_gathered_to_the_rank_that_is_named_alone() -> None:
    got: dict[int, object] = {}

    def act(capturer: PerLayerCapturer) -> None:
        rank = capturer.comm.rank
        got[rank] = capturer.comm.gather(np.array([[rank]]), dst=2)

    seen = played(probe(act), FOUR)
    assert {rank for rank, rows in got.items() if rows is not None} == {2}
    assert got[2][:, 0].tolist() == [0, 1, 2, 3]
    assert [call.op for call in seen[0].steps[0].collectives] == ["gather"]


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    got = []
    played(probe(lambda c: got.append(c.comm.all_gather(torch.full((1, 2), c.comm.rank)))))
    assert torch.equal(got[0], torch.tensor([[0, 0], [1, 1]]))


def test_what_one_rank_gets_is_its_own() -> None:
    got: dict[int, np.ndarray] = {}

    def act(capturer: PerLayerCapturer) -> None:
        mine = np.array([[capturer.comm.rank]])
        rows = capturer.comm.all_gather(mine)
        mine[:] = 99
        got.setdefault(capturer.comm.rank, rows.copy())
        rows[:] = 77

    played(probe(act), FOUR)
    assert all(rows[:, 0].tolist() == [0, 1, 2, 3] for rows in got.values())


def test_dp_ranks_share_no_group() -> None:
    got = {}

    def act(capturer: PerLayerCapturer) -> None:
        rows = capturer.comm.all_gather(np.array([[capturer.rank.index]]))
        got[capturer.rank.index] = (capturer.comm.size, rows[:, 0].tolist())

    played(probe(act), BOTH)
    assert got == {0: (2, [0, 1]), 1: (2, [0, 1]), 2: (2, [2, 3]), 3: (2, [2, 3])}


def test_one_rank_runs_at_a_time_in_the_same_order_every_time() -> None:
    inside: list[int] = []
    order: list[tuple[int, str]] = []

    class Watched(PerLayerCapturer):
        def check(self, layer, ids, microbatch):
            assert not inside, "two ranks run at once"
            inside.append(self.rank.index)
            order.append((self.rank.index, f"layer {layer}"))
            time.sleep(0.001)
            inside.pop()
            return super().check(layer, ids, microbatch)

    world = SimulatedWorld()
    runs = []
    for _ in range(3):
        order.clear()
        seen = played(Watched, FOUR, world)
        assert not [step.failure for rank in seen for step in rank.steps if step.failure]
        runs.append(tuple(order))
    assert runs[0] == runs[1] == runs[2]
    sharded = runs[0][8:]
    assert [rank for rank, _ in sharded] == [0, 1, 2, 3, 0, 1, 2, 3]


# --- faults


def kinds(seen: tuple[Observation, ...]) -> list[str | None]:
    """What each rank's last step ended in."""
    return [rank.steps[-1].failure.kind if rank.steps[-1].failure else None for rank in seen]


def test_a_rank_that_never_joins_is_a_deadlock_at_once() -> None:
    class Leaves(PerLayerCapturer):
        def gather(self, ids):
            return ids if self.comm.rank == 2 else super().gather(ids)

    start = time.monotonic()
    seen = played(Leaves, FOUR)
    assert time.monotonic() - start < 5
    assert kinds(seen)[0] == kinds(seen)[1] == kinds(seen)[3] == "deadlock"
    told = seen[0].steps[-1].failure.message
    assert told == "TP ranks [0, 1, 3] wait in a collective that TP ranks [2] never join"


def test_a_rank_that_raises_before_its_collective_leaves_the_others_in_a_deadlock() -> None:
    class Raises(PerLayerCapturer):
        def gather(self, ids):
            if self.comm.rank == 1:
                raise ValueError("mine alone")
            return super().gather(ids)

    seen = played(Raises)
    assert kinds(seen) == ["deadlock", "raised"]
    assert seen[1].steps[-1].failure.message == "mine alone"
    assert not seen[1].steps[-1].collectives


@pytest.mark.parametrize(
    "odd",
    [
        lambda comm, ids: comm.all_gather(ids[:1]),
        lambda comm, ids: comm.all_gather(ids.astype(np.int64)),
        lambda comm, ids: comm.gather(ids),
    ],
    ids=["shape", "type", "operation"],
)
def test_ranks_that_meet_in_different_collectives_are_told_so(odd: Callable) -> None:
    class Odd(PerLayerCapturer):
        def gather(self, ids):
            return odd(self.comm, ids) if self.comm.rank == 1 else super().gather(ids)

    seen = played(Odd)
    assert kinds(seen) == ["mismatch", "mismatch"]
    assert "rank 0: ('all_gather', 'int32', (3, 2), 0), rank 1: (" in seen[0].steps[-1].failure.message


def test_a_gather_to_two_ranks_is_a_mismatch() -> None:
    class Odd(PerLayerCapturer):
        def gather(self, ids):
            return self.comm.gather(ids, dst=self.comm.rank)

    assert kinds(played(Odd)) == ["mismatch", "mismatch"]


def test_an_engine_cannot_hide_a_fault_of_its_group() -> None:
    class Swallows(PerLayerCapturer):
        def gather(self, ids):
            if self.comm.rank == 1:
                return np.concatenate([ids, ids])
            try:
                return super().gather(ids)
            except Exception:  # noqa: BLE001
                return np.concatenate([ids, ids])

    assert kinds(played(Swallows))[0] == "deadlock"


def test_the_world_goes_on_after_a_fault() -> None:
    class Leaves(PerLayerCapturer):
        def gather(self, ids):
            return ids if self.comm.rank == 1 else super().gather(ids)

    world = SimulatedWorld()
    faulty = played(Leaves, SIX, world)
    right = played(PerLayerCapturer, SIX, world)
    assert kinds(faulty)[0] == "deadlock"
    assert kinds(right) == [None, None]


def test_an_engine_that_exits_is_an_observation() -> None:
    class Exits(PerLayerCapturer):
        def gather(self, ids):
            del ids
            sys.exit(0)

    seen = played(Exits)
    assert seen[0].steps[-1].failure.types[0] == "SystemExit"
    found = Runner(Loaded("exits", engine_of(Exits), None), SimulatedWorld()).run(one(SIX))
    assert {item.verdict for item in found} == {Verdict.ERROR}


def test_what_create_raises_is_an_observation_of_every_rank() -> None:
    class Refuses(PerLayerCapturer):
        def __init__(self, *given):
            raise ValueError(f"not on {given[1]}")

    seen = played(Refuses)
    assert [rank.create.message for rank in seen] == ["not on dp0/tp0", "not on dp0/tp1"]
    assert all(not rank.steps for rank in seen)


# --- hangs


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A rank waits for this event; it is set when the test is over, so that its thread ends."""
    monkeypatch.setattr(simulated, "HANG_SECONDS", 0.2)
    event = threading.Event()
    yield event
    event.set()


def hanging(event: threading.Event) -> type[PerLayerCapturer]:
    class Hangs(PerLayerCapturer):
        def gather(self, ids):
            if self.comm.rank == 1:
                event.wait()
            return super().gather(ids)

    return Hangs


def test_a_rank_that_computes_for_ever_is_given_up(released: threading.Event) -> None:
    seen = played(hanging(released))
    assert [rank.steps[-1].failure.kind for rank in seen] == ["deadlock", "timeout"]
    assert all("TP rank 1 computed for 0.2 s without an end" in r.steps[-1].failure.message for r in seen)


def test_a_hanging_rank_is_a_finding_of_its_case_and_the_others_run(released: threading.Event) -> None:
    run = Run(Loaded("hangs", engine_of(hanging(released)), None, "no twin here"), ("simulated",))
    cases = (one("LAY-02/full[tp=2,dp=1,T=5,padded=0]"), one(SIX), one("LAY-02/full[tp=2,dp=1,T=6,padded=0]"))
    ran = dict(run_simulated(run, cases, jobs=1))
    assert list(ran) == list(cases)
    assert not run.cut_short
    failing = {item.case for item in run.findings if item.verdict is Verdict.FAILED}
    assert failing == {SIX}
    told = {item.rule: item.verdict for item in ran[cases[1]]}
    assert told["COL-01"] is told["LAY-02"] is Verdict.FAILED
    assert told["SNP-01"] is told["COL-02"] is Verdict.SKIPPED
    assert (run.verdict, run.exit_code) == ("non-conformant", 1)


def test_a_rank_that_tries_again_for_ever_stops_the_world(released: threading.Event) -> None:
    class Retries(PerLayerCapturer):
        def gather(self, ids):
            while self.comm.rank == 0 and not released.is_set():
                try:
                    return super().gather(ids)
                except Exception:  # noqa: BLE001
                    time.sleep(0.01)
            return ids

    kinds_seen = [rank.steps[-1].failure.kind for rank in played(Retries)]
    assert "timeout" in kinds_seen


def test_a_rank_that_is_only_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "HANG_SECONDS", 0.3)

    class Slow(PerLayerCapturer):
        def check(self, layer, ids, microbatch):
            time.sleep(0.15)
            return super().check(layer, ids, microbatch)

    assert kinds(played(Slow)) == [None, None]


# --- debugging


@pytest.mark.parametrize("number", range(4))
def test_the_debugged_rank_stops_once_inside_itself_on_the_main_thread(number: int) -> None:
    stops: list[int] = []

    def stop() -> None:
        assert threading.current_thread() is threading.main_thread()
        outer = inspect.currentframe().f_back
        assert outer.f_code.co_name == "run_rank"
        stops.append(outer.f_locals["rank"].index)

    seen = played(PerLayerCapturer, BOTH, SimulatedWorld(number, stop))
    assert stops == [number]
    assert kinds(seen) == [None] * 4


def test_a_stop_may_take_longer_than_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "HANG_SECONDS", 0.05)
    seen = played(PerLayerCapturer, SIX, SimulatedWorld(1, lambda: time.sleep(0.3)))
    assert kinds(seen) == [None, None]


# --- nothing left behind


def test_threads_are_kept_for_the_next_case() -> None:
    world = SimulatedWorld()
    played(PerLayerCapturer, FOUR, world)
    before = threading.active_count()
    for _ in range(5):
        played(PerLayerCapturer, FOUR, world)
        played(PerLayerCapturer, BOTH, world)
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_cores_are_given_back(released: threading.Event) -> None:
    before = os.sched_getaffinity(0)
    played(PerLayerCapturer)
    assert os.sched_getaffinity(0) == before
    played(hanging(released))
    assert os.sched_getaffinity(0) == before


def test_every_capturer_is_closed_unless_its_group_is_lost() -> None:
    closed = []

    class Closes(PerLayerCapturer):
        def close(self):
            closed.append(self.rank.index)

    played(Closes, BOTH)
    assert sorted(closed) == [0, 1, 2, 3]
