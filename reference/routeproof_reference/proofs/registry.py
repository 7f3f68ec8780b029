"""All obligations. Statements only: no tool is needed to read them."""

from routeproof_reference.proofs import obligations_search, obligations_smt
from routeproof_reference.proofs.obligation import Obligation

OBLIGATIONS: tuple[Obligation, ...] = (
    *obligations_smt.DECISIONS,
    *obligations_smt.FACTS,
    *obligations_smt.OUTSIDE,
    *obligations_search.SEARCHES,
    *obligations_search.CAPTURER,
)
"""In the order of the table."""

BY_ID: dict[str, Obligation] = {item.id: item for item in OBLIGATIONS}

DECISIONS = tuple(item.id for item in obligations_smt.DECISIONS)
FACTS = tuple(item.id for item in (*obligations_smt.FACTS, *obligations_smt.OUTSIDE))
TARGET_FACTS = ("lockstep", *(item.id for item in obligations_smt.OUTSIDE))
"""Facts of the code examined; the others are about layouts alone."""
CAPTURER = tuple(item.id for item in obligations_search.CAPTURER)


def established_by(rule: str) -> tuple[str, ...]:
    """Give the ids of the MUST obligations that establish a rule, in the order of the table."""
    return tuple(item.id for item in OBLIGATIONS if rule in item.rules and item.must)
