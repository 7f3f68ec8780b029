"""What one gather of shards moves: the form of a chunk, and the views that packing and reading it need.

A rank's chunk is a header and its shards of all layers, in the published element type, as bytes:
16 bytes of header, then one block [s, L, K] for each (micro)batch of which layers handed over
shards. The size follows from the counts alone, so it is the same on all ranks of the group.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from routeproof_spec import Rank

HEADER: Final = 4
LOW: Final = 0
HIGH: Final = 1
DIGEST: Final = 2
STEP: Final = 3
"""The header, in int32: lowest and highest id of the real rows, digest of the captured layers, step.

The step is its number at the rank: rows of another one would be read where a rank, given other row
counts than the rest of its group, has left a gather out (COL-01).
"""

HEADER_BYTES: Final = 4 * HEADER


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


class Form(NamedTuple):
    """How rows are packed, the same for all gathers of a capturer."""

    dtype: torch.dtype
    """The published element type."""
    shape: tuple[int, int]
    """(L, K)"""

    @property
    def token(self) -> int:
        """Bytes of a token."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def chunk(self, rows: int) -> int:
        """Bytes of a chunk with so many rows, aligned for the next one's header."""
        return -(-(HEADER_BYTES + rows * self.token) // HEADER_BYTES) * HEADER_BYTES

    def rows(self, chunk: torch.Tensor, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """View the blocks [s, L, K] in the bytes of a chunk."""
        at, found = HEADER_BYTES, []
        for block in blocks:
            size = block.shard * self.token
            found.append(chunk.narrow(0, at, size).view(self.dtype).view(block.shard, *self.shape))
            at += size
        return found


class Received:
    """What the publisher got: a chunk of each TP rank."""

    __slots__ = ("blocks", "headers", "pieces", "rows")

    def __init__(self, gathered: torch.Tensor, ranks: int, blocks: tuple[Block, ...], form: Form) -> None:
        """View the chunks of so many ranks, concatenated."""
        chunks = gathered.view(ranks, -1)
        self.blocks = blocks
        self.headers = chunks.narrow(1, 0, HEADER_BYTES).view(torch.int32)
        """[tp, HEADER]"""
        self.rows = [form.rows(chunk, blocks) for chunk in chunks.unbind(0)]
        """By TP rank and block: [s, L, K]."""
        self.pieces: list[tuple[int, int, torch.Tensor]] = []
        """Real rows in own-row order: the first one's number, how many, and where they are."""
        at = 0
        for number, block in enumerate(blocks):
            for rank in range(ranks):
                count = block.rows_of(rank, block.real)
                if count:
                    self.pieces.append((at, count, self.rows[rank][number].narrow(0, 0, count)))
                at += count


class Exchange:
    """All views of one gather of the same blocks, made once for the steps that repeat it."""

    __slots__ = ("copies", "header", "mine", "number", "received", "room", "spans")

    def __init__(
        self, storage: torch.Tensor, room: torch.Tensor, blocks: tuple[Block, ...], rank: Rank, form: Form
    ) -> None:
        """View the storage, and `room`: a chunk, or at the publisher a chunk of each TP rank."""
        tp = rank.topology.tp
        self.room = room if rank.publishes else None
        self.mine = room.narrow(0, 0, room.numel() // (tp if rank.publishes else 1))
        self.header = self.mine.narrow(0, 0, HEADER_BYTES).view(torch.int32)
        self.number = self.header.select(0, STEP)
        self.copies = [
            (rows, storage.narrow(0, block.offset, block.shard))
            for rows, block in zip(form.rows(self.mine, blocks), blocks, strict=True)
        ]
        """Pairs of a target in the chunk and its source in the storage."""
        self.spans = [
            storage.narrow(0, block.offset, count)
            for block in blocks
            if (count := block.rows_of(rank.tp, block.real))
        ]
        """Real rows of this rank's shards."""
        self.received = Received(room, tp, blocks, form) if rank.publishes else None


def note(spans: Sequence[torch.Tensor], digest: torch.Tensor, header: torch.Tensor) -> None:
    """Write the header of these rows, the step aside: device work only, no value is read."""
    low, high, mark, _ = header.unbind(0)
    if spans:
        torch.aminmax(spans[0], out=(low, high))
    else:
        header.zero_()
    for span in spans[1:]:
        lower, higher = torch.aminmax(span)
        torch.minimum(low, lower, out=low)
        torch.maximum(high, higher, out=high)
    mark.copy_(digest)
