"""Rows of a step, narrowed and packed for one gather, and put back where they came from."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import torch
from routeproof_spec import CaptureConfig, Rank

from routeproof_impl.communicator import Communicator, gathers_into
from routeproof_impl.exchange import (
    DIGEST,
    HEADER_BYTES,
    HIGH,
    LOW,
    STEP,
    Block,
    Exchange,
    Form,
    Received,
    note,
)

KEPT: Final = 64
"""Gathers whose views are kept."""


class Packer:
    """Narrows rows into one preallocated buffer and gathers them."""

    def __init__(
        self, config: CaptureConfig, rank: Rank, comm: Communicator, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate what the largest step without microbatches needs; more is allocated when it comes."""
        self._comm = gathers_into(comm)
        self._rank = rank
        self._experts = config.experts
        self._form = Form(dtype, (config.layers, config.top_k))
        self._exchanges: dict[tuple[Block, ...], Exchange] = {}
        tp = rank.topology.tp
        size = self._form.chunk(-(-config.max_tokens // tp)) * (tp if rank.publishes else 1)
        self._bytes = torch.zeros(size, dtype=torch.uint8, device=device)

    @property
    def dtype(self) -> torch.dtype:
        """The published element type."""
        return self._form.dtype

    @property
    def nbytes(self) -> int:
        """Device memory in use."""
        return self._bytes.numel()

    def gather(
        self, storage: torch.Tensor, blocks: tuple[Block, ...], digest: torch.Tensor, number: int
    ) -> Received | None:
        """Send the shards of all layers to TP rank 0, in one collective; None on other ranks.

        `number`: that of the step. Every rank of the group calls it with the same blocks. Raise
        RuntimeError where the communicator gives something else than a gather.
        """
        exchange = self._exchanges.get(blocks) or self._exchange(storage, blocks)
        for target, source in exchange.copies:
            target.copy_(source)
        note(exchange.spans, digest, exchange.header)
        exchange.number.fill_(number)
        self._comm.gather_into(exchange.mine, exchange.room)
        return exchange.received

    def narrow(
        self,
        storage: torch.Tensor,
        spans: Sequence[tuple[int, int]],
        digest: torch.Tensor,
        into: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Narrow whole rows [start, stop) of the storage, one span after the other.

        Give the rows [R, L, K] and the header [HEADER]; in the packer's own memory, or in that
        of `into`.
        """
        total = sum(stop - start for start, stop in spans)
        if into is None:
            room = self._room(HEADER_BYTES + total * self._form.token)
            header = room.narrow(0, 0, HEADER_BYTES).view(torch.int32)
            rows = room.narrow(0, HEADER_BYTES, total * self._form.token).view(self.dtype)
            rows = rows.view(total, *self._form.shape)
        else:
            rows, header = into
        at, sources = 0, []
        for start, stop in spans:
            if stop > start:
                source = storage.narrow(0, start, stop - start)
                rows.narrow(0, at, stop - start).copy_(source)
                sources.append(source)
                at += stop - start
        note(sources, digest, header)
        return rows, header

    def restore(
        self, storage: torch.Tensor, received: Received, layers: Sequence[Collection[int]] | None = None
    ) -> None:
        """Write gathered rows back into the storage, in own-row order.

        `layers`: those of each block to write; None: all. The shard of this rank is in its place
        already. Rows of a rank that had an id out of range, other layers than this one or another step read
        -1 throughout.
        """
        headers = received.headers
        wrong = (
            (headers.select(1, LOW) < 0)
            | (headers.select(1, HIGH) >= self._experts)
            | (headers.select(1, DIGEST) != headers.select(0, 0).select(0, DIGEST))
            | (headers.select(1, STEP) != headers.select(0, 0).select(0, STEP))
        )
        for number, block in enumerate(received.blocks):
            ranges = [(0, storage.shape[1])] if layers is None else list(runs(sorted(layers[number])))
            for rank in range(1, self._rank.topology.tp):
                count = block.rows_of(rank, block.own)
                if count:
                    rows = received.rows[rank][number].narrow(0, 0, count).to(torch.int32)
                    rows.masked_fill_(wrong.select(0, rank), -1)
                    target = storage.narrow(0, block.offset + rank * block.shard, count)
                    for low, high in ranges:
                        target.narrow(1, low, high - low).copy_(rows.narrow(1, low, high - low))

    def clear(self) -> None:
        """Release the buffer, and the views of the storage."""
        self._exchanges.clear()
        self._bytes = self._bytes.new_empty(0)

    def _exchange(self, storage: torch.Tensor, blocks: tuple[Block, ...]) -> Exchange:
        """Make the views of a gather, and keep them."""
        ranks = self._rank.topology.tp if self._rank.publishes else 1
        room = self._room(ranks * self._form.chunk(sum(block.shard for block in blocks)))
        if len(self._exchanges) >= KEPT:
            del self._exchanges[next(iter(self._exchanges))]
        with torch.inference_mode(mode=False):
            made = Exchange(storage, room, blocks, self._rank, self._form)
        self._exchanges[blocks] = made
        return made

    def _room(self, size: int) -> torch.Tensor:
        if size > self._bytes.numel():
            self._exchanges.clear()
            with torch.inference_mode(mode=False):
                self._bytes = self._bytes.new_empty(size)
        return self._bytes.narrow(0, 0, size)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into ranges [low, high) of neighbours."""
    low = 0
    for index, number in enumerate(numbers):
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield numbers[low], number + 1
            low = index + 1
