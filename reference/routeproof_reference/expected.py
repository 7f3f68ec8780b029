"""What is right: the rows at every publisher, or the error, for all ranks of a case."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from routeproof_spec import CaptureError, Case, ExpertIdError, LayoutError, Rank

from routeproof_reference.plan import check_capacity, plan
from routeproof_reference.producer import Producer, producers
from routeproof_reference.rows import Rows

MAX_EXPERTS = 65_536
"""The largest E that two bytes hold (SNP-02)."""


@dataclass(frozen=True)
class StepExpectation:
    """One step at one DP rank."""

    error: CaptureError | None
    """Why the step must be rejected (at the call, at its end, or by the snapshot's reader)."""
    own: Rows | None
    """Buffer rows [T_d, L, K] after the step; rows of no part and layers not captured hold -1."""
    published: Rows | None
    """[R_d, L, K]; layers not captured hold -1."""
    captured: frozenset[int]
    """Layers that were captured."""
    gathers: int
    """Calls whose rows must be gathered (COL-02)."""
    calls: int
    """Captured calls."""


Expectation = tuple[tuple[StepExpectation, ...], ...]
"""[step][DP rank]."""


def expected(case: Case, steps: tuple[Producer, ...] | None = None) -> Expectation:
    """Execute a case on all ranks at once; `steps` are its producers, if at hand.

    Every step stands alone: nothing that an earlier step left is ever right (BUF-01).
    """
    return tuple(
        tuple(_step(producer, dp) for dp in range(case.topology.dp)) for producer in steps or producers(case)
    )


@lru_cache(maxsize=16384)
def _step(producer: Producer, dp: int) -> StepExpectation:
    config = producer.config
    group = [Rank(topology=producer.topology, dp=dp, tp=tp) for tp in range(producer.topology.tp)]
    rank = group[0]
    context = producer.step.context
    calls = producer.calls
    own = np.full((producer.extent(dp), config.layers, config.top_k), -1, dtype=np.int64)
    captured: set[int] = set()
    gathers = 0
    try:
        check_capacity(config, rank, context)
        for call in calls:
            handed = producer.handed(rank, call)[0]
            n, width = handed.shape
            found = plan(config, rank, context, call.layer, call.microbatch, n, width)
            rows = np.concatenate([producer.handed(r, call)[0] for r in group]) if found.gather else handed
            rows = rows[found.start : found.start + found.rows, : config.top_k]
            if found.offset + len(rows) > len(own):
                own = np.pad(own, ((0, len(rows) - len(own)), (0, 0), (0, 0)), constant_values=-1)
            own[found.offset : found.offset + len(rows), call.layer] = rows
            captured.add(call.layer)
            gathers += found.gather
        published = np.concatenate([own[start:stop] for start, stop in context.spans(dp)])
        if len(published) < context.real[dp]:
            raise LayoutError(f"{context.real[dp]} real rows, {len(published)} rows captured")
        check_ids(published[:, sorted(captured)], config.experts)
    except CaptureError as error:
        return StepExpectation(error, None, None, frozenset(captured), gathers, len(calls))
    return StepExpectation(None, own, published, frozenset(captured), gathers, len(calls))


def check_ids(rows: Rows, experts: int) -> None:
    """Refuse ids outside [0, E) among published rows (IDS-02)."""
    wrong = np.argwhere((rows < 0) | (rows >= experts))
    if len(wrong):
        row, layer, column = (int(i) for i in wrong[0])
        raise ExpertIdError(
            f"id {rows[row, layer, column]} of row {row}, captured layer {layer}, column {column} "
            f"is outside [0, {experts})"
        )
