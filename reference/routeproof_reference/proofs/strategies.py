"""Hypothesis strategies for steps, layout first: for any engine's own property tests.

Counts, TP size and layout are drawn, and n follows: a freely drawn n fits no layout and
finds nothing. Out of contract steps hand over a few rows more or fewer (`off_by_some`), or have
shard sizes that no group can be read by (`malformed_sizes`).
"""

from functools import cache
from typing import Literal

from hypothesis import strategies as st
from routeproof_spec import Call, CaptureConfig, CaseStep, Layout, Microbatch, StepContext, Topology

from routeproof_reference.proofs.scenario import right_sizes

TP_SIZES = (1, 2, 3, 4, 5, 8)
UNDECLARED = (Layout.CROSS_DP, Layout.FULL, Layout.GATHERED_SHARDS, Layout.TP_SHARD)
"""Layouts of the default set at any DP size."""
OUTSIDE = (Layout.PADDED_LOCAL, Layout.PADDED_TO_MAX)
"""Layouts that have to be declared."""


@cache
def topologies(tp: tuple[int, ...] = TP_SIZES, dp: int = 4) -> st.SearchStrategy[Topology]:
    """Give TP sizes of the tuple, DP sizes up to `dp`."""
    return st.builds(Topology, tp=st.sampled_from(tp), dp=st.integers(1, dp))


@cache
def counts(dp: int, largest: int, least: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Give token counts per DP rank; empty, single and equal ones often."""
    one = st.one_of(st.sampled_from([least, 1, 2]), st.integers(least, largest))
    several = st.tuples(*[one] * dp)
    return st.one_of(several, one.map(lambda count: (count,) * dp))


def _sizes(told: tuple[int, ...], tp: int) -> tuple[int, ...] | None:
    return right_sizes(told, tp) if len(told) > 1 else None


@cache
def layouts_told(topology: Topology, declare: bool = True) -> st.SearchStrategy[tuple[Layout, Layout | None]]:
    """Give a layout to emit, and the one declared: none, or the same; what must be declared is."""
    inferred = [layout for layout in UNDECLARED if topology.dp > 1 or layout is not Layout.GATHERED_SHARDS]
    plain = st.sampled_from([(layout, None) for layout in inferred])
    if not declare:
        return plain
    return st.one_of(plain, st.sampled_from([(layout, layout) for layout in (*inferred, *OUTSIDE)]))


@st.composite
def steps(
    draw: st.DrawFn,
    topology: Topology,
    config: CaptureConfig,
    declare: bool = True,
    split: bool = False,
    forms: bool = False,
    empty: bool = True,
) -> CaseStep:
    """Give a step in contract.

    Args:
        draw: Hypothesis's.
        topology: for all ranks.
        config: generated rows need E = 256, K = 8.
        declare: declare layouts at times, and emit those that must be.
        split: cut steps into two microbatches at times.
        forms: hand over ids of 64 bits, and strided ones, at times.
        empty: let DP ranks have no real tokens at times.

    """
    least = 0 if empty else 1
    dp, tp = topology.dp, topology.tp
    emitted, declared = draw(layouts_told(topology, declare))
    if split and draw(st.booleans()):
        half = config.max_tokens // 2
        parts = [draw(counts(dp, half, least)), draw(counts(dp, half, least))]
        real = [tuple(draw(st.integers(least, count)) for count in part) for part in parts]
        microbatches = tuple(
            Microbatch(offset=half * number, counts=part, real=kept, shard_sizes=_sizes(part, tp))
            for number, (part, kept) in enumerate(zip(parts, real, strict=True))
        )
        context = StepContext(
            counts=(config.max_tokens,) * dp,
            real=tuple(sum(kept) for kept in zip(*real, strict=True)),
            microbatches=microbatches,
            declared=declared,
        )
    else:
        told = draw(counts(dp, config.max_tokens, least))
        real_rows = tuple(draw(st.integers(max(least, count - 2), count)) for count in told)
        context = StepContext(counts=told, real=real_rows, shard_sizes=_sizes(told, tp), declared=declared)
    if not forms:
        return CaseStep(context=context, emitted=emitted)
    element: Literal["int32", "int64"] = draw(st.sampled_from(("int32", "int64")))
    return CaseStep(context=context, emitted=emitted, element=element, strided=draw(st.booleans()))


@st.composite
def other_real(draw: st.DrawFn, step: CaseStep) -> CaseStep:
    """Give the same step with other real tokens: a graph replayed for another batch."""
    told = step.context
    if not told.microbatches:
        real = tuple(draw(st.integers(0, count)) for count in told.counts or ())
        return step.model_copy(update={"context": told.model_copy(update={"real": real})})
    parts = tuple(
        part.model_copy(update={"real": tuple(draw(st.integers(0, count)) for count in part.counts)})
        for part in told.microbatches
    )
    real = tuple(sum(kept) for kept in zip(*(part.real for part in parts), strict=True))
    context = told.model_copy(update={"real": real, "microbatches": parts})
    return step.model_copy(update={"context": context})


def _moved(draw: st.DrawFn, sizes: list[int], rows: int, source: int) -> None:
    """Take rows from one size and give them to another."""
    target = draw(st.integers(0, len(sizes) - 2))
    sizes[source] -= rows
    sizes[target + (target >= source)] += rows


@st.composite
def malformed_sizes(draw: st.DrawFn, topology: Topology, config: CaptureConfig) -> CaseStep:
    """Give a step whose shard sizes cannot be read by (LAY-08).

    They do not divide among the DP ranks, one is negative, or the groups of all DP ranks but one have
    fewer than T rows. The one call hands over as many rows as they sum to, and must be rejected unless
    another layout reads it, or the group of the DP rank is the one; or it hands over what a layout
    needs that sizes are nothing to.
    """
    dp, tp = topology.dp, topology.tp
    told = draw(counts(dp, config.max_tokens))
    sizes = list(right_sizes(told, tp))
    fault = draw(st.sampled_from(("negative", "short", *(("uneven",) if dp > 1 else ()))))
    if len(sizes) == 1:
        sizes.append(0)
    if fault == "uneven":
        sizes.append(draw(st.sampled_from((0, 0, 1))))
    elif fault == "negative":
        source = draw(st.integers(0, len(sizes) - 1))
        _moved(draw, sizes, sizes[source] + draw(st.integers(1, 2)), source)
    else:
        group, keeper = len(sizes) // dp, draw(st.integers(0, dp - 1))
        for d in range(dp):
            if d != keeper or dp == 1:
                rows = sum(sizes[d * group : (d + 1) * group])
                kept = max(0, told[d] - draw(st.integers(1, 2)))
                sizes[d * group : (d + 1) * group] = [kept, *[0] * (group - 1)]
                sizes[keeper * group] += (rows - kept) * (dp > 1)
    calls = None
    emitted, declared = draw(layouts_told(topology, declare=False))
    if draw(st.integers(0, 3)):
        emitted = Layout.GATHERED_SHARDS
        declared = draw(st.sampled_from((None, emitted)))
        calls = (Call(layer=0, n=sum(sizes)),)
    context = StepContext(counts=told, real=told, shard_sizes=tuple(sizes), declared=declared)
    return CaseStep(context=context, emitted=emitted, calls=calls)


def off_by_some(config: CaptureConfig, n: int) -> st.SearchStrategy[Call]:
    """Give a call that hands over up to 3 rows more or fewer than n; at times it still fits a layout."""
    layers = st.integers(0, config.layers - 1)
    rows = st.integers(max(0, n - 3), n + 3).filter(lambda other: other != n)
    return st.builds(Call, layer=layers, n=rows)
