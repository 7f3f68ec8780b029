"""The adapter protocol: how an engine joins."""

from typing import Any, Protocol

import numpy as np
from routeproof_spec import CaptureConfig, EngineProfile, Rank, StepContext

Array = Any
"""A numpy array or a torch tensor; worlds hand over numpy arrays."""


class Communicator(Protocol):
    """The TP group of one rank. The world gives it and records every call."""

    @property
    def rank(self) -> int:
        """TP rank."""
        ...

    @property
    def size(self) -> int:
        """TP size."""
        ...

    def all_gather(self, rows: Array) -> Array:
        """Concatenate the rows of all ranks along axis 0, in rank order; the kind of array stays."""
        ...

    def gather(self, rows: Array, dst: int = 0) -> Array | None:
        """Like `all_gather`, to rank `dst` alone; None elsewhere."""
        ...


class RankEngine(Protocol):
    """One capturer on one rank. Calls come in this order, step after step.

    A step in which a call raised is abandoned: no further call, then `begin_step` of
    the next. Errors for bad input are ordinary exceptions; AttributeError, NameError,
    ImportError, TypeError and NotImplementedError mean a broken adapter.
    """

    def begin_step(self, step: StepContext) -> None:
        """Start a step; `step` is this rank's view."""
        ...

    def capture(self, layer: int, ids: Array, microbatch: int = 0) -> None:
        """Take the ids [n, K (+ shared)] of one layer, a numpy array of integers.

        The array may be non-contiguous and is not changed afterwards.
        """
        ...

    def end_step(self) -> None:
        """End the step; every rank of the group calls it."""
        ...

    def published(self) -> np.ndarray[Any, Any] | None:
        """Give what the step publishes, [R_d, L, K] in the engine's own element type.

        None on a rank that does not publish. The world keeps the object and reads it
        again later (SNP-01), so an adapter must not copy what the engine shares.
        """
        ...

    def buffer(self) -> np.ndarray[Any, Any] | None:
        """Give a copy of the buffer [rows, L, K], whose first T_d rows are the own rows.

        None: the buffer cannot be read or is not in own-row order.
        """
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Engine(Protocol):
    """A capturer under test: makes one `RankEngine` per rank and case."""

    @property
    def profile(self) -> EngineProfile:
        """What the engine claims."""
        ...

    def create(self, config: CaptureConfig, rank: Rank, comm: Communicator) -> RankEngine:
        """Make the capturer of one rank; raise ValueError for a configuration it refuses."""
        ...
