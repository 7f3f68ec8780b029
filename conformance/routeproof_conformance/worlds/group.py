"""The TP group of a rank over a real process group."""

import importlib
from datetime import timedelta
from typing import Any

import numpy as np
from routeproof_spec import Rank, Topology

from routeproof_conformance.worlds.rank import CollectiveFault

_LOST = ("timed out", "timeout", "connection", "closed by peer", "socket", "aborted", "peer")
"""Words of a backend's message when a peer is late or gone, and not the input wrong."""


def distributed() -> Any:  # noqa: ANN401 - torch is optional
    """Give `torch.distributed`."""
    return importlib.import_module("torch.distributed")


class ProcessGroupCommunicator:
    """Collectives of one TP group; numpy arrays travel as tensors and come back as arrays."""

    def __init__(self, group: Any, ranks: list[int], device: str) -> None:  # noqa: ANN401
        """Wrap a process group of the global `ranks`."""
        self._dist = distributed()
        self._torch = importlib.import_module("torch")
        self._group = group
        self._ranks = ranks
        self.device = device
        self.rank = ranks.index(self._dist.get_rank())
        self.size = len(ranks)

    def all_gather(self, rows: Any) -> Any:  # noqa: ANN401
        """Concatenate the rows of all ranks along axis 0, in rank order."""
        tensor = self._tensor(rows)
        parts = [self._torch.empty_like(tensor) for _ in range(self.size)]
        self._collective(lambda: self._dist.all_gather(parts, tensor, group=self._group))
        return self._like(rows, self._torch.cat(parts))

    def gather(self, rows: Any, dst: int = 0) -> Any:  # noqa: ANN401
        """Concatenate at rank `dst`; None elsewhere."""
        tensor = self._tensor(rows)
        mine = self.rank == dst
        parts = [self._torch.empty_like(tensor) for _ in range(self.size)] if mine else None
        target = self._ranks[dst]
        self._collective(lambda: self._dist.gather(tensor, parts, dst=target, group=self._group))
        return None if parts is None else self._like(rows, self._torch.cat(parts))

    def _tensor(self, rows: Any) -> Any:  # noqa: ANN401
        if isinstance(rows, np.ndarray):
            return self._torch.tensor(rows, device=self.device)
        return rows

    def _like(self, rows: Any, tensor: Any) -> Any:  # noqa: ANN401
        return tensor.cpu().numpy() if isinstance(rows, np.ndarray) else tensor

    def _collective(self, call: Any) -> None:  # noqa: ANN401
        try:
            call()
            if self.device != "cpu":
                self._torch.cuda.synchronize()
        except RuntimeError as error:
            if any(word in str(error).lower() for word in _LOST):
                first = str(error).splitlines()[0]
                raise CollectiveFault("deadlock", f"a peer did not join the collective: {first}") from error
            raise


class GroupFence:
    """Waits for the ranks of a TP group, beside the group that the engine uses."""

    def __init__(self, group: Any) -> None:  # noqa: ANN401
        """Wrap a process group of its own."""
        self._dist = distributed()
        self._group = group

    def __call__(self) -> bool:
        """Wait; False where a rank did not come."""
        try:
            self._dist.barrier(group=self._group)
        except RuntimeError:
            return False
        return True


class Seat:
    """One rank's place in an initialised world: its communicator and its fence."""

    def __init__(self, topology: Topology, backend: str, timeout: float, device: str = "cpu") -> None:
        """Make the groups of all TP groups; every rank of the world does so, in the same order."""
        dist = distributed()
        index = dist.get_rank()
        limit = timedelta(seconds=timeout)
        ranks = topology.ranks()
        self.rank: Rank = ranks[index]
        for dp in range(topology.dp):
            members = [rank.index for rank in ranks if rank.dp == dp]
            group = dist.new_group(members, backend=backend, timeout=limit)
            fence = dist.new_group(members, backend="gloo", timeout=limit)
            if index in members:
                self.comm = ProcessGroupCommunicator(group, members, device)
                self.fence = GroupFence(fence)
