"""Renders the rules part of `spec/README.md` from the registry.

`python -m routeproof_conformance.spec_page spec/README.md` rewrites the file in place.
"""

from pathlib import Path
from typing import Annotated

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from routeproof_reference.proofs import established_by
from routeproof_spec import CORE_RULES
from routeproof_spec.rules import GROUPS, RULES

from routeproof_conformance.cases.coverage import coverage

BEGIN = "<!-- rules: begin -->"
END = "<!-- rules: end -->"


def render() -> str:
    """Give the block between the markers: an index, then every rule with its anchor."""
    environment = Environment(
        loader=PackageLoader("routeproof_conformance", "templates"),
        autoescape=select_autoescape(),  # for HTML only: this template is Markdown
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    template = environment.get_template("spec_rules.md.j2")
    return template.render(
        rules=list(RULES.values()),
        groups=GROUPS,
        core=CORE_RULES,
        proved={rule: established_by(rule) for rule in RULES},
        tested={rule: coverage(rule) for rule in RULES},
    )


def updated(text: str) -> str:
    """Replace the block between the markers.

    Raises:
        ValueError: a marker is missing, occurs twice, or they are in the wrong order.

    """
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            raise ValueError(f"marker {marker!r} occurs {text.count(marker)} times, expected once")
    head, rest = text.split(BEGIN)
    if END not in rest:
        raise ValueError(f"marker {END!r} comes before {BEGIN!r}")
    return f"{head}{BEGIN}\n{render()}{END}{rest.split(END)[1]}"


def main(path: Annotated[Path, typer.Argument(exists=True, dir_okay=False, writable=True)]) -> None:
    """Rewrite the rules part of a page in place."""
    text = path.read_text(encoding="utf-8")
    path.write_text(updated(text), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
