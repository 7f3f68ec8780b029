"""The reference as a capturer of one rank: per-layer gather, numpy, nothing else."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from routeproof_spec import CaptureConfig, ExpertIdError, LayoutError, Rank, StepContext, StepError

from routeproof_reference.expected import MAX_EXPERTS, check_ids
from routeproof_reference.plan import check_capacity, parts_of, plan

BYTE_EXPERTS = 256
"""The largest E that one byte holds (SNP-02)."""


class Group(Protocol):
    """The TP group, as far as it is needed."""

    def all_gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Concatenate along axis 0 in rank order."""
        ...


class ReferenceCapturer:
    """Captures on one rank; the rules in their plainest form."""

    def __init__(self, config: CaptureConfig, rank: Rank, group: Group) -> None:
        """Allocate; raise ExpertIdError where E does not fit two bytes (SNP-02)."""
        if config.experts > MAX_EXPERTS:
            raise ExpertIdError(f"E = {config.experts} experts do not fit uint16 (at most {MAX_EXPERTS})")
        self.config = config
        self.rank = rank
        self.group = group
        self.element = np.uint8 if config.experts <= BYTE_EXPERTS else np.uint16
        self.buffer = np.zeros((config.max_tokens, config.layers, config.top_k), np.int64)
        self._step: StepContext | None = None
        self._done: dict[tuple[int, int], int] = {}
        self._snapshot: NDArray[np.int64] | None = None

    def begin_step(self, step: StepContext) -> None:
        """Start a step; one that was not ended is dropped. Raise CapacityError (BUF-04)."""
        self._step = None
        self._snapshot = None
        self._done = {}
        check_capacity(self.config, self.rank, step)
        self._step = step

    def capture(self, layer: int, ids: NDArray[Any], microbatch: int = 0) -> None:
        """Write the own rows of ids [n, K + shared]; errors as `plan` (COL-05: before the gather)."""
        if self._step is None:
            raise StepError("capture outside a step")
        n, width = ids.shape
        found = plan(self.config, self.rank, self._step, layer, microbatch, n, width)
        rows = self.group.all_gather(np.ascontiguousarray(ids)) if found.gather else ids
        rows = rows[found.start : found.start + found.rows, : self.config.top_k]
        self.buffer[found.offset : found.offset + len(rows), layer] = rows
        self._done[layer, microbatch] = len(rows)

    def end_step(self) -> None:
        """Take the snapshot at the publisher (SNP-01, SNP-03, SNP-04)."""
        step, self._step = self._step, None
        if step is None:
            raise StepError("end_step outside a step")
        layers = sorted({layer for layer, _ in self._done})
        parts = parts_of(step)
        for layer in layers:
            missing = [part for part in range(len(parts)) if (layer, part) not in self._done]
            if missing:
                raise StepError(f"layer {layer} was not captured in microbatches {missing}")
        real = step.real[self.rank.dp]
        if step.counts is None and any(rows < real for rows in self._done.values()):
            raise LayoutError(f"{real} real rows, {min(self._done.values())} rows captured")
        if not self.rank.publishes:
            return
        rows = np.concatenate([self.buffer[start:stop] for start, stop in step.spans(self.rank.dp)])
        self._snapshot = np.zeros_like(rows)
        self._snapshot[:, layers] = rows[:, layers]

    def published(self) -> NDArray[Any] | None:
        """Give the snapshot [R_d, L, K]; raise ExpertIdError to its reader (IDS-02)."""
        if self._snapshot is None:
            return None
        check_ids(self._snapshot, self.config.experts)
        return self._snapshot.astype(self.element)
