"""The TP group as the capturer sees it, and a torch process group in that form."""

from typing import Protocol

import torch
import torch.distributed as dist

MOVABLE = frozenset({torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64})
"""Element types that gloo and NCCL both move as they are (COL-06); others travel as bytes."""

GATHERING = frozenset({"gloo", "nccl", "mpi"})
"""Backends with a gather to one rank."""

_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The same collective, which torch has renamed."""


class Communicator(Protocol):
    """The TP group of one rank."""

    @property
    def rank(self) -> int:
        """TP rank."""
        ...

    @property
    def size(self) -> int:
        """TP size."""
        ...

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Concatenate the rows of all ranks along axis 0, in rank order."""
        ...

    def gather(self, rows: torch.Tensor, dst: int = 0) -> torch.Tensor | None:
        """Like `all_gather`, to rank `dst` alone; None elsewhere."""
        ...


class TorchCommunicator:
    """A torch process group: gloo on CPU, NCCL on CUDA.

    Executed with gloo. Not yet executed with NCCL.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Wrap `group`; None is the default group, or a group of one where torch.distributed is not set up.

        Raise ValueError on a process that does not belong to the group.
        """
        self._group = group
        self._alone = group is None and not (dist.is_available() and dist.is_initialized())
        self._rank = 0 if self._alone else dist.get_rank(group)
        self._size = 1 if self._alone else dist.get_world_size(group)
        if self._rank < 0:
            raise ValueError("this process does not belong to the group")

    @property
    def rank(self) -> int:
        """Rank in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return self._size

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Concatenate the rows of all ranks along axis 0, in rank order.

        `rows` [n, ...] is contiguous (else ValueError, COL-06) and of the same shape and type on
        every rank; the result is [size * n, ...] of that type. A group of one gets `rows` back.
        """
        moved = _movable(rows)
        if self._size == 1:
            return rows
        gathered = self._receive(moved)
        _ALL_GATHER(gathered, moved, group=self._group)
        return gathered.view(rows.dtype)

    def gather(self, rows: torch.Tensor, dst: int = 0) -> torch.Tensor | None:
        """Like `all_gather`, to rank `dst` alone; None elsewhere.

        Where the backend has no gather it is an `all_gather` whose result the others drop.
        """
        moved = _movable(rows)
        if not 0 <= dst < self._size:
            raise ValueError(f"rank {dst} is outside a group of {self._size}")
        if self._size == 1:
            return rows
        if dist.get_backend(self._group) not in GATHERING:
            gathered = self.all_gather(rows)
            return gathered if self._rank == dst else None
        if self._rank != dst:
            dist.gather(moved, group=self._group, group_dst=dst)
            return None
        received = self._receive(moved)
        dist.gather(moved, list(received.chunk(self._size)), group=self._group, group_dst=dst)
        return received.view(rows.dtype)

    def _receive(self, moved: torch.Tensor) -> torch.Tensor:
        """Make room for the rows of all ranks."""
        return moved.new_empty((self._size * moved.shape[0], *moved.shape[1:]))


def _movable(rows: torch.Tensor) -> torch.Tensor:
    """Check that `rows` is contiguous, and give a view of it in a type that backends move (COL-06)."""
    if rows.dim() == 0 or not rows.is_contiguous():
        raise ValueError(
            f"a collective takes contiguous rows, not shape {tuple(rows.shape)}, {rows.stride()}"
        )
    return rows if rows.dtype in MOVABLE else rows.view(torch.uint8)
