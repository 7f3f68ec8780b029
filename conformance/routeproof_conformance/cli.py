"""The command line."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import Progress
from routeproof_spec import SPEC_VERSION, AnyCase, Finding, Scenario, Topology
from routeproof_spec.rules import RULES, find

from routeproof_conformance.bench_command import bench
from routeproof_conformance.campaign import Plan, run_worlds
from routeproof_conformance.cases import all_cases, select
from routeproof_conformance.cases.coverage import coverage
from routeproof_conformance.contexts.scenarios import all_scenarios, select_scenarios
from routeproof_conformance.engines import BUILT_IN, EngineError, fetch_engine, load
from routeproof_conformance.parallel import cores
from routeproof_conformance.prove.command import prove
from routeproof_conformance.prove.replay import read_case
from routeproof_conformance.report.document import document
from routeproof_conformance.report.explain import explain_rule, rules_table, schemas
from routeproof_conformance.report.stream import report_stream
from routeproof_conformance.report.terminal import console, show_case, show_run
from routeproof_conformance.runner import Run
from routeproof_conformance.worlds.available import WORLDS
from routeproof_conformance.worlds.processes import TIMEOUT_SECONDS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The contract of routed-experts capture in mixture-of-experts inference engines, and its test.",
)
engines_app = typer.Typer(no_args_is_help=True, help="Files of published engines.")
app.add_typer(engines_app, name="engines")
app.command()(bench)

ONLY_SIMULATED = (
    "real ranks run tp2, tp4, tp2dp2 and dp2 unless --topology names others; "
    "scenarios and ids without data (COL-07) are simulated alone"
)

PLAIN_EVERY = 500
"""Cases between two lines of progress where there is no terminal."""


class Kind(StrEnum):
    """What `list` lists."""

    RULES = "rules"
    CASES = "cases"
    ENGINES = "engines"


class Required(StrEnum):
    """The least verdict that `--require` takes for success."""

    PARTIAL = "partial"
    CONFORMANT = "conformant"


def fail(message: str) -> typer.Exit:
    """Say what is wrong on stderr and give the exit of a usage error."""
    typer.echo(f"routeproof: {message}", err=True)
    return typer.Exit(2)


def _worlds(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in WORLDS:
            raise fail(f"--world {text}: unknown world {name!r}; there are {', '.join(WORLDS)}")
    return tuple(name for name in WORLDS if name in names)


def _topologies(text: str | None) -> tuple[Topology, ...] | None:
    if text is None:
        return None
    try:
        return tuple(Topology.parse(item.strip()) for item in text.split(","))
    except ValueError as error:
        raise fail(f"--topology: {error}") from error


def _selected(case: str | None, rule: str | None, topology: str | None) -> tuple[AnyCase, ...]:
    """Give the cases asked for, or the one in a file; exit if there are none."""
    if case is not None and case.endswith(".json"):
        try:
            return (read_case(Path(case)),)
        except (OSError, ValueError) as error:
            raise fail(f"--case {case}: no case can be read: {error}") from error
    if rule is not None and not find(rule):
        raise fail(f"--rule {rule}: no such rule; `routeproof list rules` lists them")
    wanted = case, rule, _topologies(topology)
    chosen: tuple[AnyCase, ...] = (*select(*wanted), *select_scenarios(*wanted))
    if not chosen:
        asked = {"--case": case, "--rule": rule, "--topology": topology}
        given = " ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
        known = [*(item.id for item in all_cases()), *(item.id for item in all_scenarios())]
        near = get_close_matches(case or "", known, 1)
        hint = f"; is it {near[0]}?" if near else "; `routeproof list cases` lists them"
        raise fail(f"no case matches {given}{hint}")
    return chosen


@app.command()
def run(
    engine: Annotated[
        str, typer.Option(help="Engine to judge; see `routeproof list engines`.")
    ] = "routeproof",
    world: Annotated[
        str, typer.Option(help="Where ranks live: simulated, gloo (processes), nccl (processes on GPUs).")
    ] = "simulated,gloo",
    topology: Annotated[
        str | None,
        typer.Option(
            help="Topologies, such as tp1,tp2dp3; if left out all, and tp2,tp4,tp2dp2,dp2 on real ranks."
        ),
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Rule, pattern or group: LAY-02, LAY-*, LAY.")] = None,
    case: Annotated[str | None, typer.Option(help="Case id, * and ? wild; or a file with a case.")] = None,
    require: Annotated[Required, typer.Option(help="Exit 3 if the verdict is less.")] = Required.PARTIAL,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; the cores at hand if left out.")] = None,
    debug_rank: Annotated[
        int | None, typer.Option(min=0, help="Stop in a debugger inside this global rank; needs one case.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a case may take on real ranks.")
    ] = TIMEOUT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Judge an engine.

    Exit 0: nothing failed; 1: something did; 2: usage or a broken adapter; 3: nothing ran or cut short.
    """
    worlds = _worlds(world)
    chosen = _selected(case, rule, topology)
    worlds = _check_debug(chosen, debug_rank, worlds)
    named = topology is not None or (case is not None and "*" not in case and "?" not in case)
    plan = Plan(chosen, worlds, named, jobs or cores(), debug_rank, timeout)
    if plan.total == 0:
        raise fail(f"no case for --world {world}: {ONLY_SIMULATED}")
    with report_stream() if debug_rank is None else nullcontext(sys.stdout) as stream:
        code, verdict = _judge(engine, plan, stream, as_json=as_json)
    if code == 0 and require is Required.CONFORMANT and verdict != Required.CONFORMANT:
        code = 3
    raise typer.Exit(code)


