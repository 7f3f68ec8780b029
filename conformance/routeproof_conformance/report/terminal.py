"""The terminal report."""

import shlex
from collections import Counter, defaultdict
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text
from routeproof_spec import SPEC_VERSION, AnyCase, Finding, Verdict
from routeproof_spec.rules import RULES

from routeproof_conformance.runner import Run, fatal

_STYLES = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "red",
    Verdict.ERROR: "magenta",
    Verdict.SKIPPED: "yellow",
    Verdict.KNOWN_FAILURE: "yellow",
    Verdict.UNSUPPORTED: "dim",
}
_COLOURS = {"conformant": "bold green", "partial": "bold yellow"}
LAUNCHED = "torchrun-"
"""How the names of worlds begin whose ranks somebody else launched."""

_NARROW = 100


def console(stream: TextIO | None = None) -> Console:
    """Give the console for reports, on stdout or `stream`; wide enough for tables where nobody looks."""
    made = Console(file=stream, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = max(made.width, _NARROW)
    return made


def show_case(out: Console, run: Run, case: AnyCase, found: list[Finding]) -> None:
    """Print a case that failed or broke: what each rank was handed, expected, got, and how to rerun it.

    Where only a SHOULD is not kept, the first case of its family stands for all.
    """
    bad = [item for item in found if item.verdict in (Verdict.FAILED, Verdict.ERROR)]
    if not bad:
        return
    if not any(item.verdict is Verdict.ERROR or fatal(item) for item in bad):
        earlier = sum(
            item.verdict is Verdict.FAILED and item.case.startswith(f"{case.family}[")
            for item in run.findings
        )
        if earlier > len(bad):
            return
    said: set[str] = set()
    out.print()
    out.print(Text.assemble((case.id, "bold"), f"  topology {case.topology}, world {bad[0].world}"))
    if case.source:
        out.print(f"  numbers from {case.source}", markup=False)
    for item in bad:
        first, *rest = item.message.splitlines()
        out.print(
            Text.assemble(
                "  ", (item.verdict.value, _STYLES[item.verdict]), f" {item.rule} ({item.level}): {first}"
            )
        )
        for line in rest:
            if line not in said:
                out.print(f"    {line.strip()}", markup=False)
        said.update(rest)
    out.print(f"  rerun: {rerun(run, case, bad[0].world)}", markup=False)


def rerun(run: Run, case: AnyCase, world: str) -> str:
    """Give the command that runs just this case."""
    launched = world.removeprefix(LAUNCHED)
    if launched != world:
        size = str(case.topology.size)
        words = ["torchrun", "--nproc-per-node", size, "-m", "routeproof_conformance.rank"]
        words += ["--topology", str(case.topology), "--backend", launched, "--engine", run.engine.name]
    else:
        words = ["routeproof", "run", "--engine", run.engine.name, "--world", world]
    return shlex.join([*words, "--case", case.id])


def show_run(out: Console, run: Run) -> None:
    """Print the table of rules and the verdict."""
    profile = run.engine.profile
    by_rule: dict[str, Counter[Verdict]] = defaultdict(Counter)
    for item in run.findings:
        by_rule[item.rule][item.verdict] += 1
    table = Table(title=f"routeproof {SPEC_VERSION}: {run.engine.name}", title_justify="left")
    table.add_column("rule", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("title")
    for verdict in Verdict:
        if any(counts[verdict] for counts in by_rule.values()):
            table.add_column(verdict.value, justify="right", no_wrap=True)
    shown = [verdict for verdict in Verdict if any(counts[verdict] for counts in by_rule.values())]
    for number in RULES:
        if number in by_rule:
            counts = by_rule[number]
            cells = [
                Text(str(counts[verdict] or ""), style=_STYLES[verdict] if counts[verdict] else "")
                for verdict in shown
            ]
            table.add_row(number, RULES[number].level, RULES[number].title, *cells)
    out.print()
    out.print(table)
    out.print(f"engine {profile.name} {profile.version}, sha256 {profile.digest}", markup=False)
    reasons: dict[tuple[Verdict, str], set[str]] = defaultdict(set)
    for item in run.findings:
        if item.message and item.verdict in (Verdict.SKIPPED, Verdict.UNSUPPORTED):
            reasons[item.verdict, item.message.splitlines()[0]].add(item.rule)
    for (verdict, why), rules in sorted(reasons.items()):
        out.print(f"{verdict}: {why}: {', '.join(sorted(rules))}", markup=False, style="dim")
    for note in run.notes:
        out.print(note, markup=False)
    _show_verdict(out, run)


def _show_verdict(out: Console, run: Run) -> None:
    failing = sorted({item.rule for item in run.findings if fatal(item)})
    should = sorted(
        {item.rule for item in run.findings if item.verdict is Verdict.FAILED and not fatal(item)}
    )
    counts = ", ".join(f"{count} {name}" for name, count in run.counts.items() if count)
    out.print(
        f"{run.cases} cases on {', '.join(run.worlds)} in {run.seconds:.1f} s; findings: {counts}",
        markup=False,
    )
    if failing:
        out.print(f"failing: {', '.join(failing)}", markup=False, style="red")
    if should:
        out.print(f"not kept, though only SHOULD: {', '.join(should)}", markup=False, style="yellow")
    if run.cut_short:
        out.print(f"cut short: {run.cut_short}", markup=False, style="yellow")
    out.print(Text(run.verdict, style=_COLOURS.get(run.verdict, "bold red")))
