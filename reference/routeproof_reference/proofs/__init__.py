"""The contract, model-checked: obligations, and the methods that establish them.

Nothing here needs Z3, CrossHair or Hypothesis to be imported; each method asks for its
tool when it runs, and an obligation whose tool is missing is *open*.
"""

from routeproof_reference.proofs.obligation import (
    Check,
    Counterexample,
    Method,
    Obligation,
    OpenError,
    Result,
    Status,
    UnknownShapeError,
)
from routeproof_reference.proofs.registry import BY_ID, OBLIGATIONS, established_by

__all__ = [
    "BY_ID",
    "OBLIGATIONS",
    "Check",
    "Counterexample",
    "Method",
    "Obligation",
    "OpenError",
    "Result",
    "Status",
    "UnknownShapeError",
    "established_by",
]
