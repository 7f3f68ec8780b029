"""The TP group as the capturer sees it, and a torch process group in that form."""

from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist

MOVABLE = frozenset({torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64})
"""Element types that gloo and NCCL both move as they are (COL-06); others travel as bytes."""

GATHERING = frozenset({"gloo", "nccl", "mpi"})
"""Backends with a gather to one rank."""

SENDING = frozenset({"gloo"})
"""Those whose gather goes through a thread of its own at each rank; a send, of rows on the CPU, does not."""

TAG = 0x5250
"""Keeps the sends of a gather apart from others in the same group."""

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


@runtime_checkable
class GathersInto(Protocol):
    """A communicator that gathers into memory it is given; the capturer then allocates nothing for it."""

    def gather_into(self, rows: torch.Tensor, out: torch.Tensor | None, dst: int = 0) -> None:
        """Like `gather`, into `out` at rank `dst`; `out` may begin with `rows` itself."""
        ...


def gathers_into(comm: Communicator) -> GathersInto:
    """Give `comm`, or where it has no `gather_into` one that copies what its `gather` gives."""
    return comm if isinstance(comm, GathersInto) else _Copying(comm)


class _Copying:
    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def gather_into(self, rows: torch.Tensor, out: torch.Tensor | None, dst: int = 0) -> None:
        """Raise RuntimeError where the communicator gives something else than a gather."""
        gathered = self._comm.gather(rows, dst)
        if out is None:
            return
        if gathered is None or gathered.shape != out.shape or gathered.dtype != out.dtype:
            found = None if gathered is None else (gathered.dtype, tuple(gathered.shape))
            raise RuntimeError(f"the communicator gathered {found}, expected {(out.dtype, tuple(out.shape))}")
        out.copy_(gathered)


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
        self._backends = {} if self._alone else _backends(group)

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
        gathered = moved.new_empty((self._size * moved.shape[0], *moved.shape[1:]))
        _ALL_GATHER(gathered, moved, group=self._group)
        return gathered.view(rows.dtype)

    def gather(self, rows: torch.Tensor, dst: int = 0) -> torch.Tensor | None:
        """Like `all_gather`, to rank `dst` alone; None elsewhere.

        Where the backend has no gather it is an `all_gather` whose result the others drop.
        """
        _movable(rows)
        if self._size == 1 and dst == 0:
            return rows
        out = rows.new_empty((self._size * rows.shape[0], *rows.shape[1:])) if self._rank == dst else None
        self.gather_into(rows, out, dst)
        return out

    def gather_into(self, rows: torch.Tensor, out: torch.Tensor | None, dst: int = 0) -> None:
        """Like `gather`, into `out` [size * n, ...] at rank `dst`, which may begin with `rows` itself."""
        moved = _movable(rows)
        if not 0 <= dst < self._size:
            raise ValueError(f"rank {dst} is outside a group of {self._size}")
        if self._rank == dst and out is None:
            raise ValueError(f"rank {dst} gathers and needs somewhere to gather into")
        into = _movable(out) if self._rank == dst and out is not None else None
        backend = self._backends.get(moved.device.type)
        if self._size == 1:
            if into is not None:
                into.copy_(moved)
        elif backend in SENDING and moved.device.type == "cpu":
            self._sent(moved, into, dst)
        elif backend in GATHERING:
            parts = None if into is None else list(into.chunk(self._size))
            dist.gather(moved, parts, group=self._group, group_dst=dst)
        else:
            gathered = self.all_gather(moved)
            if into is not None:
                into.copy_(gathered)

    def _sent(self, rows: torch.Tensor, into: torch.Tensor | None, dst: int) -> None:
        """Gather as one send of each other rank, awaited by rank `dst` in rank order."""
        group = self._group or dist.group.WORLD
        if group is None:
            raise RuntimeError("torch.distributed is no longer set up")
        if into is None:
            group.send([rows], dst, TAG).wait()
            return
        parts = into.chunk(self._size)
        arriving = [group.recv([part], source, TAG) for source, part in enumerate(parts) if source != dst]
        if parts[dst].data_ptr() != rows.data_ptr():
            parts[dst].copy_(rows)
        for work in arriving:
            work.wait()


def _backends(group: dist.ProcessGroup | None) -> dict[str, str]:
    """Give the backend of each device type: a group may have one for the CPU and another for GPUs."""
    told = (item.partition(":") for item in str(dist.get_backend_config(group)).split(","))
    return {device: backend for device, _, backend in told}


def _movable(rows: torch.Tensor) -> torch.Tensor:
    """Check that `rows` is contiguous, and give a view of it in a type that backends move (COL-06)."""
    if rows.dim() == 0 or not rows.is_contiguous():
        raise ValueError(
            f"a collective takes contiguous rows, not shape {tuple(rows.shape)}, {rows.stride()}"
        )
    return rows if rows.dtype in MOVABLE else rows.view(torch.uint8)
