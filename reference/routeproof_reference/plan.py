"""All checks of one `capture` call, before any collective and any write (COL-05, BUF-02)."""

from typing import NamedTuple

from routeproof_spec import (
    CapacityError,
    CaptureConfig,
    LayerIndexError,
    Layout,
    LayoutError,
    Rank,
    StepContext,
    StepError,
    WidthError,
)

from routeproof_reference.resolve import resolve


class Plan(NamedTuple):
    """What to do with the rows of one call."""

    layout: Layout
    start: int
    """First own row among the rows handed over or gathered."""
    rows: int
    """Own rows: T_d, or n where no count is known."""
    offset: int
    """First buffer row."""
    gather: bool


class Part(NamedTuple):
    """The counts of a step, or of one microbatch of it."""

    offset: int
    counts: tuple[int, ...] | None
    real: tuple[int, ...]
    shard_sizes: tuple[int, ...] | None


def parts_of(step: StepContext) -> tuple[Part, ...]:
    """Split a step into its microbatches; a step without any is one part at offset 0."""
    if not step.microbatches:
        return (Part(0, step.counts, step.real, step.shard_sizes),)
    return tuple(Part(m.offset, m.counts, m.real, m.shard_sizes) for m in step.microbatches)


def check_capacity(config: CaptureConfig, rank: Rank, step: StepContext) -> None:
    """Refuse a step that is larger than the buffer (BUF-04).

    Its rows are its whole extent, microbatches or not; without counts, at least its real rows.
    """
    rows = (step.real if step.counts is None else step.counts)[rank.dp]
    if rows > config.max_tokens:
        raise CapacityError(f"step of {rows} rows at DP rank {rank.dp}, buffer of {config.max_tokens} rows")


def plan(
    config: CaptureConfig, rank: Rank, step: StepContext, layer: int, microbatch: int, n: int, width: int
) -> Plan:
    """Check one call and say how to restore its own rows.

    Args:
        config: sizes of the capturer.
        rank: who calls.
        step: the step's counts.
        layer: layer index, in [0, L) if right.
        microbatch: number of the microbatch; 0 where the step has none.
        n: rows of the ids tensor.
        width: columns of the ids tensor, K + shared if right.

    Raises:
        LayerIndexError: BUF-03.
        StepError: the step has no such microbatch.
        WidthError: BUF-09.
        LayoutError, ShardGroupError: see `resolve`.
        CapacityError: BUF-04.

    """
    if not 0 <= layer < config.layers:
        raise LayerIndexError(f"layer {layer} is outside [0, {config.layers})")
    parts = parts_of(step)
    if not 0 <= microbatch < len(parts):
        raise StepError(f"microbatch {microbatch} of a step that has {len(parts)}")
    if width != config.width:
        raise WidthError(
            f"ids of layer {layer} have {width} columns, expected K = {config.top_k} "
            f"+ {config.shared_columns} shared"
        )
    part = parts[microbatch]
    if part.counts is None:
        if step.declared not in (None, Layout.UNCOUNTED):
            raise LayoutError(f"{step.declared} is declared, but no token count is known")
        result = Plan(Layout.UNCOUNTED, 0, n, part.offset, gather=False)
    else:
        result = _counted(config, rank, step, part, part.counts, n)
    if result.offset + result.rows > config.max_tokens:
        raise CapacityError(
            f"layer {layer} has rows up to {result.offset + result.rows}, buffer of {config.max_tokens} rows"
        )
    return result


def _counted(
    config: CaptureConfig, rank: Rank, step: StepContext, part: Part, counts: tuple[int, ...], n: int
) -> Plan:
    """Flatten the counts for `resolve`."""
    if step.declared is Layout.UNCOUNTED:
        raise LayoutError(f"{step.declared} is declared, but the token counts {counts} are known")
    dp = len(counts)
    sizes = part.shard_sizes
    formed = sizes is not None and len(sizes) % dp == 0 and min(sizes, default=0) >= 0
    group = len(sizes) // dp if sizes is not None else 0
    layouts = config.layouts_at(dp) if step.declared is None else frozenset({step.declared})
    found = resolve(
        n=n,
        own=counts[rank.dp],
        before=sum(counts[: rank.dp]),
        total=sum(counts),
        largest=max(counts),
        dp_rank=rank.dp,
        dp=dp,
        tp=rank.topology.tp,
        has_sizes=sizes is not None,
        sizes_formed=formed,
        sizes_before=sum(sizes[: rank.dp * group]) if sizes is not None else 0,
        sizes_own=sum(sizes[rank.dp * group : (rank.dp + 1) * group]) if sizes is not None else 0,
        sizes_total=sum(sizes) if sizes is not None else 0,
        cross_dp=Layout.CROSS_DP in layouts,
        full=Layout.FULL in layouts,
        gathered_shards=Layout.GATHERED_SHARDS in layouts,
        padded_to_max=Layout.PADDED_TO_MAX in layouts,
        tp_shard=Layout.TP_SHARD in layouts,
        padded_local=Layout.PADDED_LOCAL in layouts,
    )
    return Plan(found.layout, found.start, counts[rank.dp], part.offset, found.gather)
