"""How the context builder and the router of an engine join.

An engine that exposes one of these surfaces names it in its profile and has a method
`probe(surface)`, which gives the object below, or raises EngineError where it cannot be had.
"""

from typing import NamedTuple, Protocol

from routeproof_spec import Batch, BatchPath, Layout, Rank, Routing, Surface, Topology

Ids = tuple[tuple[int, ...], ...]
Mask = tuple[bool, ...]


class Told(NamedTuple):
    """What one rank's capturer is told of a step, or of one microbatch; None: it is not told.

    The last three say what the engine's own functions made of the batch. They are no part of
    the context: they show that the engine does what the reference's model says.
    """

    counts: tuple[int, ...] | None
    """T per DP rank."""
    own: int | None = None
    """T of the own DP rank, where it is told a second time."""
    shard_sizes: tuple[int, ...] | None = None
    offset: int | None = 0
    """First buffer row of the microbatch."""
    start: int | None = None
    """First own row in the rows of all DP ranks, where the engine works it out."""
    rows: int | None = None
    """Own rows after the engine's own padding."""
    handed: int | None = None
    """Rows that the engine's own sharding leaves this rank."""
    mask: Mask | None = None
    """The padding mask after the engine's own sharding."""


class ContextBuilder(Protocol):
    """What makes the context of a step; it is asked rank by rank, and keeps nothing."""

    @property
    def paths(self) -> frozenset[BatchPath]:
        """Ways of the engine that can be driven; scenarios on others are *unsupported*."""
        ...

    @property
    def layouts(self) -> frozenset[Layout]:
        """Layouts for which it tells counts; scenarios with others are *unsupported*."""
        ...

    @property
    def takes_mask(self) -> bool:
        """Whether it is handed a padding mask; if not, LAY-07 cannot be shown."""
        ...

    @property
    def digests(self) -> dict[str, str]:
        """Files that are driven -> their sha256."""
        ...

    def tell(self, topology: Topology, batch: Batch, rank: Rank, mask: Mask | None) -> tuple[Told, ...]:
        """Tell what the capturer of a rank learns, for each microbatch in order.

        `mask` is the padding mask as the producer of that rank hands it over, right or not.
        """
        ...


class Routed(NamedTuple):
    """What a router did with one layer's tokens."""

    captured: Ids
    """What it handed to the capturer."""
    kernel: Ids
    """What it gave the kernel."""


class RouterProbe(Protocol):
    """A router, with a stand-in for the device kernel that maps logical to physical ids."""

    @property
    def digests(self) -> dict[str, str]:
        """Files that are driven -> their sha256."""
        ...

    def route(self, routing: Routing, logical: Ids) -> Routed:
        """Route tokens that choose the `logical` experts; the map must lead to `routing.kernel`."""
        ...


Probe = ContextBuilder | RouterProbe


class Probed(Protocol):
    """An engine that exposes one of these surfaces."""

    def probe(self, surface: Surface) -> Probe:
        """Give what drives a surface; raise EngineError where it cannot be had here."""
        ...
