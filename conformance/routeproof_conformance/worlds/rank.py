"""What one rank does in a case; the same in every world."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from routeproof_reference import Producer
from routeproof_spec import ArrayData, Case, Collective, Failure, Observation, Rank, StepObservation

from routeproof_conformance.arrays import Operation, describe, pack
from routeproof_conformance.engine import Communicator, Engine, RankEngine


class CollectiveFault(Exception):  # noqa: N818 - the world's report, no error of the engine
    """A collective that cannot complete: `kind` is deadlock or mismatch."""

    def __init__(self, kind: Literal["deadlock", "mismatch"], message: str) -> None:
        """Keep the kind for the observation."""
        super().__init__(message)
        self.kind = kind


class RecordingCommunicator:
    """Passes collectives on and keeps what they were given."""

    def __init__(self, inner: Communicator) -> None:
        """Wrap the communicator of one rank."""
        self.inner = inner
        self.rank = inner.rank
        self.size = inner.size
        self.device: str = getattr(inner, "device", "cpu")
        self.calls: list[Collective] = []
        self.fault: CollectiveFault | None = None

    def all_gather(self, rows: Any) -> Any:  # noqa: ANN401
        """Record, then gather to every rank."""
        return self._record("all_gather", rows, lambda: self.inner.all_gather(rows))

    def gather(self, rows: Any, dst: int = 0) -> Any:  # noqa: ANN401
        """Record, then gather to rank `dst`."""
        return self._record("gather", rows, lambda: self.inner.gather(rows, dst))

    def _record(self, op: Operation, rows: Any, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        self.calls.append(describe(op, rows))
        try:
            return call()
        except CollectiveFault as fault:
            self.fault = fault
            raise


class Fence(Protocol):
    """Waits for all ranks between steps; False: the case is over for everyone."""

    def __call__(self) -> bool:
        """Wait."""
        ...


class _Step:
    """Calls an engine and turns what it raises into a `Failure`."""

    def __init__(self, capturer: RankEngine, comm: RecordingCommunicator, watch: bool = False) -> None:
        self.capturer = capturer
        self.comm = comm
        self.watch = watch
        self.before: NDArray[Any] | None = None
        """The buffer before the step, or before the call that failed (BUF-02)."""
        self.failure: Failure | None = None
        self.handed: list[tuple[int, ...]] = []
        self.published: NDArray[Any] | None = None
        self.dataless = comm.device == "meta"

    def attempt(self, phase: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Make one call unless an earlier one failed."""
        if self.failure is not None:
            return None
        result = None
        try:
            result = call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - what an engine raises is an observation
            self.failure = failure(phase, error)
        if self.comm.fault is not None:
            self.failure = failure(phase, self.comm.fault)
        return result

    def play(self, producer: Producer, rank: Rank) -> None:
        """Begin, capture every call, end, and take what is published."""
        context = producer.context(rank)
        self.look()
        at_start = self.before
        self.attempt("begin_step", lambda: self.capturer.begin_step(context))
        for call in producer.calls:
            if self.failure is not None:
                return
            self.look()
            ids = producer.ids(rank, call)
            self.handed.append(ids.shape)
            self.attempt(
                f"capture of layer {call.layer}",
                partial(self.capturer.capture, call.layer, ids, call.microbatch),
            )
        if self.dataless:
            return
        self.attempt("end_step", self.capturer.end_step)
        self.published = self.array("published", self.capturer.published)
        if self.failure is None:
            self.before = at_start

    def look(self) -> None:
        """Read the buffer, where a rule compares it with a later state."""
        if self.watch:
            self.before = self.array("buffer", self.capturer.buffer)

    def array(self, phase: str, read: Callable[[], Any]) -> NDArray[Any] | None:
        """Read an array or None; anything else is a misuse of the protocol."""
        result = self.attempt(phase, read)
        if result is None or (isinstance(result, np.ndarray) and result.dtype.kind in "iuf"):
            return result
        what = f"an array of {result.dtype}" if isinstance(result, np.ndarray) else type(result).__name__
        self.failure = Failure(
            phase=phase,
            kind="misuse",
            types=("TypeError",),
            message=f"{phase}() returned {what}, expected a numpy array of integers or None",
        )
        return None


def failure(phase: str, error: BaseException) -> Failure:
    """Describe what a call raised."""
    return Failure(
        phase=phase,
        kind=error.kind if isinstance(error, CollectiveFault) else "raised",
        types=tuple(kind.__name__ for kind in type(error).__mro__[:-2]),
        message=str(error) or type(error).__name__,
    )


def run_rank(
    engine: Engine,
    case: Case,
    rank: Rank,
    steps: tuple[Producer, ...],
    comm: Communicator,
    fence: Fence,
    stop_here: Callable[[], object] | None = None,
) -> Observation:
    """Play a case on one rank.

    Args:
        engine: makes the capturer.
        case: what to play.
        rank: which rank this is.
        steps: the producers of the case's steps.
        comm: the TP group.
        fence: waits for the other ranks between steps.
        stop_here: called inside the rank before its first step, for a debugger.

    """
    recorder = RecordingCommunicator(comm)
    try:
        capturer = engine.create(case.config, rank, recorder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - an observation
        return Observation(rank=rank, create=failure("create", error))
    results: list[StepObservation] = []
    kept: list[NDArray[Any] | None] = []
    if stop_here is not None:
        stop_here()
    watch = "BUF-02" in case.rules or "LAY-12" in case.rules
    for producer in steps:
        recorder.calls = []
        step = _Step(capturer, recorder, watch)
        step.play(producer, rank)
        failed, step.failure = step.failure, None
        readable = recorder.fault is None and (watch or rank.publishes) and not step.dataless
        after = step.array("buffer", capturer.buffer) if readable else None
        results.append(
            StepObservation(
                failure=failed or step.failure,
                collectives=tuple(recorder.calls),
                handed=tuple(step.handed),
                published=_packed(step.published),
                buffer_before=_packed(step.before),
                buffer=_packed(after),
            )
        )
        kept.append(step.published)
        if not fence() or recorder.fault is not None:
            break
    later = [_packed(array) for array in kept]
    closing = _Step(capturer, recorder)
    if recorder.fault is None:
        closing.attempt("close", capturer.close)
    final = [
        result.model_copy(update={"published_later": again})
        for result, again in zip(results, later, strict=True)
    ]
    if closing.failure is not None and final[-1].failure is None:
        final[-1] = final[-1].model_copy(update={"failure": closing.failure})
    return Observation(rank=rank, steps=tuple(final))


def _packed(array: NDArray[Any] | None) -> ArrayData | None:
    return None if array is None else pack(array)
