"""Ranks that somebody else launched: torchrun, Slurm, several machines.

Rank 0 judges and reports; the others play what it says. A rank that is lost ends the run:
who launched the ranks has to launch them again.
"""

import importlib
from datetime import timedelta
from typing import Any

from routeproof_reference import Producer, producers
from routeproof_spec import Case, Observation, Topology

from routeproof_conformance.engine import Engine
from routeproof_conformance.engines import Loaded
from routeproof_conformance.worlds import WorldError
from routeproof_conformance.worlds.group import Seat, distributed
from routeproof_conformance.worlds.rank import run_rank

START_SECONDS = 300.0
"""How long ranks may wait for each other at the start, and between cases."""


class LaunchedWorld:
    """The world of this process, one of its ranks."""

    def __init__(self, engine: Loaded, topology: Topology, backend: str, timeout: float) -> None:
        """Join: the environment says where, as torchrun sets it (RANK, WORLD_SIZE, MASTER_ADDR, ...).

        Raise WorldError where the number of ranks is not that of the topology.
        """
        self.name = f"torchrun-{backend}"
        self.engine = engine
        self.topology = topology
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        self._dist = distributed()
        self._dist.init_process_group("gloo", timeout=timedelta(seconds=START_SECONDS))
        size = self._dist.get_world_size()
        if size != topology.size:
            self._dist.destroy_process_group()
            raise WorldError(f"{size} ranks were launched, {topology} has {topology.size}")
        self.rank = self._dist.get_rank()
        device = "cpu"
        if backend == "nccl":
            device = f"cuda:{self.rank % torch.cuda.device_count()}"
            torch.cuda.set_device(device)
        self._seat = Seat(topology, backend, timeout, device)

    def run(self, engine: Engine, case: Case, steps: tuple[Producer, ...]) -> tuple[Observation, ...]:
        """Run a case on all ranks; called on rank 0 alone."""
        self._tell(("run", engine is self.engine.unasserted, case))
        mine = run_rank(engine, case, self._seat.rank, steps, self._seat.comm, self._seat.fence)
        everyone: list[Any] = [None] * self.topology.size
        try:
            self._dist.gather_object(mine, everyone)
        except RuntimeError as error:
            raise WorldError(f"a rank was lost: {str(error).splitlines()[0]}") from error
        return tuple(everyone)

    def serve(self) -> None:
        """Play what rank 0 says, until it ends; called on all other ranks."""
        while True:
            box: list[Any] = [None]
            self._dist.broadcast_object_list(box)
            what, unasserted, case = box[0]
            if what == "end":
                return
            engine = self.engine.unasserted if unasserted else self.engine.engine
            if engine is None:
                raise WorldError("the engine has no twin without assertions")
            seat = self._seat
            seen = run_rank(engine, case, seat.rank, producers(case), seat.comm, seat.fence)
            self._dist.gather_object(seen)

    def end(self) -> None:
        """Let the other ranks go; called on rank 0."""
        self._tell(("end", False, None))

    def close(self) -> None:
        """Leave the world."""
        self._dist.destroy_process_group()

    def _tell(self, what: tuple[str, bool, Case | None]) -> None:
        try:
            self._dist.broadcast_object_list([what])
        except RuntimeError as error:
            raise WorldError(f"a rank was lost: {str(error).splitlines()[0]}") from error
