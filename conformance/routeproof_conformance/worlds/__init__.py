"""Where ranks live: one interface, several kinds of ranks."""

from typing import Protocol

from routeproof_reference import Producer
from routeproof_spec import Case, Observation

from routeproof_conformance.engine import Engine


class WorldError(Exception):
    """The world itself broke: the run is cut short."""


class World(Protocol):
    """Runs one case on all of its ranks."""

    name: str

    def run(self, engine: Engine, case: Case, steps: tuple[Producer, ...]) -> tuple[Observation, ...]:
        """Give one observation per rank, in the order of `Rank.index`."""
        ...
