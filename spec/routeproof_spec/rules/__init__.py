"""The registry of rules: one module per group, in catalogue order.

An id is frozen. A rule whose meaning changes gets a new id; the superseded one stays
listed, so that old reports keep their meaning.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from routeproof_spec.rule import Rule
from routeproof_spec.rules import buffer, collectives, delivery, gate, ids, layout, snapshot, wire

GROUPS: dict[str, str] = {
    "LAY": "Layout",
    "COL": "Collectives",
    "BUF": "Buffer",
    "SNP": "Snapshot",
    "IDS": "Ids",
    "DEL": "Delivery",
    "WIR": "Wire",
    "GAT": "Gate",
}
"""Group -> heading, in catalogue order."""


def index(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Key rules by id, in the order given; raise ValueError for an id that occurs twice."""
    found: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in found:
            raise ValueError(f"rule id {rule.id} occurs twice: {found[rule.id].title!r} and {rule.title!r}")
        found[rule.id] = rule
    return found


RULES: dict[str, Rule] = index(
    rule
    for module in (layout, collectives, buffer, snapshot, ids, delivery, wire, gate)
    for rule in module.RULES
)
"""Id -> rule: all rules of the contract."""


def find(pattern: str) -> list[Rule]:
    """List the rules whose id matches a pattern, in catalogue order.

    Args:
        pattern: an id (`LAY-02`), an fnmatch pattern (`LAY-*`) or a group (`LAY`); case
            does not matter.

    Returns:
        The rules; an empty list if nothing matches, which a caller has to report.

    """
    wanted = pattern.upper()
    return [rule for rule in RULES.values() if rule.group == wanted or fnmatchcase(rule.id, wanted)]


__all__ = ["GROUPS", "RULES", "find", "index"]
