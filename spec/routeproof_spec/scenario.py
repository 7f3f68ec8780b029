"""A scenario: inputs of a part of an engine beside the capturer, as data.

A `Case` hands tensors to a capturer. A `Scenario` asks another surface: what a context
builder tells of a batch (LAY-11, LAY-07), or which ids a router hands over (IDS-01). Ids,
rules and findings are alike; what is right follows from the reference here too.
"""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, StringConstraints, model_validator

from routeproof_spec.base import Model
from routeproof_spec.case import CASE_ID, Case, RuleId
from routeproof_spec.layout import Layout
from routeproof_spec.rule import Surface
from routeproof_spec.step import Counts
from routeproof_spec.topology import Topology


class BatchPath(StrEnum):
    """On which way of an engine a batch comes to its layers, and with it the context."""

    FUNCTION = "function"
    """The builder's own function, given the rows of the batch and no ready description of it."""

    EAGER = "eager"
    """A step of the model runner without a graph."""

    PIECEWISE_GRAPH = "piecewise-graph"
    """A step of the model runner whose layers are graphs with host code in between."""

    FULL_GRAPH = "full-graph"
    """A step that replays one graph: its context is the one of the recording, or of the replay."""

    PREFILL_GRAPH = "prefill-graph"
    """A prefill that replays a graph, beside decode steps that replay others."""

    MICROBATCHES = "microbatches"
    """A step cut into microbatches, each with a context of its own."""

    COMPACT_REPLAY = "compact-replay"
    """A decoder that is run again on fewer rows of the step (BUF-10)."""


GRAPHS = frozenset({BatchPath.PIECEWISE_GRAPH, BatchPath.FULL_GRAPH, BatchPath.PREFILL_GRAPH})


class Batch(Model):
    """The truth about one batch, before any padding."""

    kind: Literal["batch"] = "batch"
    path: BatchPath
    real: Counts = Field(min_length=1, description="R per DP rank: tokens of requests")
    emitted: Layout = Field(description="the layout in which rows reach the capturer")
    graphs: tuple[PositiveInt, ...] = Field(
        default=(), description="slots of the graphs at hand, ascending; empty: no graph"
    )
    width: PositiveInt = Field(default=1, description="rows per slot: tokens that one request verifies")
    earlier: PositiveInt | None = Field(
        default=None, description="slots of the decode graph replayed last before this step, if any was"
    )
    microbatches: PositiveInt = Field(default=1, description="into how many the step is cut")
    kept: Counts | None = Field(default=None, description="rows per DP rank that a compact replay keeps")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.path in GRAPHS and not self.graphs:
            msg = f"{self.path} needs the sizes of the graphs"
            raise ValueError(msg)
        if (self.path is BatchPath.COMPACT_REPLAY) != (self.kept is not None):
            msg = f"rows kept belong to {BatchPath.COMPACT_REPLAY}, and to it alone"
            raise ValueError(msg)
        if (self.path is BatchPath.MICROBATCHES) != (self.microbatches > 1):
            msg = f"more than one microbatch belongs to {BatchPath.MICROBATCHES}, and to it alone"
            raise ValueError(msg)
        if any(count % self.width for count in self.real):
            msg = f"real rows {self.real} are no multiples of the width {self.width}"
            raise ValueError(msg)
        return self


Ids = tuple[tuple[NonNegativeInt, ...], ...]
"""Expert ids [rows][K]."""


class Routing(Model):
    """What a kernel was given after expert-load balancing, and the map that led to it."""

    kind: Literal["routing"] = "routing"
    physical_to_logical: tuple[NonNegativeInt, ...] = Field(description="logical expert of each replica")
    kernel: Ids = Field(min_length=1, description="physical ids that the kernel is to be given")


class Scenario(Model):
    """One input of one surface, and the rules that it shows."""

    id: Annotated[str, StringConstraints(pattern=rf"^{CASE_ID}$")]
    rules: tuple[RuleId, ...] = Field(min_length=1)
    topology: Topology
    given: Batch | Routing = Field(discriminator="kind")
    capabilities: tuple[str, ...] = ()
    source: str = Field(default="", description="public report that the numbers come from")
    twin: "Scenario | None" = Field(
        default=None, description="the nearest input that must pass, or a failure tells nothing"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rule not in self.rules:
            msg = f"scenario {self.id} does not list its own rule"
            raise ValueError(msg)
        if isinstance(self.given, Batch) and len(self.given.real) != self.topology.dp:
            msg = f"scenario {self.id}: {len(self.given.real)} DP ranks of {self.topology.dp}"
            raise ValueError(msg)
        if self.twin is not None and self.twin.twin is not None:
            msg = f"scenario {self.id}: a twin has no twin"
            raise ValueError(msg)
        return self

    @property
    def rule(self) -> str:
        """The rule that the scenario was written for."""
        return self.id.split("/", 1)[0]

    @property
    def family(self) -> str:
        """The id without its axes."""
        return re.sub(r"\[.*", "", self.id)

    @property
    def surface(self) -> Surface:
        """Where it is asked."""
        return Surface.CONTEXT_BUILDER if isinstance(self.given, Batch) else Surface.ROUTER


AnyCase = Case | Scenario
"""What a run consists of: both have an id, rules, a topology and a source, and give findings."""
