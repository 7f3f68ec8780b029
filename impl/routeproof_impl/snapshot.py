"""What a step publishes: rows in their own memory, and the marks of bad ids."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

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

    def __init__(self, rows: torch.Tensor, fault: torch.Tensor | None) -> None:
        """Hold `rows` and `fault`, int64 [3] on the same device: any bad id?, its flat position, its mark."""
        self._rows = rows
        self._fault = fault

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
        if self._fault is not None:
            bad, position, mark = self._fault.tolist()
            if bad:
                self._refuse(position, mark)
            self._fault = None
        return self._rows

    def numpy(self) -> np.ndarray[Any, Any]:
        """Give the rows on the host; raise ExpertIdError if an id is out of range."""
        host: np.ndarray[Any, Any] = self.tensor().cpu().numpy()
        return host

    def _refuse(self, position: int, mark: int) -> None:
        _, layers, width = self._rows.shape
        row, rest = divmod(position, layers * width)
        layer, column = divmod(rest, width)
        kind = "negative" if mark < 0 else "at least E"
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
        fault = _first_bad(wide, experts) if total else None
        return Snapshot(wide.to(element_type(experts)), fault)


def _first_bad(wide: torch.Tensor, experts: int) -> torch.Tensor:
    """Give int64 [3]: whether an id is outside [0, E), the flat position of the first, its mark."""
    bad = ((wide < 0) | (wide >= experts)).flatten()
    position = bad.to(torch.uint8).argmax()
    return torch.stack((bad.any().to(torch.int64), position, torch.take(wide, position).to(torch.int64)))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into ranges [low, high) of neighbours."""
    low = 0
    for index, number in enumerate(numbers):
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield numbers[low], number + 1
            low = index + 1
