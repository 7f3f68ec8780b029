"""The cases: data only. Every case is under the rule that it was written for."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache

from routeproof_spec import AnyCase, Case, Topology

from routeproof_conformance.cases import capture, deployments, layouts, reported
from routeproof_conformance.judge import PREDICATES


@cache
def all_cases() -> tuple[Case, ...]:
    """Give every case, in a fixed order; raise ValueError for an id given twice."""
    families = (*reported.FAMILIES, *layouts.FAMILIES, *capture.FAMILIES, *deployments.FAMILIES)
    cases = tuple(case for family in families for case in family())
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ValueError(f"two cases have the id {case.id}")
        unknown = set(case.rules) - set(PREDICATES)
        if unknown:
            raise ValueError(f"case {case.id} lists rules that nothing judges: {sorted(unknown)}")
        seen.add(case.id)
    return cases


def select(
    case: str | None = None, rule: str | None = None, topologies: tuple[Topology, ...] | None = None
) -> Iterator[Case]:
    """Give the cases that match.

    Args:
        case: an id, or a pattern of ids in which * and ? are wild (brackets are not).
        rule: a rule id or pattern (`LAY-*`), or a group (`LAY`), among the rules of a case.
        topologies: the topologies wanted; None: all.

    """
    return (item for item in all_cases() if matches(item, case, rule, topologies))


def matches(
    item: AnyCase, case: str | None, rule: str | None, topologies: tuple[Topology, ...] | None
) -> bool:
    """Whether a case, or a scenario, is among those that `select` is asked for."""
    return (
        (topologies is None or item.topology in topologies)
        and (case is None or _like(item.id, case))
        and (rule is None or any(_like(listed, rule) or listed[:3] == rule for listed in item.rules))
    )


def _like(text: str, pattern: str) -> bool:
    """Match with * and ? only: ids have brackets."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))
