"""The layout decision as proofs see it: figures in, decision out, for any implementation.

Numbers are ints, Z3 terms (`symbolic.Int`) or arrays of many cases (`batch.Batch`); code
under examination is called with them unmodified.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from routeproof_spec import Layout, LayoutError, ShardGroupError

from routeproof_reference.resolve import Resolution, resolve

Number = Any
"""An int, `symbolic.Int` or `batch.Batch`."""

Truth = Any
"""A bool, `symbolic.Bool` or `batch.Batch` of bools; combine with & | ^ only."""


class Figures(NamedTuple):
    """Row counts of one step at one DP rank; the arguments of `resolve`, and one more."""

    n: Number
    own: Number
    before: Number
    total: Number
    largest: Number
    dp_rank: Number
    dp: Number
    """The int 1, or anything above."""
    tp: Number
    has_sizes: Truth
    divide: Truth
    """The number of shard sizes is a multiple of `dp`; `formed` implies it."""
    formed: Truth
    sizes_before: Number
    sizes_own: Number
    sizes_total: Number


class Members(NamedTuple):
    """Which layouts the set has, in the order of precedence."""

    cross_dp: Truth
    full: Truth
    gathered_shards: Truth
    padded_to_max: Truth
    tp_shard: Truth
    padded_local: Truth


class Outcome(StrEnum):
    """What a decision is."""

    ROWS = "rows"
    LAYOUT_ERROR = "layout error"
    GROUP_ERROR = "group error"


class Decision(NamedTuple):
    """What an implementation does with n rows."""

    outcome: Outcome
    start: Number = 0
    """First own row, in the rows handed over or gathered."""
    length: Number = 0
    gather: Truth = False
    gathers: int = 0
    """Gathers issued, where they were counted: after a rejection it must be 0."""


class Target(Protocol):
    """An implementation under examination."""

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def configurable(self) -> bool:
        """Whether it takes any set of layouts and declarations."""
        ...

    @property
    def sizes_at_one(self) -> bool:
        """Whether it is told shard sizes at DP = 1 too."""
        ...

    @property
    def deployed(self) -> bool:
        """Whether its set is how it was started: then it infers nothing, and is told no shard sizes."""
        ...

    @property
    def smallest_dp(self) -> int:
        """From which DP size on it is examined."""
        ...

    def layouts(self, dp: int) -> frozenset[Layout]:
        """Give its set at DP = 1, or at any greater DP size."""
        ...

    def decide(self, figures: Figures, members: Members, declared: Layout | None) -> Decision:
        """Run the code itself; raise UnknownShapeError where it cannot be driven."""
        ...

    def unknown(self, n: Number, declared: Layout | None) -> Decision:
        """Run it where no count is known (LAY-09)."""
        ...

    def faulty(self, fault: str) -> "Target":
        """Give the same code with a planted fault."""
        ...

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the faults that can be planted."""
        ...


def members_of(layouts: frozenset[Layout]) -> Members:
    """Spell a set as six booleans."""
    return Members(
        cross_dp=Layout.CROSS_DP in layouts,
        full=Layout.FULL in layouts,
        gathered_shards=Layout.GATHERED_SHARDS in layouts,
        padded_to_max=Layout.PADDED_TO_MAX in layouts,
        tp_shard=Layout.TP_SHARD in layouts,
        padded_local=Layout.PADDED_LOCAL in layouts,
    )


def run_reference(
    figures: Figures,
    members: Members,
    declared: Layout | None,
    code: Callable[..., Resolution] = resolve,
) -> Decision:
    """Run `resolve`, or a faulty copy of it; a declared layout is the set of that one."""
    chosen = members if declared is None else members_of(frozenset({declared}))
    try:
        found = code(
            n=figures.n,
            own=figures.own,
            before=figures.before,
            total=figures.total,
            largest=figures.largest,
            dp_rank=figures.dp_rank,
            dp=figures.dp,
            tp=figures.tp,
            has_sizes=figures.has_sizes,
            sizes_formed=figures.formed,
            sizes_before=figures.sizes_before,
            sizes_own=figures.sizes_own,
            sizes_total=figures.sizes_total,
            **chosen._asdict(),
        )
    except ShardGroupError:
        return Decision(Outcome.GROUP_ERROR)
    except LayoutError:
        return Decision(Outcome.LAYOUT_ERROR)
    return Decision(Outcome.ROWS, found.start, figures.own, found.gather, 0)
