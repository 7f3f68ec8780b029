"""The rows of a step, narrowed and packed: what one gather moves, and how it is read at the publisher.

A rank's chunk is a header and its shards of all layers, in the published element type, as bytes:
16 bytes of header, then one block [s, L, K] for each (micro)batch of which layers handed over
shards. The size follows from the counts alone, so it is the same on all ranks of the group.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple, cast

import torch
from routeproof_spec import CaptureConfig, Rank

from routeproof_impl.communicator import Communicator, GathersInto

HEADER: Final = 4
LOW: Final = 0
HIGH: Final = 1
DIGEST: Final = 2
"""The header, in int32: lowest and highest id of the real rows, digest of the captured layers (twice)."""

_HEADER_BYTES: Final = 4 * HEADER


class Block(NamedTuple):
    """The shards of one (micro)batch."""

    part: int
    """Its number."""
    offset: int
    """First row in the storage."""
    shard: int
    """Rows of a shard, s."""
    own: int
    """Tokens, T."""
    real: int
    """Real tokens, R."""

    def rows_of(self, rank: int, limit: int) -> int:
        """Give how many of the first `limit` tokens are in the shard of a TP rank."""
        return min(max(limit - rank * self.shard, 0), self.shard)


class Received(NamedTuple):
    """What the publisher got: a row of bytes for each TP rank."""

    chunks: torch.Tensor
    blocks: tuple[Block, ...]
    dtype: torch.dtype
    shape: tuple[int, int]
    """(L, K)"""

    def headers(self) -> torch.Tensor:
        """Give the headers [tp, HEADER] in int32."""
        return self.chunks.narrow(1, 0, _HEADER_BYTES).view(torch.int32)

    def rows(self, number: int, rank: int) -> torch.Tensor:
        """Give block `number` of a TP rank, [s, L, K]."""
        layers, width = self.shape
        item = layers * width * self.dtype.itemsize
        start = _HEADER_BYTES + item * sum(block.shard for block in self.blocks[:number])
        block = self.chunks.select(0, rank).narrow(0, start, item * self.blocks[number].shard)
        return block.view(self.dtype).view(-1, layers, width)


class Packer:
    """Narrows rows into one preallocated buffer and gathers them."""

    def __init__(
        self, config: CaptureConfig, rank: Rank, comm: Communicator, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate what the largest step without microbatches needs; more is allocated when it comes."""
        self._comm = comm
        self._rank = rank
        self._experts = config.experts
        self._shape = (config.layers, config.top_k)
        self.dtype = dtype
        self._token = config.layers * config.top_k * dtype.itemsize
        self._into = cast("GathersInto", comm) if hasattr(comm, "gather_into") else None
        shard = -(-config.max_tokens // rank.topology.tp)
        chunk = _aligned(_HEADER_BYTES + shard * self._token)
        size = chunk * (rank.topology.tp if rank.publishes else 1)
        self._bytes = torch.zeros(size, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """Device memory in use."""
        return self._bytes.numel()

    def gather(
        self, storage: torch.Tensor, blocks: tuple[Block, ...], digest: torch.Tensor
    ) -> Received | None:
        """Send the shards of all layers to TP rank 0, in one collective; None on other ranks.

        Every rank of the group calls it with the same blocks. Raise RuntimeError where the
        communicator gives something else than a gather.
        """
        tp = self._rank.topology.tp
        chunk = _aligned(_HEADER_BYTES + self._token * sum(block.shard for block in blocks))
        room = self._room(chunk * (tp if self._rank.publishes else 1))
        mine = room.narrow(0, 0, chunk)
        at, spans = _HEADER_BYTES, []
        for block in blocks:
            target = mine.narrow(0, at, block.shard * self._token).view(self.dtype)
            target.view(-1, *self._shape).copy_(storage.narrow(0, block.offset, block.shard))
            at += block.shard * self._token
            spans.append((block.offset, block.offset + block.rows_of(self._rank.tp, block.real)))
        note(storage, spans, digest, mine.narrow(0, 0, _HEADER_BYTES).view(torch.int32))
        if self._into is not None:
            self._into.gather_into(mine, room if self._rank.publishes else None)
            gathered = room if self._rank.publishes else None
        else:
            gathered = self._comm.gather(mine)
        if not self._rank.publishes:
            return None
        if gathered is None or tuple(gathered.shape) != (tp * chunk,) or gathered.dtype != torch.uint8:
            found = None if gathered is None else (gathered.dtype, tuple(gathered.shape))
            raise RuntimeError(f"the communicator gathered {found}, expected {tp * chunk} bytes")
        return Received(gathered.view(tp, chunk), blocks, self.dtype, self._shape)

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
            room = self._room(_HEADER_BYTES + total * self._token)
            header = room.narrow(0, 0, _HEADER_BYTES).view(torch.int32)
            rows = room.narrow(0, _HEADER_BYTES, total * self._token).view(self.dtype)
            rows = rows.view(total, *self._shape)
        else:
            rows, header = into
        at = 0
        for start, stop in spans:
            rows.narrow(0, at, stop - start).copy_(storage.narrow(0, start, stop - start))
            at += stop - start
        note(storage, spans, digest, header)
        return rows, header

    def restore(
        self, storage: torch.Tensor, received: Received, layers: Sequence[Collection[int]] | None = None
    ) -> None:
        """Write gathered rows back into the storage, in own-row order.

        `layers`: those of each block to write; None: all. The shard of this rank is in its place
        already. Rows of a rank that had an id out of range or other layers than this one read -1
        throughout.
        """
        headers = received.headers()
        wrong = (
            (headers.select(1, LOW) < 0)
            | (headers.select(1, HIGH) >= self._experts)
            | (headers.select(1, DIGEST) != headers.select(0, 0).select(0, DIGEST))
        )
        for number, block in enumerate(received.blocks):
            ranges = [(0, storage.shape[1])] if layers is None else list(runs(sorted(layers[number])))
            for rank in range(1, self._rank.topology.tp):
                count = block.rows_of(rank, block.own)
                if count:
                    rows = received.rows(number, rank).narrow(0, 0, count).to(torch.int32)
                    rows.masked_fill_(wrong.select(0, rank), -1)
                    target = storage.narrow(0, block.offset + rank * block.shard, count)
                    for low, high in ranges:
                        target.narrow(1, low, high - low).copy_(rows.narrow(1, low, high - low))

    def _room(self, size: int) -> torch.Tensor:
        if size > self._bytes.numel():
            with torch.inference_mode(mode=False):
                self._bytes = self._bytes.new_empty(size)
        return self._bytes.narrow(0, 0, size)


def note(
    storage: torch.Tensor, spans: Sequence[tuple[int, int]], digest: torch.Tensor, header: torch.Tensor
) -> None:
    """Write the header of the rows in these spans: device work only, no value is read."""
    found = [torch.aminmax(storage.narrow(0, start, stop - start)) for start, stop in spans if stop > start]
    if not found:
        header.zero_()
        header.select(0, DIGEST).copy_(digest)
        return
    low, high = found[0]
    for lower, higher in found[1:]:
        low, high = torch.minimum(low, lower), torch.maximum(high, higher)
    torch.stack((low, high, digest, digest), out=header)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into ranges [low, high) of neighbours."""
    low = 0
    for index, number in enumerate(numbers):
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield numbers[low], number + 1
            low = index + 1


def _aligned(size: int) -> int:
    return -(-size // _HEADER_BYTES) * _HEADER_BYTES
