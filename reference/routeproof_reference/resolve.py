"""What n rows mean: the layout decision, on flat ints (LAY-01, LAY-06, LAY-08, LAY-10, LAY-12).

Nothing but ints and bools goes in, so that an SMT executor and CrossHair can run
this code itself.
"""

from typing import NamedTuple

from routeproof_spec import Layout, LayoutError, ShardGroupError


class Resolution(NamedTuple):
    """How to restore the own rows from what was handed over."""

    layout: Layout
    start: int
    """First own row, in the rows handed over, or in the gathered rows if `gather`."""
    gather: bool
    """Whether the rows of the TP group must be gathered first (COL-02)."""


def shard_rows(own: int, tp: int) -> int:
    """Give s = ceil(T_d / tp), the rows of one TP shard."""
    return (own + tp - 1) // tp


def resolve(
    n: int,
    own: int,
    before: int,
    total: int,
    largest: int,
    dp_rank: int,
    dp: int,
    tp: int,
    has_sizes: bool,
    sizes_formed: bool,
    sizes_before: int,
    sizes_own: int,
    sizes_total: int,
    cross_dp: bool,
    full: bool,
    gathered_shards: bool,
    padded_to_max: bool,
    tp_shard: bool,
    padded_local: bool,
) -> Resolution:
    """Resolve n within a set of layouts, at one DP rank.

    A declared layout is the set of that one layout (LAY-10). All TP ranks of a group
    are given the same arguments, hence decide alike (COL-01).

    Args:
        n: rows handed over.
        own: T_d, physical tokens of this DP rank.
        before: physical tokens of the DP ranks before it.
        total: physical tokens of all DP ranks.
        largest: the largest T.
        dp_rank: number of this DP rank.
        dp: DP size.
        tp: TP size.
        has_sizes: whether shard sizes are known.
        sizes_formed: none is negative and their number is a multiple of `dp`.
        sizes_before: sum of the shard sizes of earlier DP ranks (if formed).
        sizes_own: sum of the shard sizes of this DP rank (if formed).
        sizes_total: sum of all shard sizes.
        cross_dp: whether the set has CROSS_DP; the other five likewise.
        full: FULL.
        gathered_shards: GATHERED_SHARDS.
        padded_to_max: PADDED_TO_MAX.
        tp_shard: TP_SHARD.
        padded_local: PADDED_LOCAL.

    Raises:
        LayoutError: n fits no member, or two that give other rows at the publisher.
        ShardGroupError: n would be read by shard sizes that form no groups of at
            least T_d rows.

    """
    s = shard_rows(own, tp)
    is_cross = cross_dp and n == total
    is_full = full and n == own
    is_gathered = gathered_shards and has_sizes and n == sizes_total
    is_max = padded_to_max and n == dp * largest
    is_shard = tp_shard and n == s
    is_local = padded_local and n == s * tp
    usable = sizes_formed and sizes_own >= own

    if is_cross:
        found = Resolution(Layout.CROSS_DP, before, gather=False)
    elif is_full:
        found = Resolution(Layout.FULL, 0, gather=False)
    elif is_gathered:
        if not usable:
            raise ShardGroupError(
                f"n = {n} rows would be read by shard sizes that form no group of at least "
                f"{own} rows for each of {dp} DP ranks"
            )
        found = Resolution(Layout.GATHERED_SHARDS, sizes_before, gather=False)
    elif is_max:
        found = Resolution(Layout.PADDED_TO_MAX, dp_rank * largest, gather=False)
    elif is_shard:
        found = Resolution(Layout.TP_SHARD, 0, gather=own > 1 and tp > 1)
    elif is_local:
        found = Resolution(Layout.PADDED_LOCAL, 0, gather=False)
    else:
        raise LayoutError(
            f"n = {n} rows fit no layout of the step: T = {own} of {total} tokens, "
            f"DP rank {dp_rank} of {dp}, TP size {tp}, s = {s}"
        )

    harmful = own > 0 and (
        (is_full and found.start != 0)
        or (is_gathered and usable and found.start != sizes_before)
        or (is_max and found.start != dp_rank * largest)
        or (is_shard and found.start != 0)
        or (is_local and found.start != 0)
    )
    if harmful:
        raise LayoutError(
            f"n = {n} rows fit {found.layout} and another layout of the set that gives other rows "
            f"(T = {own}, DP rank {dp_rank} of {dp}, TP size {tp}): it must be declared"
        )
    return found
