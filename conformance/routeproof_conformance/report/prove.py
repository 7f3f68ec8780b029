"""The table of obligations, and its JSON."""

import json
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from routeproof_reference.proofs.obligation import Result, Status
from routeproof_reference.proofs.registry import BY_ID
from routeproof_spec import SPEC_VERSION

from routeproof_conformance.prove.runner import exit_code, rounded

_STYLES = {
    Status.ESTABLISHED: "green",
    Status.REFUTED: "red",
    Status.OPEN: "yellow",
    Status.ERROR: "magenta",
}


def show(out: Console, results: list[Result], seconds: float) -> None:
    """Print the table, then what is not established, with numbers and how to see it again."""
    table = Table()
    for column in ("obligation", "target", "rules", "method", "scope", "result", "controls", "s"):
        table.add_column(column, justify="right" if column == "s" else "left", overflow="fold")
    for item in results:
        known = BY_ID[item.obligation]
        planted = len(item.refuted) + len(item.missed)
        colour = _STYLES[item.status]
        mark = "" if known.must else " (fact)"
        table.add_row(
            known.id,
            escape(item.target),
            " ".join(known.rules),
            known.method.value,
            escape(known.scope),
            f"[{colour}]{item.status.value}[/]{mark}\n{escape(item.detail[:160])}",
            f"{len(item.refuted)} of {planted}",
            f"{item.seconds:.1f}",
        )
    out.print(table)
    for item in results:
        if item.status is not Status.ESTABLISHED:
            _explain(out, item)
    counts = {status: sum(item.status is status for item in results) for status in Status}
    said = ", ".join(f"{number} {status.value}" for status, number in counts.items() if number)
    refuted = sum(len(item.refuted) for item in results)
    planted = refuted + sum(len(item.missed) for item in results)
    out.print(f"{said}; {refuted} of {planted} planted faults refuted; {seconds:.1f} s")


def _explain(out: Console, item: Result) -> None:
    known = BY_ID[item.obligation]
    out.print(
        f"\n[{_STYLES[item.status]}]{item.status.value}[/] {known.id}, {item.target}: {known.statement}"
    )
    for text in (item.detail, str(item.counterexample or ""), *item.notes):
        if text:
            out.print(f"  {text}", markup=False)
    if item.replay:
        out.print(f"  on the real class: {item.confirmed}", markup=False)
        out.print(f"  again: {item.replay}", markup=False, soft_wrap=True)


def document(results: list[Result], seconds: float) -> str:
    """Give all of it as one JSON document."""
    rows = []
    for item in results:
        known = BY_ID[item.obligation]
        found = item.counterexample
        row = asdict(rounded(item))
        row["counterexample"] = found._asdict() if found is not None else None
        about = {"rules": known.rules, "statement": known.statement, "scope": known.scope}
        rows.append({**row, **about, "method": known.method.value, "must": known.must})
    whole = {
        "spec_version": SPEC_VERSION,
        "seconds": round(seconds, 1),
        "exit_code": exit_code(results),
        "results": rows,
    }
    return json.dumps(whole, indent=1)
