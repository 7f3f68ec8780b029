"""What a step publishes: rows on the host, in a ring of buffers, with what the device found about them."""

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from routeproof_spec import CapacityError, ExpertIdError, StepError

from routeproof_impl.exchange import DIGEST, HEADER, HIGH, LOW, STEP

_BYTE, _SHORT = 256, 65_536


def element_type(experts: int) -> torch.dtype:
    """Give the published element type, a function of E alone (SNP-02); raise ExpertIdError above 65,536."""
    if experts > _SHORT:
        raise ExpertIdError(f"{experts} experts: ids of at most {_SHORT} can be published (SNP-02)")
    return torch.uint8 if experts <= _BYTE else torch.uint16


class Slot:
    """One host buffer of the ring: rows, and a header for each TP rank."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, size: int, *, pinned: bool) -> None:
        """Allocate [max_tokens, L, K] rows and `size` headers."""
        self.rows = torch.empty(shape, dtype=dtype, pin_memory=pinned)
        self.headers = torch.zeros((size, HEADER), dtype=torch.int32, pin_memory=pinned)

    @cached_property
    def interface(self) -> dict[str, Any]:
        """The rows as numpy's array interface tells them."""
        return dict(self.rows.numpy().__array_interface__)

    @cached_property
    def notes(self) -> np.ndarray[Any, Any]:
        """The headers as numpy sees them."""
        return np.asarray(self.headers.numpy())


class Lease:
    """A slot in use. It goes back to the ring when the last array that shows its memory is gone."""

    def __init__(self, slot: Slot, free: deque[Slot]) -> None:
        """Take a slot that goes back to `free`."""
        self.slot = slot
        self._free = free

    def __del__(self) -> None:
        """Give the slot back."""
        self._free.append(self.slot)


class _Memory:
    """Rows of a lease as numpy sees them; an array made of it keeps the lease."""

    def __init__(self, lease: Lease, shape: tuple[int, int, int]) -> None:
        self.lease = lease
        self.__array_interface__ = lease.slot.interface | {"shape": shape}


class Ring:
    """Host buffers for snapshots: reused when consumed, grown up to a limit, which is an error past it."""

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, size: int, limit: int, *, pinned: bool
    ) -> None:
        """Allocate two of at most `limit` slots (one, where that is the limit)."""
        self._make = (shape, dtype, size)
        self._pinned = pinned
        self._limit = limit
        self._made = 0
        self._free: deque[Slot] = deque()
        for _ in range(min(2, limit)):
            self._grow()

    def _grow(self) -> None:
        self._free.append(Slot(*self._make, pinned=self._pinned))
        self._made += 1

    def take(self) -> Lease:
        """Take a slot that nobody reads; raise CapacityError where all of them are in use."""
        if not self._free:
            if self._made >= self._limit:
                raise CapacityError(
                    f"{self._made} snapshots are in flight, the limit is {self._limit}: "
                    "none of their arrays has been let go"
                )
            self._grow()
        return Lease(self._free.popleft(), self._free)

    @property
    def nbytes(self) -> int:
        """Host memory of the slots made so far."""
        shape, dtype, size = self._make
        rows = shape[0] * shape[1] * shape[2] * dtype.itemsize
        return self._made * (rows + size * HEADER * 4)


class Snapshot:
    """The rows of one step, [R, L, K] on the host, unchanged by later steps (SNP-01, SNP-03).

    Making one waits for nothing. Reading it waits for the copy, and raises ExpertIdError if an
    id was outside [0, E) (IDS-02), StepError if the TP ranks did not capture the same layers, or
    not in the same step. Its memory is used again once the snapshot and every array or tensor
    read from it are gone.
    """

    def __init__(
        self,
        lease: Lease | None,
        shape: tuple[int, int, int],
        experts: int,
        ranks: Sequence[int],
        copied: Any = None,  # noqa: ANN401 - a CUDA event, untyped
    ) -> None:
        """Hold a lease (None: no rows); `ranks` are the TP ranks whose headers the slot holds."""
        self._lease = lease
        self._shape = shape
        self._dtype = element_type(experts)
        self._experts = experts
        self._ranks = tuple(ranks)
        self._copied = copied
        self._rows: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Give (R, L, K), without a look at the ids."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type: uint8 or uint16."""
        return self._dtype

    def ready(self) -> bool:
        """Say whether reading will not wait."""
        return self._copied is None or bool(self._copied.query())

    def numpy(self) -> np.ndarray[Any, Any]:
        """Give the rows, without a copy; raise ExpertIdError or StepError for rows that are not right."""
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def tensor(self) -> torch.Tensor:
        """Give the same memory as a tensor on the host."""
        return torch.from_numpy(self.numpy())

    def _read(self) -> np.ndarray[Any, Any]:
        if self._lease is None:
            return torch.empty(self._shape, dtype=self._dtype).numpy()
        if self._copied is not None:
            self._copied.synchronize()
        headers = self._lease.slot.notes[: len(self._ranks)].tolist()
        for rank, header in zip(self._ranks, headers, strict=True):
            if header[STEP] != headers[0][STEP]:
                raise StepError(
                    f"TP rank {rank} sent the rows of its step {header[STEP]}, TP rank 0 is at its step "
                    f"{headers[0][STEP]}: they were not given the same steps and row counts (COL-01)"
                )
            if header[DIGEST] != headers[0][DIGEST]:
                raise StepError(
                    f"TP rank {rank} did not capture the same layers as TP rank 0: the rows are not whole"
                )
        for rank, header in zip(self._ranks, headers, strict=True):
            if header[LOW] < 0 or header[HIGH] >= self._experts:
                raise ExpertIdError(
                    f"TP rank {rank} captured an id out of range: its ids reach from {header[LOW]} to "
                    f"{header[HIGH]}, expected [0, {self._experts}); wider ones show as -1 or E (IDS-02)"
                )
        return np.asarray(_Memory(self._lease, self._shape))
