"""All obligations of some targets, in processes; one result each, whatever happens."""

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from routeproof_reference.proofs.obligation import Result, Status, UnknownShapeError
from routeproof_reference.proofs.registry import BY_ID, CAPTURER, DECISIONS, OBLIGATIONS
from routeproof_reference.proofs.run import NEED_SETS, establish, names_for, settle

from routeproof_conformance.prove.targets import target_of

FIRST = (
    "own-rows",
    "differential-optimised",
    "differential",
    "same-decision",
    "order-any-set",
    "state-machine",
    "order",
    "fail-closed",
    "zero-tokens",
    "other-ranks",
    "declared",
)
"""They take longest, so they start first."""

Task = tuple[str, str]
"""Obligation and target."""


def tasks(targets: tuple[str, ...], deep: bool, only: tuple[str, ...] = ()) -> list[Task]:
    """List what is to be established, longest first; raise EngineError for an unknown target.

    Code of a shape that the harness does not know is asked what any code is asked: each answer
    is an error that names the shape.
    """
    listed: list[Task] = []
    for name in targets:
        try:
            names = names_for(target_of(name), deep)
        except UnknownShapeError:
            names = tuple(item for item in DECISIONS if item not in NEED_SETS)
        if name == "routeproof":
            names = (*names, *CAPTURER)
        listed += [(item, name) for item in names if not only or item in only]
    return sorted(listed, key=lambda task: FIRST.index(task[0]) if task[0] in FIRST else len(FIRST))


def one(name: str, target_name: str, deep: bool) -> Result:
    """Establish one obligation, in whichever process; confirm a counterexample by execution."""
    from routeproof_conformance.prove import capturer, replay  # noqa: PLC0415 - not in the parent

    try:
        target = target_of(target_name)
        if name in capturer.CHECKS:
            result = settle(BY_ID[name], target, capturer.CHECKS[name])
        else:
            contracts = capturer.CONTRACTS if target_name == "routeproof" else ""
            result = establish(name, target, deep, contracts)
        if result.status is Status.REFUTED and "fault" not in result.target:
            result = replay.confirm(result, target_name)
    except UnknownShapeError as error:
        return Result(name, target_name, Status.ERROR, str(error))
    except Exception as error:  # noqa: BLE001 - a broken check is a result, never silence
        return Result(name, target_name, Status.ERROR, f"{type(error).__name__}: {error}")
    return result


def run(listed: list[Task], deep: bool, jobs: int) -> Generator[Result, None, None]:
    """Give results as they come; no process outlives the caller's interest, or the caller."""
    if jobs == 1:
        with suppress(ImportError):  # it would answer "unknown" to Ctrl-C
            importlib.import_module("z3").set_param("ctrl_c", False)
        yield from (one(*task, deep) for task in listed)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_attend, initargs=(theirs,))
    try:
        with _uninterrupted():  # processes inherit it, and are started here
            waiting: dict[Future[Result], Task] = {pool.submit(one, *task, deep): task for task in listed}
        for done in as_completed(waiting):
            name, target = waiting[done]
            try:
                yield done.result()
            except BrokenProcessPool:
                yield Result(name, target, Status.OPEN, "the process that examined it died")
        pool.shutdown()
    finally:
        with _uninterrupted():
            ours.close()
            pool.shutdown(cancel_futures=True)
            theirs.close()


def _attend(line: Connection) -> None:
    """In a worker: leave Ctrl-C to the caller, and end when its end of the line closes, also by its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()


def _end_with(line: Connection) -> None:
    try:
        line.poll(None)
    finally:
        os._exit(1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C for a moment."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def in_order(results: list[Result]) -> list[Result]:
    """Sort results as the registry does, target by target."""
    place = {item.id: number for number, item in enumerate(OBLIGATIONS)}
    return sorted(results, key=lambda item: (item.target, place[item.obligation]))


def exit_code(results: list[Result]) -> int:
    """0: every MUST established; 1: one refuted or open; 2: an error; 3: nothing was examined."""
    if not results:
        return 3
    if any(item.status is Status.ERROR for item in results):
        return 2
    bad = [item for item in results if item.status is not Status.ESTABLISHED]
    return 1 if any(BY_ID[item.obligation].must for item in bad) else 0


def rounded(result: Result) -> Result:
    """Round the time, for reports."""
    return replace(result, seconds=round(result.seconds, 2))
