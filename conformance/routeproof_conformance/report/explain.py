"""Rules and schemas, told to people and tools."""

import json
from collections.abc import Iterable

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from routeproof_spec import Case, EngineProfile, Finding, Observation, Rule, Scenario

from routeproof_conformance.cases.coverage import coverage


def rules_table(rules: Iterable[Rule]) -> Table:
    """Give the table of rules with what covers each."""
    table = Table()
    for name in ("rule", "level"):
        table.add_column(name, no_wrap=True)
    for name in ("title", "surface", "capability", "covered by"):
        table.add_column(name)
    for rule in rules:
        table.add_row(
            rule.id,
            rule.level,
            rule.title,
            ", ".join(rule.surfaces),
            rule.capability or "",
            str(coverage(rule.id)),
        )
    return table


def explain_rule(out: Console, rule: Rule) -> None:
    """Print one rule in full."""
    covered = coverage(rule.id)
    out.print(f"[bold]{rule.id} {rule.level}[/] {rule.title}")
    for title, text in (
        ("statement", rule.statement),
        ("why", rule.rationale),
        ("from", "; ".join(rule.sources)),
        ("surface", ", ".join(rule.surfaces)),
        ("capability", rule.capability or "none: applies to every engine"),
        ("covered by", f"{covered}: {', '.join(covered.families)}" if covered.cases else str(covered)),
        ("run", f"routeproof run --rule {rule.id}" if covered.cases else "nothing to run yet"),
    ):
        out.print(f"{title}: {text}", markup=False)


def schemas() -> str:
    """Give the JSON schemas of the models that cross process and tool borders."""
    models = (Rule, Case, Scenario, Observation, Finding, EngineProfile)
    return json.dumps({model.__name__: TypeAdapter(model).json_schema() for model in models}, indent=1)
