"""What a rule is."""

from enum import StrEnum

from pydantic import Field

from routeproof_spec.base import Model
from routeproof_spec.case import RuleId


class Level(StrEnum):
    """How much a violation weighs."""

    MUST = "MUST"
    """A violation makes an engine non-conformant."""

    SHOULD = "SHOULD"
    """Reported, not fatal."""

    PROFILE = "PROFILE"
    """The engine declares which variant it keeps, and is held to it."""


class Surface(StrEnum):
    """Where a rule can be shown."""

    CAPTURER = "capturer"
    ROUTER = "router"
    CONTEXT_BUILDER = "context-builder"
    BINDER = "binder"
    DELIVERY = "delivery"
    SERVER = "server"


class Rule(Model):
    """One numbered rule; its id is frozen, a changed meaning gets a new id."""

    id: RuleId
    level: Level
    title: str = Field(description="a few words, for tables")
    statement: str = Field(description="the normative sentences")
    surfaces: tuple[Surface, ...] = Field(min_length=1)
    capability: str | None = Field(default=None, description="feature to claim before it applies")
    rationale: str = Field(description="what goes wrong without it")
    sources: tuple[str, ...] = Field(min_length=1, description="where it comes from")

    @property
    def group(self) -> str:
        """The first three letters."""
        return self.id[:3]


CORE_RULES: frozenset[str] = frozenset({"LAY-01", "LAY-02", "LAY-05", "BUF-01", "BUF-02", "COL-01"})
"""The rules that no engine can decline."""
