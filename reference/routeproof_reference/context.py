"""How counts arise: from the tokens of requests to the rows that a rank's tensors have.

Real tokens, per DP rank. A graph, or microbatches, pad all DP ranks to one size; eager
execution does not. The padded rows are T_d. Sequence parallelism cuts them into tp shards of
ceil(T_d / tp) rows, zero rows at the end, and cuts a padding mask likewise. A microbatch is a
range of the padded rows; a compact replay is a batch of its own, with fewer rows.

What a right context tells follows: T_d of each DP rank, the shard sizes, the token offset.
"""

from typing import NamedTuple

from routeproof_spec import (
    Batch,
    BatchPath,
    Call,
    CaptureConfig,
    CaseStep,
    Layout,
    Microbatch,
    Rank,
    Routing,
    StepContext,
    Topology,
)

from routeproof_reference.plan import Part, parts_of
from routeproof_reference.producer import Producer
from routeproof_reference.resolve import shard_rows
from routeproof_reference.rows import COLUMNS, EXPERTS, Kind

_SHARDED = (Layout.TP_SHARD, Layout.GATHERED_SHARDS)


class Tensors(NamedTuple):
    """What one rank's tensors really have in a step, or in one microbatch of it."""

    part: Part
    """Token offset, T and R of each DP rank, shard sizes (None where rows are not sharded)."""
    start: int
    """First own row where the rows of all DP ranks lie one after another: the sum of earlier T."""
    handed: int
    """n: rows that reach the capturer on this rank."""
    mask: tuple[bool, ...]
    """Padding mask of these rows, as sharded as they are: True where a row is no real token."""
    counted: bool
    """Whether the own rows are found only by the count: n rows are not simply the T_d own ones."""


def graph_slots(batch: Batch, tokens: tuple[int, ...]) -> int:
    """Give the slots of the smallest graph that holds the largest DP rank; raise ValueError if none does."""
    needed = shard_rows(max(tokens), batch.width)
    for slots in batch.graphs:
        if slots >= needed:
            return slots
    raise ValueError(f"{needed} slots fit no graph of {list(batch.graphs)}")


def physical(batch: Batch) -> tuple[int, ...]:
    """Give T per DP rank, in rows: one size for all in a graph or with microbatches, else as they are."""
    tokens = batch.real if batch.kept is None else batch.kept
    if batch.graphs:
        return (graph_slots(batch, tokens) * batch.width,) * len(tokens)
    if batch.path is BatchPath.MICROBATCHES:
        return (max(tokens),) * len(tokens)
    return tokens


def right_context(topology: Topology, batch: Batch) -> StepContext:
    """Give what a right context builder tells the capturer of a batch."""
    counts = physical(batch)
    real = batch.real if batch.kept is None else batch.kept
    if batch.microbatches == 1:
        return StepContext(counts=counts, real=real, shard_sizes=_sizes(topology, batch, counts))
    cut = counts[0] // batch.microbatches
    last = counts[0] - cut * (batch.microbatches - 1)
    parts = []
    for number in range(batch.microbatches):
        offset = cut * number
        rows = (last if number == batch.microbatches - 1 else cut,) * topology.dp
        parts.append(
            Microbatch(
                offset=offset,
                counts=rows,
                real=tuple(min(max(tokens - offset, 0), rows[0]) for tokens in real),
                shard_sizes=_sizes(topology, batch, rows),
            )
        )
    return StepContext(counts=counts, real=real, microbatches=tuple(parts))


def _sizes(topology: Topology, batch: Batch, counts: tuple[int, ...]) -> tuple[int, ...] | None:
    """Give the rows of each shard, DP-major, TP-minor; None where the layout has no shards."""
    if batch.emitted not in _SHARDED:
        return None
    return tuple(shard_rows(count, topology.tp) for count in counts for _ in range(topology.tp))


def tensors(topology: Topology, batch: Batch, rank: Rank) -> tuple[Tensors, ...]:
    """Give what the tensors of one rank have, for each microbatch in order."""
    context = right_context(topology, batch)
    extent = max(1, *(context.counts or ()))
    config = CaptureConfig(max_tokens=extent, layers=1, top_k=COLUMNS, experts=EXPERTS)
    producer = Producer(topology, config, CaseStep(context=context, emitted=batch.emitted), 0)
    found = []
    for number, part in enumerate(parts_of(context)):
        _, origins = producer.handed(rank, Call(layer=0, microbatch=number))
        counts = producer.counts(part)
        mask = tuple(int(origin[-1]) != Kind.REAL for origin in origins)
        local = topology.dp == 1 or batch.emitted in (Layout.FULL, Layout.TP_SHARD)
        whole = local and len(mask) == counts[rank.dp]
        found.append(Tensors(part, sum(counts[: rank.dp]), len(mask), mask, counted=not whole))
    return tuple(found)


def logical_ids(routing: Routing) -> tuple[tuple[int, ...], ...]:
    """Give the logical ids [rows][K] of the physical ones that a kernel gets (IDS-01)."""
    return tuple(tuple(routing.physical_to_logical[id_] for id_ in row) for row in routing.kernel)
