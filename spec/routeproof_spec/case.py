"""A case: inputs for all ranks, as data. What is right follows from the reference."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from routeproof_spec.base import Model
from routeproof_spec.config import CaptureConfig
from routeproof_spec.layout import Layout
from routeproof_spec.step import StepContext
from routeproof_spec.topology import Topology

CASE_ID = r"[A-Z]{3}-\d\d/[a-z0-9-]+\[[A-Za-z0-9_=,.+-]*\]"
RuleId = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}-\d\d$")]
Ids = tuple[tuple[tuple[int, ...], ...], ...]
"""Expert ids of one DP rank: [T_d][L][K + shared]."""


class Call(Model):
    """One `capture` call that all ranks make; what is None is as the step says."""

    layer: int
    microbatch: int = Field(default=0, ge=0)
    n: int | None = Field(default=None, ge=0, description="rows handed over, if not the layout's")
    width: int | None = Field(default=None, ge=0, description="columns, if not K + shared")


class CaseStep(Model):
    """One forward pass: what is told, what is true, and what is handed over."""

    context: StepContext
    emitted: Layout = Field(description="the layout that the producers really emit")
    calls: tuple[Call, ...] | None = Field(
        default=None, description="None: layer by layer, all microbatches of each"
    )
    ids: tuple[Ids, ...] | None = Field(
        default=None, description="the truth, per DP rank; None: generated rows (E = 256, K = 8)"
    )
    element: Literal["int32", "int64"] = Field(default="int32", description="type of the ids tensor")
    strided: bool = Field(default=False, description="hand over a non-contiguous view (COL-06)")
    mask: bool = Field(default=False, description="hand over a padding mask, sharded as the rows are")

    def all_calls(self, config: CaptureConfig) -> tuple[Call, ...]:
        """List the calls in order."""
        if self.calls is not None:
            return self.calls
        parts = max(1, len(self.context.microbatches))
        return tuple(
            Call(layer=layer, microbatch=part) for layer in range(config.layers) for part in range(parts)
        )


class Case(Model):
    """Steps on one buffer, and the rules that they show.

    A case that must be rejected carries a `twin` that differs in the offending value
    alone and must be accepted. A twin that breaks makes the case *error*; one that fails is
    itself what is reported. An accepted case has a twin where a failure could have another cause.
    """

    id: Annotated[str, StringConstraints(pattern=rf"^{CASE_ID}$")]
    rules: tuple[RuleId, ...] = Field(min_length=1)
    topology: Topology
    config: CaptureConfig
    steps: tuple[CaseStep, ...] = Field(min_length=1)
    capabilities: tuple[str, ...] = ()
    device: Literal["cpu", "meta"] = Field(
        default="cpu",
        description="where the ids lie; meta: shapes without data, which nobody can read (COL-07)",
    )
    source: str = Field(default="", description="public report that the numbers come from")
    twin: "Case | None" = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rule not in self.rules:
            msg = f"case {self.id} does not list its own rule"
            raise ValueError(msg)
        for index, step in enumerate(self.steps):
            ranks = len(step.context.real)
            if ranks != self.topology.dp:
                msg = f"case {self.id}, step {index}: {ranks} DP ranks of {self.topology.dp}"
                raise ValueError(msg)
        if self.twin is not None and self.twin.twin is not None:
            msg = f"case {self.id}: a twin has no twin"
            raise ValueError(msg)
        return self

    @property
    def rule(self) -> str:
        """The rule that the case was written for."""
        return self.id.split("/", 1)[0]

    @property
    def family(self) -> str:
        """The id without its axes."""
        return re.sub(r"\[.*", "", self.id)
