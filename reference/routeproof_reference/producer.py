"""What each rank is handed, built from the truth, for every layout.

Producers cut, pad and concatenate *origins* (which token of which DP rank) as the seven
layouts say; the ids of a row follow from its origin, generated or given by the case.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from routeproof_spec import Call, CaptureConfig, Case, CaseStep, Layout, Rank, StepContext, Topology

from routeproof_reference.plan import Part, parts_of
from routeproof_reference.resolve import shard_rows
from routeproof_reference.rows import COLUMNS, EXPERTS, Kind, Origins, Rows, origins, spell

_SHARDED = (Layout.TP_SHARD, Layout.GATHERED_SHARDS)
_LAYER, _DP, _TOKEN, _KIND = 1, 2, 4, 5


class Producer:
    """The producers of all ranks in one step of a case."""

    def __init__(self, topology: Topology, config: CaptureConfig, step: CaseStep, index: int) -> None:
        """Take step `index` of a case; raise ValueError where its ids do not fit the configuration."""
        self.topology = topology
        self.config = config
        self.step = step
        self.index = index
        self.parts = parts_of(step.context)
        self.calls = step.all_calls(config)
        if step.ids is None and (config.top_k, config.experts) != (COLUMNS, EXPERTS):
            raise ValueError(f"step {index}: generated rows need K = {COLUMNS} and E = {EXPERTS}")
        self._given = None if step.ids is None else [self._truth(dp) for dp in self._dp_ranks()]
        self._emitted: dict[tuple[int, int, int], Origins] = {}
        self._handed: dict[tuple[int | None, ...], tuple[Rows, Origins]] = {}

    def _dp_ranks(self) -> range:
        return range(self.topology.dp)

    def _truth(self, dp: int) -> Rows:
        given = (self.step.ids or ())[dp]
        if len(given) != self.extent(dp):
            raise ValueError(
                f"step {self.index}: ids of {len(given)} tokens, {self.extent(dp)} tokens at DP rank {dp}"
            )
        return np.array(given, dtype=np.int64).reshape(len(given), self.config.layers, self.config.width)

    def extent(self, dp: int) -> int:
        """Give the physical rows of the whole step at a DP rank; the real ones if none is counted."""
        context = self.step.context
        return context.real[dp] if context.counts is None else context.counts[dp]

    def counts(self, part: Part) -> tuple[int, ...]:
        """Give T per DP rank as the producer knows it, told to the capturer or not."""
        return part.counts or tuple(self.extent(dp) for dp in self._dp_ranks())

    def own(self, dp: int, part: Part) -> Origins:
        """Give the origins of the own rows of a part, in token order."""
        count = self.counts(part)[dp]
        tokens = np.arange(count)
        sharded = self.step.emitted in _SHARDED and count > 0
        shard = tokens // shard_rows(count, self.topology.tp) if sharded else 0
        table = origins(self.index, dp, shard, tokens + part.offset, Kind.REAL)
        table[part.real[dp] :, _KIND] = Kind.GRAPH_PADDING
        return table

    def _block(self, dp: int, part: Part, length: int) -> Origins:
        """Give the own rows of a DP rank, padded to `length`."""
        own = self.own(dp, part)
        padding = np.arange(length - len(own))
        pad = origins(self.index, dp, self.topology.tp - 1, padding, Kind.SHARD_PADDING)
        return np.concatenate([own, pad])

    def _emit(self, rank: Rank, part: Part) -> Origins:
        """Give the rows that the layout puts on this rank."""
        layout, tp = self.step.emitted, self.topology.tp
        counts = self.counts(part)
        padded = [shard_rows(count, tp) * tp for count in counts]
        if layout in (Layout.FULL, Layout.UNCOUNTED):
            return self.own(rank.dp, part)
        if layout in (Layout.PADDED_LOCAL, Layout.TP_SHARD):
            block = self._block(rank.dp, part, padded[rank.dp])
            s = shard_rows(counts[rank.dp], tp)
            return block if layout is Layout.PADDED_LOCAL else block[rank.tp * s : (rank.tp + 1) * s]
        lengths = {
            Layout.CROSS_DP: list(counts),
            Layout.GATHERED_SHARDS: padded,
            Layout.PADDED_TO_MAX: [max(counts)] * len(counts),
        }[layout]
        return np.concatenate([self._block(dp, part, lengths[dp]) for dp in self._dp_ranks()])

    def handed(self, rank: Rank, call: Call) -> tuple[Rows, Origins]:
        """Give the ids [n, K + shared] that one call hands over on one rank, and their origins.

        Both are kept and shared: not to be written to.
        """
        seat = rank.tp if self.step.emitted is Layout.TP_SHARD else 0
        key = (rank.dp, seat, call.layer, call.microbatch, call.n, call.width)
        if key not in self._handed:
            table = self._call(rank, call)
            self._handed[key] = self._widen(self.rows(table), call), table
        return self._handed[key]

    def _call(self, rank: Rank, call: Call) -> Origins:
        number = min(call.microbatch, len(self.parts) - 1)
        key = (rank.dp, rank.tp if self.step.emitted is Layout.TP_SHARD else 0, number)
        if key not in self._emitted:
            self._emitted[key] = self._emit(rank, self.parts[number])
        table = self._emitted[key].copy()
        if call.n is not None:
            extra = np.arange(max(0, call.n - len(table)))
            filler = origins(self.index, rank.dp, 0, extra, Kind.FILLER)
            table = np.concatenate([table[: call.n], filler])
        table[:, _LAYER] = call.layer % self.config.layers
        return table

    def rows(self, table: Origins) -> Rows:
        """Give the ids [n, K + shared] of origins; padding of a case with given ids is E - 1 repeated."""
        if self._given is None:
            rows = spell(table)
            shared = np.arange(self.config.shared_columns) + self.config.experts
            return np.concatenate([rows, np.broadcast_to(shared, (len(rows), len(shared)))], axis=1)
        rows = np.full((len(table), self.config.width), self.config.experts - 1, np.int64)
        physical = table[:, _KIND] <= Kind.GRAPH_PADDING
        for dp, given in enumerate(self._given):
            mine = physical & (table[:, _DP] == dp)
            rows[mine] = given[table[mine, _TOKEN], table[mine, _LAYER]]
        return rows

    @staticmethod
    def _widen(rows: Rows, call: Call) -> Rows:
        if call.width is None:
            return rows
        extra = max(0, call.width - rows.shape[1])
        return np.pad(rows, ((0, 0), (0, extra)), mode="edge")[:, : call.width]

    def ids(self, rank: Rank, call: Call) -> NDArray[np.integer]:
        """Give the ids as the world hands them over: element type and strides as the step says."""
        rows = self.handed(rank, call)[0].astype(self.step.element)
        return np.repeat(rows, 2, axis=1)[:, ::2] if self.step.strided else rows

    def context(self, rank: Rank) -> StepContext:
        """Give the rank's view of the step: its padding mask is as sharded as its rows (LAY-07)."""
        if not self.step.mask:
            return self.step.context
        table = self.handed(rank, self.calls[0])[1]
        mask = tuple(bool(kind != Kind.REAL) for kind in table[:, _KIND])
        return self.step.context.model_copy(update={"padding_mask": mask})


_producer = lru_cache(maxsize=4096)(Producer)


def producers(case: Case) -> tuple[Producer, ...]:
    """Give the producers of every step; equal steps share one."""
    return tuple(_producer(case.topology, case.config, step, index) for index, step in enumerate(case.steps))
