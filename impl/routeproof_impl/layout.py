"""The layout decision on plain integers and booleans (LAY-01 to LAY-06, LAY-08, LAY-09, LAY-10, COL-02).

Nothing here touches tensors, models or containers, nothing raises, and no result depends on
the TP rank: all ranks of a TP group that see the same figures decide the same, which is what
lockstep (COL-01) rests on. `routeproof_impl.figures` computes the figures and turns verdicts
into errors.
"""

from typing import Final, NamedTuple

UNDECLARED: Final = 0
CROSS_DP: Final = 1
FULL: Final = 2
GATHERED_SHARDS: Final = 3
PADDED_TO_MAX: Final = 4
TP_SHARD: Final = 5
PADDED_LOCAL: Final = 6
UNCOUNTED: Final = 7
"""Codes of the layouts; 0 stands for "none"."""

FITS: Final = 0
NO_LAYOUT: Final = 1
AMBIGUOUS: Final = 2
CONTRADICTED: Final = 3
BAD_GROUPS: Final = 4
"""Verdicts: the plan holds; n fits nothing (LAY-01); two layouts fit and differ (LAY-06);
n or the counts contradict the declaration (LAY-10); the shard groups are unusable (LAY-08)."""


class Plan(NamedTuple):
    """What to do with n rows. Only `verdict` and `layout` mean something unless it is FITS."""

    verdict: int
    """FITS or a reason to reject."""
    layout: int
    """Code of the layout taken or refused; UNDECLARED where none fits."""
    start: int
    """First own row, in the rows handed over or, with `gather`, in the gathered rows."""
    length: int
    """Number of own rows."""
    gather: bool
    """Whether the rows of the TP group have to be gathered first."""


def shard_rows(own: int, tp: int) -> int:
    """Give the rows of one TP shard, s = ceil(own / tp)."""
    return (own + tp - 1) // tp


def rows_of(layout: int, own: int, total: int, largest: int, dp: int, tp: int, gathered: int) -> int:
    """Give the n of a counted layout.

    `gathered` is the sum of the shard sizes and is returned for GATHERED_SHARDS as it is.
    """
    if layout == CROSS_DP:
        return total
    if layout == FULL:
        return own
    if layout == GATHERED_SHARDS:
        return gathered
    if layout == PADDED_TO_MAX:
        return dp * largest
    if layout == TP_SHARD:
        return shard_rows(own, tp)
    return shard_rows(own, tp) * tp


def start_of(layout: int, before: int, largest: int, dp_rank: int, group_before: int) -> int:
    """Give the first own row of a counted layout, in the rows handed over or gathered."""
    if layout == CROSS_DP:
        return before
    if layout == GATHERED_SHARDS:
        return group_before
    if layout == PADDED_TO_MAX:
        return dp_rank * largest
    return 0


def first_fit(
    cross_dp: bool, full: bool, gathered_shards: bool, padded_to_max: bool, tp_shard: bool, padded_local: bool
) -> int:
    """Give the first layout in the order of precedence that fits (LAY-06), or UNDECLARED."""
    layout = UNDECLARED
    if cross_dp:
        layout = CROSS_DP
    elif full:
        layout = FULL
    elif gathered_shards:
        layout = GATHERED_SHARDS
    elif padded_to_max:
        layout = PADDED_TO_MAX
    elif tp_shard:
        layout = TP_SHARD
    elif padded_local:
        layout = PADDED_LOCAL
    return layout


def pass_through(n: int, declared: int) -> Plan:
    """Decide where no count is known: all rows are own rows, unless a counted layout is declared (LAY-09)."""
    layout = UNCOUNTED if declared == UNDECLARED else declared
    return Plan(FITS if layout == UNCOUNTED else CONTRADICTED, layout, 0, n, gather=False)


def judge(layout: int, sized: bool, usable: bool, agrees: bool) -> int:
    """Give the verdict on a layout inferred or declared, for a step with counts; ambiguity aside.

    `usable`: the shard groups are well formed and the own one holds the own rows. `agrees`: n
    is the n of the layout.
    """
    if layout == UNDECLARED:
        return NO_LAYOUT
    if layout == UNCOUNTED:
        return CONTRADICTED
    if layout == GATHERED_SHARDS and not sized:
        return CONTRADICTED
    if not agrees:
        return CONTRADICTED
    return BAD_GROUPS if layout == GATHERED_SHARDS and not usable else FITS


def locate(
    n: int,
    counted: bool,
    own: int,
    before: int,
    total: int,
    largest: int,
    dp: int,
    tp: int,
    dp_rank: int,
    sized: bool,
    grouped: bool,
    gathered: int,
    group_before: int,
    group_rows: int,
    cross_dp: bool,
    full: bool,
    gathered_shards: bool,
    padded_to_max: bool,
    tp_shard: bool,
    padded_local: bool,
    declared: int,
) -> Plan:
    """Decide where the own rows of DP rank `dp_rank` are among n rows handed over.

    All quantities are rows, and at least 0 except `gathered`. Where `counted` is false
    nothing but `n` and `declared` is read.

    - `own` = T, `before` = sum of the counts of earlier DP ranks, `total` = sum of all,
      `largest` = the largest count.
    - `sized`: shard sizes are known. `grouped`: they form one group per DP rank and none is
      negative. `gathered` = their sum, `group_before` = the sum over the groups of earlier DP
      ranks, `group_rows` = the sum over the own group (both 0 unless `grouped`).
    - The six booleans say which layouts the producers can emit. `declared` is a code;
      UNDECLARED: infer.

    Shard groups that are malformed, or that leave this DP rank fewer than T rows, matter only
    where n is read by them: n is their sum, and GATHERED_SHARDS is declared or the first that fits.
    A layout declared is obeyed whether the set has it or not.
    """
    if not counted:
        return pass_through(n, declared)
    shard = shard_rows(own, tp)
    is_cross_dp = n == total
    is_full = n == own
    is_gathered = sized and n == gathered
    is_max = n == dp * largest
    is_shard = n == shard
    is_local = n == shard * tp
    layout = declared
    if declared == UNDECLARED:
        is_cross_dp = is_cross_dp and cross_dp
        is_full = is_full and full
        is_gathered = is_gathered and gathered_shards
        is_max = is_max and padded_to_max
        is_shard = is_shard and tp_shard
        is_local = is_local and padded_local
        layout = first_fit(is_cross_dp, is_full, is_gathered, is_max, is_shard, is_local)
    usable = grouped and group_rows >= own
    verdict = judge(layout, sized, usable, n == rows_of(layout, own, total, largest, dp, tp, gathered))
    start = start_of(layout, before, largest, dp_rank, group_before)
    shards = own > 1 and tp > 1  # with one token or one rank a shard holds the own rows already
    gather = layout == TP_SHARD and shards
    if verdict == FITS and declared == UNDECLARED and own > 0:
        clash = (
            (is_cross_dp and (gather or start != before))
            or (is_full and (gather or start != 0))
            or (is_gathered and usable and (gather or start != group_before))
            or (is_max and (gather or start != dp_rank * largest))
            or (is_shard and (gather != shards or start != 0))
            or (is_local and (gather or start != 0))
        )
        verdict = AMBIGUOUS if clash else FITS
    return Plan(verdict, layout, start, own, gather)
