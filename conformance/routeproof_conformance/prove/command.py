"""The `prove` command."""

import time
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from routeproof_reference.proofs.obligation import Result
from routeproof_reference.proofs.registry import BY_ID

from routeproof_conformance import parallel
from routeproof_conformance.engines import EngineError
from routeproof_conformance.prove import runner
from routeproof_conformance.prove.targets import names_of
from routeproof_conformance.report import prove as report
from routeproof_conformance.report.terminal import console

OWN = ("reference", "routeproof")
WIDE = 150


def prove(
    engine: Annotated[
        str | None,
        typer.Option(
            help="reference, routeproof, vllm==X, sglang==X or one of its deployments ('sglang==X plain', "
            "dp-attention, decode-graph, deepep); the first two if left out."
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Obligations, separated by commas.")] = None,
    deep: Annotated[bool, typer.Option(help="Wider scopes; takes minutes.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; the cores at hand if left out.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Establish the contract's obligations by enumeration, SMT, CrossHair, Hypothesis and state search.

    Exit 0: every MUST is established; 1: one is refuted or open; 2: usage, or code of an unknown
    shape; 3: nothing was examined, or cut short.
    """
    chosen = _chosen(only)
    start = time.monotonic()
    err = Console(stderr=True, quiet=as_json)
    listed: list[runner.Task] = []
    results: list[Result] = []
    try:
        listed = runner.tasks(OWN if engine is None else names_of(engine), deep, chosen)
        with closing(runner.run(listed, deep, jobs or parallel.cores())) as coming:
            for found in coming:
                results.append(found)
                if not err.quiet:
                    said = f"{len(results)} of {len(listed)} {found.obligation}, {found.target}"
                    typer.echo(f"{said}: {found.status} ({found.seconds:.1f} s)", err=True)
    except EngineError as error:
        typer.echo(f"routeproof: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo(f"routeproof: interrupted after {len(results)} of {len(listed)} obligations", err=True)
        raise typer.Exit(3) from None
    if not listed:
        later = [name for name in chosen if BY_ID[name].deep and not deep]
        why = f"{later[0]} needs --deep" if later else "they do not apply to this code"
        typer.echo(f"routeproof: nothing to examine of {', '.join(chosen)}: {why}", err=True)
        if not as_json:
            raise typer.Exit(runner.exit_code(results))
    results = runner.in_order(results)
    seconds = time.monotonic() - start
    if as_json:
        typer.echo(report.document(results, seconds))
    else:
        out = console()
        out.width = max(out.width, WIDE)
        report.show(out, results, seconds)
    raise typer.Exit(runner.exit_code(results))


def _chosen(only: str | None) -> tuple[str, ...]:
    """Give the obligations named, none for all; exit 2 where there is no such obligation."""
    if only is None:
        return ()
    chosen = tuple(name.strip() for name in only.split(","))
    for name in chosen:
        if name not in BY_ID:
            said = f"routeproof: --only {name!r}: no such obligation; there is {', '.join(BY_ID)}"
            typer.echo(said, err=True)
            raise typer.Exit(2)
    return chosen
