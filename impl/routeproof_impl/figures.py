"""From the step's counts to the figures of one DP rank, and from verdicts to errors."""

from collections.abc import Collection
from typing import NamedTuple

from routeproof_spec import PRECEDENCE, Layout, LayoutError, Rank, ShardGroupError

from routeproof_impl import layout as plain

CODES: dict[Layout | None, int] = {
    None: plain.UNDECLARED,
    Layout.CROSS_DP: plain.CROSS_DP,
    Layout.FULL: plain.FULL,
    Layout.GATHERED_SHARDS: plain.GATHERED_SHARDS,
    Layout.PADDED_TO_MAX: plain.PADDED_TO_MAX,
    Layout.TP_SHARD: plain.TP_SHARD,
    Layout.PADDED_LOCAL: plain.PADDED_LOCAL,
    Layout.UNCOUNTED: plain.UNCOUNTED,
}
"""Codes of `routeproof_impl.layout` by layout."""

NAMES: dict[int, str] = {code: name.value for name, code in CODES.items() if name is not None}


class Figures(NamedTuple):
    """Row counts of one (micro)batch as one DP rank sees them; see `layout.locate`."""

    counted: bool
    own: int
    before: int
    total: int
    largest: int
    dp: int
    tp: int
    dp_rank: int
    sized: bool
    grouped: bool
    gathered: int
    group_before: int
    group_rows: int

    def rows_of(self, code: int) -> int:
        """Give the n of a counted layout by its code."""
        return plain.rows_of(code, self.own, self.total, self.largest, self.dp, self.tp, self.gathered)


def figures_of(counts: tuple[int, ...] | None, sizes: tuple[int, ...] | None, rank: Rank) -> Figures:
    """Compute the figures of `rank`.

    `counts`: physical tokens per DP rank (LAY-07, LAY-11), None where unknown. `sizes`: rows of
    every gathered shard, DP-major, TP-minor (LAY-04), judged here but refused only where n is
    read by them (LAY-08).
    """
    dp, d = rank.topology.dp, rank.dp
    counted, counts = counts is not None, counts or (0,) * dp
    sized, sizes = sizes is not None, sizes or ()
    group = len(sizes) // dp
    grouped = sized and len(sizes) == group * dp and all(size >= 0 for size in sizes)
    return Figures(
        counted=counted,
        own=counts[d],
        before=sum(counts[:d]),
        total=sum(counts),
        largest=max(counts),
        dp=dp,
        tp=rank.topology.tp,
        dp_rank=d,
        sized=sized,
        grouped=grouped,
        gathered=sum(sizes),
        group_before=sum(sizes[: d * group]) if grouped else 0,
        group_rows=sum(sizes[d * group : (d + 1) * group]) if grouped else 0,
    )


def decide(n: int, figures: Figures, declared: Layout | None, layouts: Collection[Layout]) -> plain.Plan:
    """Give the plan for n rows, or raise.

    LayoutError: n fits no layout of the set (LAY-01), fits two that differ (LAY-06), or
    contradicts the declaration (LAY-10). ShardGroupError: n would be read by shard sizes that
    form no group per DP rank or leave this rank too few rows (LAY-08).
    """
    plan = plain.locate(
        n,
        *figures,
        cross_dp=Layout.CROSS_DP in layouts,
        full=Layout.FULL in layouts,
        gathered_shards=Layout.GATHERED_SHARDS in layouts,
        padded_to_max=Layout.PADDED_TO_MAX in layouts,
        tp_shard=Layout.TP_SHARD in layouts,
        padded_local=Layout.PADDED_LOCAL in layouts,
        declared=CODES[declared],
    )
    if plan.verdict == plain.FITS:
        return plan
    what = f"{n} rows from DP rank {figures.dp_rank} with T = {figures.own}"
    if plan.verdict == plain.BAD_GROUPS:
        raise ShardGroupError(
            f"{what} would be read by shard sizes that are negative, do not divide among {figures.dp} "
            f"DP ranks, or give this one fewer than T rows (LAY-08)"
        )
    if plan.verdict == plain.CONTRADICTED:
        raise LayoutError(f"{what} contradict the declared {declared}: {_expected(figures, plan.layout)}")
    listing = _listing(figures, layouts)
    if plan.verdict == plain.AMBIGUOUS:
        raise LayoutError(f"{what} fit several layouts with different own rows ({listing}): declare one")
    raise LayoutError(f"{what} fit no layout of this step ({listing})")


def _expected(figures: Figures, code: int) -> str:
    """Say what the declaration `code` would have needed."""
    if not figures.counted:
        return "the step has no counts"
    if code == plain.UNCOUNTED:
        return "the step has counts"
    if code == plain.GATHERED_SHARDS and not figures.sized:
        return "the step has no shard sizes"
    return f"it has {figures.rows_of(code)}"


def _listing(figures: Figures, layouts: Collection[Layout]) -> str:
    """List the layouts of the set, each with the n that it needs."""
    known = [
        layout
        for layout in PRECEDENCE
        if layout in layouts and (figures.sized or layout != Layout.GATHERED_SHARDS)
    ]
    return ", ".join(f"{layout}: {figures.rows_of(CODES[layout])}" for layout in known) or "the set is empty"
