"""Rows that tell where they come from.

A generated row has E = 256, K = 8; column j lies in [32j, 32j + 32), so that the ids
are distinct and each column spells one field of its origin.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Expert ids [rows, columns]."""

Origins = NDArray[np.int64]
"""Where rows come from, [rows, 6]: the fields of `Origin`, in its order."""

BASE = 32
COLUMNS = 8
EXPERTS = BASE * COLUMNS


class Kind(IntEnum):
    """What a row stands for."""

    REAL = 1
    GRAPH_PADDING = 2
    """A physical row of no real token."""
    SHARD_PADDING = 3
    """Fills a shard or block up; no physical row."""
    FILLER = 4
    """Handed over beyond any layout, in a call that must be rejected."""


class Origin(NamedTuple):
    """Where one row comes from."""

    step: int
    layer: int
    dp: int
    tp: int
    """TP rank whose shard the token belongs to; 0 where rows are not sharded."""
    token: int
    """Token, or position within the padding."""
    kind: int

    def __str__(self) -> str:
        """Read well in a failure message."""
        name = Kind(self.kind).name.lower().replace("_", " ")
        return f"{name} row {self.token} of dp{self.dp}/tp{self.tp}, layer {self.layer}, step {self.step}"


def origins(step: int, dp: int, tp: int | NDArray[np.int64], tokens: NDArray[np.int64], kind: int) -> Origins:
    """Build origins of layer 0 for the given tokens of one DP rank."""
    table = np.zeros((len(tokens), len(Origin._fields)), np.int64)
    table[:, 0], table[:, 2], table[:, 3], table[:, 4], table[:, 5] = step, dp, tp, tokens, kind
    return table


def spell(table: Origins) -> Rows:
    """Build the generated rows [n, 8] of origins; raise ValueError where a field does not fit."""
    step, layer, dp, tp, token, kind = table.T
    fields = (step, layer, dp, tp, token % BASE, token // BASE % BASE, token // BASE**2, kind)
    rows = np.stack(fields, axis=1)
    if rows.size and (rows.min() < 0 or rows.max() >= BASE):
        raise ValueError(f"a field of a generated row is outside [0, {BASE}): {rows.max(axis=0)}")
    return rows + np.arange(COLUMNS) * BASE
