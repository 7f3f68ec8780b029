"""`routeproof bench`."""

from pathlib import Path
from typing import Annotated

import typer

from routeproof_conformance.bench import ENGINES, document, loadable, measure, points, show
from routeproof_conformance.bench_plot import picture
from routeproof_conformance.report.terminal import console
from routeproof_conformance.worlds import WorldError


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = sorted({int(item) for item in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        typer.echo(f"routeproof: {option} {text}: expected positive numbers with commas between", err=True)
        raise typer.Exit(2)
    return found


def bench(
    tp: Annotated[str, typer.Option(help="TP sizes.")] = "1,2,4",
    tokens: Annotated[str, typer.Option(help="Tokens of a step.")] = "1,16,64,512,4096",
    layers: Annotated[str, typer.Option(help="Captured layers.")] = "60",
    seconds: Annotated[float, typer.Option(min=0.01, help="How long one comparison may take, about.")] = 4.0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("routeproof-bench.svg"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Time our capturer beside those of vLLM and SGLang: real ranks, gloo, engines taking turns."""
    wanted = points(_numbers("--tp", tp), _numbers("--tokens", tokens), _numbers("--layers", layers))
    engines, notes = loadable(ENGINES)
    try:
        rows = measure(wanted, engines, seconds, lambda text: typer.echo(text, err=True))
    except WorldError as error:
        typer.echo(f"routeproof: {error}", err=True)
        raise typer.Exit(3) from error
    plot.write_text(picture(rows), "utf-8")
    typer.echo(f"wrote {plot}", err=True)
    if as_json:
        typer.echo(document(rows, notes))
    else:
        show(console(), rows, notes)
