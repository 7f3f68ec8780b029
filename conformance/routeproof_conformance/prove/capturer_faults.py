"""Faulty copies of the capturer's decision: the negative controls of its proofs.

They bear the names of the reference's, and are planted into `routeproof_impl.layout` itself.
A place that is no longer there raises at once.
"""

import inspect
from functools import cache
from types import ModuleType

from routeproof_conformance.prove.contracts import load_decision

FAULTS: dict[str, tuple[str, str]] = {
    "shards rounded down": ("return (own + tp - 1) // tp", "return own // tp"),
    "start of all ranks": ("        return before\n", "        return 0\n"),
    "tokens for shards": ("        return group_before\n", "        return before\n"),
    "no gather": ("gather = layout == TP_SHARD and shards", "gather = False"),
    "always gather": ("gather = layout == TP_SHARD and shards", "gather = layout == TP_SHARD"),
    "gather of whole rows": (
        "return Plan(verdict, layout, start, own, gather)",
        "return Plan(verdict, layout, start, own, gather or (layout == FULL and shards))",
    ),
    "unfit passes": ("        return NO_LAYOUT\n", "        return FITS\n"),
    "groups unchecked": ("BAD_GROUPS if layout == GATHERED_SHARDS and not usable else FITS", "FITS"),
    "groups judged early": (
        "verdict = judge(layout,",
        "verdict = BAD_GROUPS if sized and not usable else judge(layout,",
    ),
    "harm ignored": ("verdict = AMBIGUOUS if clash else FITS", "verdict = FITS"),
    "harm without tokens": ("declared == UNDECLARED and own > 0:", "declared == UNDECLARED:"),
    "order swapped": (
        "    if cross_dp:\n        layout = CROSS_DP\n",
        (
            "    if gathered_shards:\n        layout = GATHERED_SHARDS\n"
            "    elif cross_dp:\n        layout = CROSS_DP\n"
        ),
    ),
    "declaration unchecked": ("    if not agrees:\n", "    if False:\n"),
    "local padding at any DP": ("is_local = is_local and padded_local", "is_local = is_local"),
    "a row is skipped": ("CONTRADICTED, layout, 0, n,", "CONTRADICTED, layout, 1, n,"),
    "a row is left out": ("CONTRADICTED, layout, 0, n,", "CONTRADICTED, layout, 0, n - 1,"),
    "a counted layout passes": ("FITS if layout == UNCOUNTED else CONTRADICTED", "FITS"),
    "counts do not matter": (
        "    if layout == UNCOUNTED:\n        return CONTRADICTED\n",
        "    if layout == UNCOUNTED:\n        return FITS\n",
    ),
}
"""Name -> what stands in the file, what stands there instead."""


@cache
def faulty(name: str) -> ModuleType:
    """Give the decision with a fault; raise ValueError where the place is not found exactly once."""
    old, new = FAULTS[name]
    original = load_decision()
    source = inspect.getsource(original)
    if source.count(old) != 1:
        raise ValueError(f"fault {name!r}: {old!r} occurs {source.count(old)} times, expected once")
    module = ModuleType(f"{original.__name__} with fault: {name}")
    exec(source.replace(old, new), module.__dict__)  # noqa: S102 - our own source, changed on purpose
    return module
