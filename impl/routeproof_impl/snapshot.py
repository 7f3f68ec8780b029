"""What a step publishes: rows in their own memory, and the marks of bad ids."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from routeproof_spec import ExpertIdError

_BYTE, _SHORT = 256, 65_536


def element_type(experts: int) -> torch.dtype:
    """Give the published element type, a function of E alone (SNP-02); raise ExpertIdError above 65,536."""
    if experts > _SHORT:
        raise ExpertIdError(f"{experts} experts: ids of at most {_SHORT} can be published (SNP-02)")
    return torch.uint8 if experts <= _BYTE else torch.uint16


class Snapshot:
    """The rows of one step, [R, L, K], unchanged by later steps (SNP-01, SNP-03).

    Making one reads nothing on the host. Whether an id was outside [0, E) is found out on the
    device and told to whoever reads the rows (IDS-02).
    """

    def __init__(self, rows: torch.Tensor, wide: torch.Tensor, experts: int) -> None:
        """Hold `rows`, and until they are read `wide`, the same with marks for bad ids."""
        self._rows = rows
        self._experts = experts
        self._wide: torch.Tensor | None = wide if rows.numel() else None
        self._extremes = torch.stack(torch.aminmax(wide)) if rows.numel() else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Give (R, L, K), without a look at the ids."""
        return tuple(self._rows.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type: uint8 or uint16."""
        return self._rows.dtype

    def tensor(self) -> torch.Tensor:
        """Give the rows on the device; raise ExpertIdError if an id is out of range. Waits for the device."""
        if self._wide is not None and self._extremes is not None:
            low, high = self._extremes.tolist()
            if low < 0 or high >= self._experts:
                self._refuse(self._wide)
            self._wide = self._extremes = None
        return self._rows

    def numpy(self) -> np.ndarray[Any, Any]:
        """Give the rows on the host; raise ExpertIdError if an id is out of range."""
        host: np.ndarray[Any, Any] = self.tensor().cpu().numpy()
        return host

    def _refuse(self, wide: torch.Tensor) -> NoReturn:
        bad = (wide < 0) | (wide >= self._experts)
        row, layer, column = bad.nonzero()[0].tolist()
        kind = "negative" if wide[row, layer, column] < 0 else "at least E"
        raise ExpertIdError(f"token {row}, layer {layer}, column {column}: the expert id is {kind} (IDS-02)")


def take(
    storage: torch.Tensor, spans: Sequence[tuple[int, int]], layers: Collection[int], experts: int
) -> Snapshot:
    """Copy the rows of `spans`, in that order, out of `storage` [max_tokens, L, K]; device work only.

    Layers outside `layers` hold the fill 0 (BUF-08) and are not judged.
    """
    total = sum(stop - start for start, stop in spans)
    with torch.inference_mode(mode=False):
        wide = storage.new_zeros((total, *storage.shape[1:]))
        at = 0
        for start, stop in spans:
            for low, high in _runs(sorted(layers)):
                source = storage.narrow(0, start, stop - start).narrow(1, low, high - low)
                wide.narrow(0, at, stop - start).narrow(1, low, high - low).copy_(source)
            at += stop - start
        return Snapshot(wide.to(element_type(experts)), wide, experts)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into ranges [low, high) of neighbours."""
    low = 0
    for index, number in enumerate(numbers):
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield numbers[low], number + 1
            low = index + 1
