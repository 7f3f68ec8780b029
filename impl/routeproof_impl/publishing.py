"""From rows on the device to a snapshot on the host, at the publisher."""

import torch
from routeproof_spec import CaptureConfig, Rank

from routeproof_impl.copying import Copier
from routeproof_impl.exchange import Received
from routeproof_impl.packing import Packer
from routeproof_impl.snapshot import Ring, Snapshot
from routeproof_impl.steps import OpenStep


class Publisher:
    """Makes the snapshots of one DP rank."""

    def __init__(
        self, config: CaptureConfig, rank: Rank, packer: Packer, device: torch.device, snapshots: int
    ) -> None:
        """Allocate the first host buffers; at most `snapshots`."""
        self._config = config
        self._rank = rank
        self._packer = packer
        self._copier = Copier(device)
        shape = (config.max_tokens, config.layers, config.top_k)
        self._ring = Ring(shape, packer.dtype, rank.topology.tp, snapshots, pinned=self._copier.pinned)

    @property
    def host_bytes(self) -> int:
        """Host memory of the ring."""
        return self._ring.nbytes

    def before_reuse(self) -> None:
        """Have the device wait until the packer's memory has been copied."""
        self._copier.before_reuse()

    def publish(
        self, storage: torch.Tensor, step: OpenStep, received: Received | None, digest: torch.Tensor
    ) -> Snapshot:
        """Copy the real rows to the host, out of what was gathered or, where that is None, the storage.

        Raise CapacityError if too many snapshots are in flight.
        """
        spans = step.context.spans(self._rank.dp)
        tokens = sum(stop - start for start, stop in spans)
        shape = (tokens, self._config.layers, self._config.top_k)
        if tokens == 0:
            return Snapshot(None, shape, self._config.experts, ())
        lease = self._ring.take()
        slot, copied, ranks = lease.slot, None, 1
        if received is not None:
            ranks = self._rank.topology.tp
            copied = self._copier.copy(_pieces(received, slot.rows, slot.headers))
        elif self._copier.direct:
            self._packer.narrow(storage, spans, digest, (slot.rows[:tokens], slot.headers[0]))
        else:
            rows, header = self._packer.narrow(storage, spans, digest)
            copied = self._copier.copy([(slot.rows[:tokens], rows), (slot.headers[0], header)])
        return Snapshot(lease, shape, self._config.experts, range(ranks), copied)


def _pieces(
    received: Received, rows: torch.Tensor, headers: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pair contiguous pieces of what was gathered with their place on the host."""
    pairs = [(rows.narrow(0, at, count), piece) for at, count, piece in received.pieces]
    return [*zip(headers.unbind(0), received.headers.unbind(0), strict=True), *pairs]
