"""Verdicts, findings and what an engine claims."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from routeproof_spec.base import IN_ORDER, Model
from routeproof_spec.case import RuleId
from routeproof_spec.layout import Layout
from routeproof_spec.rule import CORE_RULES, Level, Surface


class Verdict(StrEnum):
    """From harmless to fatal; `worst` only moves up."""

    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    PASSED = "passed"
    KNOWN_FAILURE = "known-failure"
    FAILED = "failed"
    ERROR = "error"

    @property
    def severity(self) -> int:
        """Position in the order above."""
        return list(Verdict).index(self)


class Finding(Model):
    """What one case says about one rule."""

    case: str
    rule: RuleId
    level: Level
    world: str
    topology: str
    verdict: Verdict
    message: str = ""


class ElementType(Model):
    """One row of the table from E to the published element type (SNP-02)."""

    dtype: str = Field(description="numpy name, such as uint8")
    experts: int | None = Field(description="largest E it is used for; None: no bound")


class EngineProfile(Model):
    """What an engine is, claims, and chooses where the rules leave a choice."""

    name: str
    version: str
    digest: str = Field(description="sha256 of the file or files under test")
    surfaces: Annotated[frozenset[Surface], IN_ORDER] = frozenset({Surface.CAPTURER})
    capabilities: Annotated[frozenset[str], IN_ORDER] = frozenset()
    element_types: tuple[ElementType, ...] = Field(min_length=1)
    uncounted: Literal["pass-through", "reject"] = "pass-through"
    fill: int | None = Field(default=0, description="id in layers never captured (BUF-08); None: any")
    missing: int | None = Field(default=None, description="declared marker for an invalid id (IDS-02)")
    declined: dict[RuleId, str] = Field(default={}, description="rule -> why it cannot be shown here")
    sources: tuple[str, ...] = Field(
        default=(), description="modules to import again without assertions (GAT-03)"
    )
    deployments: tuple[frozenset[Layout], ...] = Field(
        default=(),
        description="layouts that one way of starting the engine emits together, for an engine that is "
        "started for its layouts instead of inferring them; empty: any case as it is",
    )

    @model_validator(mode="after")
    def _core_stays(self) -> "EngineProfile":
        refused = sorted(CORE_RULES & set(self.declined))
        if refused:
            msg = f"{', '.join(refused)} cannot be declined"
            raise ValueError(msg)
        return self

    def deployment(self, emitted: frozenset[Layout]) -> frozenset[Layout] | None:
        """Give the first deployment that emits all these layouts; None: no deployment does."""
        return next((layouts for layouts in self.deployments if emitted <= layouts), None)

    def element_type(self, experts: int) -> str | None:
        """Give the published element type for E experts; None: E is refused."""
        for row in self.element_types:
            if row.experts is None or experts <= row.experts:
                return row.dtype
        return None
