"""One rank of a run that torchrun or Slurm launched; rank 0 reports.

`torchrun --nnodes N --nproc-per-node M -m routeproof_conformance.rank --topology tp2dp2`
"""

import os
import time
from typing import Annotated, TextIO

import typer
from rich.console import Console
from routeproof_reference import Producer
from routeproof_spec import Case, Observation, Topology

from routeproof_conformance.campaign import Plan
from routeproof_conformance.cases import select
from routeproof_conformance.engine import Engine
from routeproof_conformance.engines import EngineError, load
from routeproof_conformance.parallel import collect, preflight
from routeproof_conformance.report.document import document
from routeproof_conformance.report.stream import report_stream
from routeproof_conformance.report.terminal import console, show_case, show_run
from routeproof_conformance.runner import Run, Runner
from routeproof_conformance.worlds import WorldError
from routeproof_conformance.worlds.launched import LaunchedWorld
from routeproof_conformance.worlds.processes import TIMEOUT_SECONDS

_BACKENDS = ("gloo", "nccl")


def main(
    topology: Annotated[str, typer.Option(help="Topology of the launched ranks, such as tp2dp2.")],
    engine: Annotated[str, typer.Option(help="Engine to judge.")] = "routeproof",
    backend: Annotated[str, typer.Option(help="gloo or nccl.")] = "gloo",
    rule: Annotated[str | None, typer.Option(help="Rule, pattern or group.")] = None,
    case: Annotated[str | None, typer.Option(help="Case id; * and ? are wild.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a rank may wait.")] = TIMEOUT_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on rank 0.")] = False,
) -> None:
    """Play one rank; exit codes as `routeproof run`, on every rank that is not rank 0 it is 0."""
    try:
        chosen = _chosen(topology, backend, rule, case)
        loaded = load(engine)
        world = LaunchedWorld(loaded, chosen[0].topology, backend, timeout)
    except (EngineError, WorldError, ValueError) as error:
        if os.environ.get("RANK", "0") == "0":
            typer.echo(f"routeproof: {error}", err=True)
        raise typer.Exit(2) from error
    if world.rank != 0:
        world.serve()
        world.close()
        return
    raise typer.Exit(_lead(Run(loaded, (world.name,)), world, chosen, as_json=as_json))


def _chosen(topology: str, backend: str, rule: str | None, case: str | None) -> tuple[Case, ...]:
    if "RANK" not in os.environ:
        raise EngineError("no RANK in the environment: launch with torchrun, or use `routeproof run`")
    if backend not in _BACKENDS:
        raise EngineError(f"--backend {backend}: expected {' or '.join(_BACKENDS)}")
    found = tuple(select(case, rule, (Topology.parse(topology),)))
    chosen = Plan(found, named_topologies=True).real_cases
    if not chosen:
        raise EngineError(f"no case matches --topology {topology} --rule {rule} --case {case}")
    return chosen


def _lead(run: Run, world: LaunchedWorld, chosen: tuple[Case, ...], *, as_json: bool) -> int:
    """Judge all cases on rank 0 and report."""
    with report_stream() as stream:
        return _report(run, world, chosen, stream, as_json=as_json)


def _report(
    run: Run, world: LaunchedWorld, chosen: tuple[Case, ...], stream: TextIO, *, as_json: bool
) -> int:
    out = Console(quiet=True) if as_json else console(stream)
    start = time.monotonic()
    try:
        preflight(run.engine)
    except EngineError as error:
        world.end()
        typer.echo(f"routeproof: {error}", err=True)
        return 2
    runner = Runner(run.engine, _Careful(world))
    for case, found in collect(run, chosen, (runner.run(item) for item in chosen)):
        show_case(out, run, case, found)
    run.seconds = time.monotonic() - start
    show_run(out, run)
    if as_json:
        typer.echo(document(run), file=stream)
    if not run.cut_short:
        world.end()
        world.close()
    return run.exit_code


class _Careful:
    """The world, which ends the run after a case that left its groups unusable."""

    def __init__(self, world: LaunchedWorld) -> None:
        self.world = world
        self.name = world.name
        self.broken = ""

    def run(self, engine: Engine, case: Case, steps: tuple[Producer, ...]) -> tuple[Observation, ...]:
        """Run a case unless an earlier one broke the world."""
        if self.broken:
            raise WorldError(f"case {self.broken} lost a collective: launch again without it to run the rest")
        seen = self.world.run(engine, case, steps)
        faults = ("deadlock", "mismatch")
        if any(s.failure is not None and s.failure.kind in faults for o in seen for s in o.steps):
            self.broken = case.id
        return seen


if __name__ == "__main__":
    typer.run(main)
