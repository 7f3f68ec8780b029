"""A TP group in one thread: the ranks do each call one after the other, the publisher last.

The others leave what they bring to a collective; the publisher, whose rows are judged, gets
all of it. What the others get back is of the right shape only, so this is for engines that
decide nothing by ids (COL-07). Gathers per layer and per step both work.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


class GroupError(Exception):
    """The ranks do not bring the same to a collective (COL-01)."""


class Member:
    """The communicator of one rank."""

    def __init__(self, group: "SequentialGroup", rank: int) -> None:
        """Seat it."""
        self.group, self.rank, self.size = group, rank, group.size
        self.sent: list[Any] = []
        self.strided = 0
        """Collectives whose input was not contiguous (COL-06)."""

    def all_gather(self, rows: Any) -> Any:  # noqa: ANN401 - numpy or torch
        """Concatenate what all ranks bring, at the publisher."""
        self._send(rows)
        return self.group.concatenate([rows] * self.size) if self.rank else self._gathered(rows)

    def gather(self, rows: Any, dst: int = 0) -> Any:  # noqa: ANN401
        """Like `all_gather`, at `dst` alone."""
        if self.rank == dst:
            return self.all_gather(rows)
        self._send(rows)
        return None

    def _send(self, rows: Any) -> None:  # noqa: ANN401
        tensor = hasattr(rows, "is_contiguous")
        self.strided += not (rows.is_contiguous() if tensor else rows.flags.c_contiguous)
        self.sent.append(rows.clone() if tensor else rows.copy())

    def _gathered(self, rows: Any) -> Any:  # noqa: ANN401
        at = len(self.sent) - 1
        parts = []
        for member in self.group.members:
            if len(member.sent) <= at or member.sent[at].shape != rows.shape:
                raise GroupError(f"collective {at}: TP rank {member.rank} does not bring {tuple(rows.shape)}")
            parts.append(member.sent[at])
        return self.group.concatenate(parts[::-1] if self.group.reverse else parts)


class SequentialGroup:
    """The members of one TP group."""

    def __init__(
        self, size: int, concatenate: Callable[[list[Any]], Any] = np.concatenate, reverse: bool = False
    ) -> None:
        """Make all members; `reverse` plants shards in another order."""
        self.size, self.concatenate, self.reverse = size, concatenate, reverse
        self.members = [Member(self, rank) for rank in range(size)]

    def issued(self) -> int:
        """Count the collectives so far, of all members together."""
        return sum(len(member.sent) for member in self.members)

    def settle(self) -> int:
        """Forget the collectives so far and count them; raise GroupError where they differ."""
        numbers = {len(member.sent) for member in self.members}
        if len(numbers) > 1:
            raise GroupError(f"the ranks issued {sorted(numbers)} collectives")
        for member in self.members:
            member.sent.clear()
        return numbers.pop()
