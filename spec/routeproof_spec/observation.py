"""What one rank did in one case."""

from typing import Literal

from pydantic import Field

from routeproof_spec.base import Model
from routeproof_spec.topology import Rank


class ArrayData(Model):
    """An array as plain data: C order, little endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Collective(Model):
    """One collective, as the communicator saw it."""

    op: Literal["all_gather", "gather"]
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool


class Failure(Model):
    """An exception that a call on the rank raised, or a fault that the world saw."""

    phase: str = Field(description="create, begin_step, capture layer 0, end_step, published, buffer")
    kind: Literal["raised", "deadlock", "mismatch", "misuse", "timeout", "died"]
    types: tuple[str, ...] = Field(description="class names, most derived first")
    message: str


class StepObservation(Model):
    """One step on one rank. `failure` None: it ended."""

    failure: Failure | None = None
    collectives: tuple[Collective, ...] = ()
    handed: tuple[tuple[int, ...], ...] = Field(default=(), description="shape of the ids, per call")
    published: ArrayData | None = None
    published_later: ArrayData | None = Field(
        default=None, description="the same object, read again after the last step (SNP-01)"
    )
    buffer_before: ArrayData | None = Field(
        default=None, description="before the step; before the call that raised, if one did (BUF-02)"
    )
    buffer: ArrayData | None = Field(default=None, description="after the step, rejected or not")


class Observation(Model):
    """One rank's part of a case; fewer steps than the case means that it was cut short."""

    rank: Rank
    create: Failure | None = Field(default=None, description="the engine refused the configuration")
    steps: tuple[StepObservation, ...] = ()
