"""Hypothesis strategies for steps, layout first: for any engine's own property tests.

Counts, TP size and layout are drawn, and n follows: a freely drawn n fits no layout and
finds nothing. Out of contract steps hand over a few rows more or fewer.
"""

from hypothesis import strategies as st
from routeproof_spec import Call, CaptureConfig, CaseStep, Layout, Microbatch, StepContext, Topology

from routeproof_reference.proofs.scenario import right_sizes

TP_SIZES = (1, 2, 3, 4, 5, 8)
UNDECLARED = (Layout.CROSS_DP, Layout.FULL, Layout.GATHERED_SHARDS, Layout.TP_SHARD)
"""Layouts of the default set at any DP size."""


def topologies(tp: tuple[int, ...] = TP_SIZES, dp: int = 4) -> st.SearchStrategy[Topology]:
    """Give TP sizes of the tuple, DP sizes up to `dp`."""
    return st.builds(Topology, tp=st.sampled_from(tp), dp=st.integers(1, dp))


def counts(dp: int, largest: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Give token counts per DP rank; empty, single and equal ones often."""
    one = st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, largest))
    several = st.tuples(*[one] * dp)
    return st.one_of(several, one.map(lambda count: (count,) * dp))


def _sizes(told: tuple[int, ...], tp: int) -> tuple[int, ...] | None:
    return right_sizes(told, tp) if len(told) > 1 else None


@st.composite
def steps(
    draw: st.DrawFn, topology: Topology, config: CaptureConfig, declare: bool = True, split: bool = False
) -> CaseStep:
    """Give a step in contract.

    Args:
        draw: Hypothesis's.
        topology: for all ranks.
        config: generated rows need E = 256, K = 8.
        declare: declare layouts at times, and emit those that must be.
        split: cut steps into two microbatches at times.

    """
    dp, tp = topology.dp, topology.tp
    if split and draw(st.booleans()):
        half = config.max_tokens // 2
        parts = [draw(counts(dp, half)), draw(counts(dp, half))]
        real = [tuple(draw(st.integers(0, count)) for count in part) for part in parts]
        microbatches = tuple(
            Microbatch(offset=half * number, counts=part, real=kept, shard_sizes=_sizes(part, tp))
            for number, (part, kept) in enumerate(zip(parts, real, strict=True))
        )
        whole = StepContext(
            counts=(config.max_tokens,) * dp,
            real=tuple(sum(kept) for kept in zip(*real, strict=True)),
            microbatches=microbatches,
        )
        return CaseStep(context=whole, emitted=draw(st.sampled_from(UNDECLARED[:2])))
    told = draw(counts(dp, config.max_tokens))
    outside = (Layout.PADDED_LOCAL, Layout.PADDED_TO_MAX) if declare else ()
    emitted = draw(st.sampled_from((*UNDECLARED, *outside)))
    if dp == 1 and emitted is Layout.GATHERED_SHARDS:
        emitted = Layout.TP_SHARD
    declared = emitted if emitted in outside or (declare and draw(st.booleans())) else None
    real_rows = tuple(draw(st.integers(max(0, count - 2), count)) for count in told)
    context = StepContext(counts=told, real=real_rows, shard_sizes=_sizes(told, tp), declared=declared)
    return CaseStep(context=context, emitted=emitted)


def off_by_some(config: CaptureConfig, n: int) -> st.SearchStrategy[Call]:
    """Give a call that hands over up to 3 rows more or fewer than n; at times it still fits a layout."""
    layers = st.integers(0, config.layers - 1)
    rows = st.integers(max(0, n - 3), n + 3).filter(lambda other: other != n)
    return st.builds(Call, layer=layers, n=rows)
