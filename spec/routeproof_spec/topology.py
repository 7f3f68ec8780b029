"""Ranks and how they are numbered."""

import re
from functools import lru_cache
from typing import Self

from pydantic import Field, model_validator

from routeproof_spec.base import Model

_SPELLING = re.compile(r"(?:tp(?P<tp>[1-9]\d*))?(?:dp(?P<dp>[1-9]\d*))?")


class Topology(Model):
    """TP size x DP size of one run."""

    tp: int = Field(default=1, ge=1, description="tensor-parallel size")
    dp: int = Field(default=1, ge=1, description="data-parallel size")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `tp2`, `dp2` or `tp2dp2`; raise ValueError for anything else."""
        match = _SPELLING.fullmatch(text)
        if not text or match is None:
            msg = f"topology {text!r} is not spelt like tp2, dp2 or tp2dp2"
            raise ValueError(msg)
        return cls(tp=int(match["tp"] or 1), dp=int(match["dp"] or 1))

    def __str__(self) -> str:
        """Spell it as on the command line; sizes of 1 are left out, except in `tp1`."""
        if self.tp == 1 and self.dp == 1:
            return "tp1"
        return (f"tp{self.tp}" if self.tp > 1 else "") + (f"dp{self.dp}" if self.dp > 1 else "")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tp * self.dp

    def ranks(self) -> tuple["Rank", ...]:
        """Give all ranks, DP-major, TP-minor: the order of `Rank.index`."""
        return _ranks(self)


class Rank(Model):
    """One rank: its DP rank and its TP rank within that."""

    topology: Topology
    dp: int = Field(ge=0)
    tp: int = Field(ge=0)

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if self.dp >= self.topology.dp or self.tp >= self.topology.tp:
            msg = f"rank (dp {self.dp}, tp {self.tp}) is outside {self.topology}"
            raise ValueError(msg)
        return self

    @property
    def index(self) -> int:
        """Global number, DP-major."""
        return self.dp * self.topology.tp + self.tp

    @property
    def publishes(self) -> bool:
        """Whether this is the publisher of its DP rank: its TP rank 0 (SNP-04)."""
        return self.tp == 0

    def __str__(self) -> str:
        """Name both coordinates."""
        return f"dp{self.dp}/tp{self.tp}"


@lru_cache(maxsize=256)
def _ranks(topology: Topology) -> tuple[Rank, ...]:
    return tuple(
        Rank(topology=topology, dp=dp, tp=tp) for dp in range(topology.dp) for tp in range(topology.tp)
    )
