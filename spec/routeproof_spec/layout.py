"""What the number of rows handed over can mean."""

from enum import StrEnum


class Layout(StrEnum):
    """The seven layouts of an ids tensor; T_d, s and "own rows" as in spec/README.md."""

    CROSS_DP = "CROSS_DP"
    """n = sum of T: the DP ranks concatenated; own rows at the sum of earlier T."""

    FULL = "FULL"
    """n = T_d: the own rows."""

    GATHERED_SHARDS = "GATHERED_SHARDS"
    """n = sum of shard sizes: DP-major, TP-minor; own rows at the shards of earlier DP ranks."""

    PADDED_TO_MAX = "PADDED_TO_MAX"
    """n = dp * max T: one block per DP rank, each padded to the largest."""

    TP_SHARD = "TP_SHARD"
    """n = s = ceil(T_d / tp): tokens [t*s, (t+1)*s) of TP rank t, the tail padded."""

    PADDED_LOCAL = "PADDED_LOCAL"
    """n = s * tp: the own rows, then padding."""

    UNCOUNTED = "UNCOUNTED"
    """Any n: no token count is known; the rows pass through unchanged (LAY-09)."""


PRECEDENCE: tuple[Layout, ...] = (
    Layout.CROSS_DP,
    Layout.FULL,
    Layout.GATHERED_SHARDS,
    Layout.PADDED_TO_MAX,
    Layout.TP_SHARD,
    Layout.PADDED_LOCAL,
)
"""The order in which inference from n alone tries the counted layouts (LAY-06)."""


def default_layouts(dp: int) -> frozenset[Layout]:
    """Give the set that producers can emit unless a configuration says otherwise.

    It is free of collisions at the publisher; PADDED_LOCAL belongs to it at DP = 1 only,
    since at DP > 1 it can have as many rows as CROSS_DP.
    """
    base = {Layout.CROSS_DP, Layout.FULL, Layout.GATHERED_SHARDS, Layout.TP_SHARD}
    return frozenset(base | {Layout.PADDED_LOCAL} if dp == 1 else base)
