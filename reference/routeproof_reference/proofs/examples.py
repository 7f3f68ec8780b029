"""Checks on concrete arrays: the producers, and arrays drawn with CrossHair as backend."""

from itertools import product
from operator import index

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from routeproof_spec import PRECEDENCE, Call, CaptureConfig, CaseStep, Layout, StepContext, Topology

from routeproof_reference.plan import plan
from routeproof_reference.producer import Producer
from routeproof_reference.proofs import crosshair
from routeproof_reference.proofs.claims import EVERYTHING, Situation, base_of, rows_of
from routeproof_reference.proofs.obligation import Check, Status
from routeproof_reference.proofs.scenario import figures_of, right_sizes
from routeproof_reference.proofs.target import Outcome, Target, members_of
from routeproof_reference.rows import Kind

CONFIG = CaptureConfig(max_tokens=12, layers=1, top_k=8, experts=256)
CALL = Call(layer=0)
BOUNDS = ((1, 5), (2, 2), (3, 1))
"""DP size, largest count."""


def check_producers(fault: str = "") -> Check:
    """Compare what producers hand over with the geometry of the proofs, and with `plan`."""
    seen = 0
    for (dp, most), tp, layout in product(BOUNDS, (1, 2, 3), PRECEDENCE):
        for counts in product(range(most + 1), repeat=dp):
            context = StepContext(
                counts=counts, real=counts, shard_sizes=right_sizes(counts, tp), declared=layout
            )
            producer = Producer(Topology(tp=tp, dp=dp), CONFIG, CaseStep(context=context, emitted=layout), 0)
            for rank in range(dp):
                wrong = _producer(producer, rank, layout, fault)
                seen += 1
                if wrong:
                    return Check(
                        Status.REFUTED, f"{layout}, counts {counts}, tp {tp}, DP rank {rank}: {wrong}"
                    )
    return Check(Status.ESTABLISHED, f"{seen:,} steps at a DP rank")


def _producer(producer: Producer, dp: int, layout: Layout, fault: str) -> str:
    ranks = [rank for rank in producer.topology.ranks() if rank.dp == dp]
    context = producer.step.context
    counts = context.counts or ()
    tables = [producer.handed(rank, CALL)[1] for rank in ranks]
    n, own = len(tables[0]), counts[dp]
    figures = figures_of(counts, dp, producer.topology.tp, n, context.shard_sizes)
    at = Situation(figures, -(-own // producer.topology.tp), 0, EVERYTHING)
    if any(len(table) != rows_of(layout, at) for table in tables):
        return f"{n} rows, the proofs assume {rows_of(layout, at)}"
    parts = tables[::-1] if fault == "shards in another order" else tables
    shown = np.concatenate(parts) if layout is Layout.TP_SHARD else tables[0]
    if fault == "padding in front":
        shown = np.roll(shown, len(shown) - own, axis=0)
    found = plan(CONFIG, ranks[0], context, 0, 0, n, CONFIG.width)
    for what, start in (("the proofs assume", base_of(layout, at)), ("plan gives", found.start)):
        rows = shown[start : start + own]
        right = (rows[:, 4] == np.arange(own)) & (rows[:, 2] == dp) & (rows[:, 5] == Kind.REAL)
        if len(rows) != own or not right.all():
            return f"{what} {start} as the start, where the own rows are not"
    return ""


class _Found(Exception):  # noqa: N818 - carries the example out of Hypothesis
    """A property failed."""


def check_arrays(target: Target, examples: int = 40) -> Check:
    """Draw steps with CrossHair as Hypothesis's backend; cut arrays as the decision says.

    Raise OpenError where the backend is missing.
    """
    crosshair.require("hypothesis_crosshair_provider", "crosshair", "z3")
    small = st.integers(0, 3)
    members = members_of(target.layouts(3))

    @settings(
        backend="crosshair",
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(kind=st.integers(0, 2), before=small, own=small, after=small)
    def holds(kind: int, before: int, own: int, after: int) -> None:
        counts, rank, tp = (before, own, after), 1, 2
        padded = tuple(-(-count // tp) * tp for count in counts)
        lengths = (padded, counts, (0, own, 0))[kind]
        figures = figures_of(counts, rank, tp, sum(lengths), right_sizes(counts, tp))
        decision = target.decide(figures, members, None)
        # `int` would stay symbolic, and numpy would ask for a float, which takes CrossHair long.
        blocks = [np.full(index(length), -1) for length in lengths]
        start, rows = index(decision.start), np.arange(index(own))
        blocks[rank][: len(rows)] = rows
        cut = np.concatenate(blocks)[start : start + len(rows)]
        if decision.outcome is not Outcome.ROWS or not np.array_equal(cut, rows):
            raise _Found(f"counts {counts}, {sum(lengths)} rows: {decision.outcome}, start {start}")

    try:
        holds()
    except _Found as error:
        return Check(Status.REFUTED, str(error))
    return Check(Status.ESTABLISHED, f"{examples} examples")