def _judge(engine: str, plan: Plan, stream: TextIO, *, as_json: bool) -> tuple[int, str]:
    """Run a plan and report; give the exit code and the verdict."""
    try:
        judged = Run(load(engine), plan.worlds)
        out = Console(quiet=True) if as_json else console(stream)
        start = time.monotonic()
        results = run_worlds(judged, plan)
        quiet = as_json or plan.debug_rank is not None
        for item, found in _with_progress(results, plan.total, quiet=quiet):
            show_case(out, judged, item, found)
        judged.seconds = time.monotonic() - start
    except EngineError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("routeproof: interrupted before the first case", err=True)
        return 3, "cut short"
    show_run(out, judged)
    if as_json:
        typer.echo(document(judged), file=stream)
    return judged.exit_code, judged.verdict


def _check_debug(
    chosen: tuple[AnyCase, ...], debug_rank: int | None, worlds: tuple[str, ...]
) -> tuple[str, ...]:
    """Give the worlds to run: a debugged rank is a simulated one."""
    if debug_rank is None:
        return worlds
    if "simulated" not in worlds:
        raise fail("--debug-rank stops in a simulated rank: leave --world out")
    if len(chosen) > 1:
        raise fail(f"--debug-rank needs one case, {len(chosen)} match: name one with --case")
    if isinstance(chosen[0], Scenario):
        raise fail(f"--debug-rank: {chosen[0].id} asks a {chosen[0].surface}, no rank runs")
    if debug_rank >= chosen[0].topology.size:
        raise fail(
            f"--debug-rank {debug_rank}: {chosen[0].topology} has ranks 0 to {chosen[0].topology.size - 1}"
        )
    return ("simulated",)


def _with_progress(
    results: Iterator[tuple[AnyCase, list[Finding]]], total: int, *, quiet: bool
) -> Iterator[tuple[AnyCase, list[Finding]]]:
    """Show a bar on a terminal, lines elsewhere, on stderr."""
    err = Console(stderr=True)
    if quiet:
        yield from results
    elif err.is_terminal:
        first = list(islice(results, 1))  # ranks are forked here, before the bar has its thread
        yield from first
        with Progress(console=err, transient=True) as bar:
            task = bar.add_task("cases", total=total, completed=len(first))
            for result in results:
                bar.advance(task)
                yield result
    else:
        for number, result in enumerate(results, 1):
            if number % PLAIN_EVERY == 0:
                typer.echo(f"{number} of {total} cases", err=True)
            yield result


@app.command("list")
def list_(
    what: Annotated[Kind, typer.Argument(help="rules, cases or engines")],
    rule: Annotated[str | None, typer.Option(help="Only of this rule, pattern or group.")] = None,
    topology: Annotated[str | None, typer.Option(help="Only cases on these topologies.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """List rules with what covers them, cases, or engines."""
    if what is Kind.ENGINES:
        typer.echo(
            json.dumps(BUILT_IN, indent=1)
            if as_json
            else "\n".join(f"{name:22} {text}" for name, text in BUILT_IN.items())
        )
    elif what is Kind.CASES:
        ids = [item.id for item in _selected(None, rule, topology)]
        typer.echo(json.dumps(ids, indent=1) if as_json else "\n".join(ids))
    else:
        rules = find(rule or "*")
        if not rules:
            raise fail(f"--rule {rule}: no such rule")
        if as_json:
            rows = [{**item.model_dump(mode="json"), "covered": str(coverage(item.id))} for item in rules]
            typer.echo(json.dumps(rows, indent=1))
        else:
            console().print(rules_table(rules))


@app.command()
def explain(rule: Annotated[str, typer.Argument(help="Rule id, such as LAY-02.")]) -> None:
    """Tell what a rule says, why, where it comes from, and what covers it."""
    found = RULES.get(rule.upper())
    if found is None:
        near = get_close_matches(rule.upper(), RULES, 1)
        raise fail(f"no rule {rule!r}" + (f"; is it {near[0]}?" if near else ""))
    explain_rule(console(), found)


@app.command()
def schema() -> None:
    """Print the JSON schemas of the models of the contract."""
    typer.echo(schemas())


app.command()(prove)


@engines_app.command("fetch")
def fetch(
    engine: Annotated[str, typer.Argument(help="A published engine, such as vllm==0.33.0.")],
) -> None:
    """Take the few files of a published engine that are needed out of its wheel, into the user's cache."""
    try:
        fetched = fetch_engine(engine)
    except EngineError as error:
        raise fail(str(error)) from error
    for path, digest in fetched.digests.items():
        typer.echo(f"{fetched.name}=={fetched.version} {path} sha256 {digest}\n  in {fetched.root}")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed  # noqa: PLC0415

        typer.echo(
            f"routeproof {installed('routeproof')}, spec {SPEC_VERSION}, Python {sys.version.split()[0]}"
        )
        raise typer.Exit
