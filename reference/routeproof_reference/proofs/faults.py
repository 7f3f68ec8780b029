"""Faulty copies of the reference's decision: the negative controls of the proofs.

Each plants one fault by changing one place of the source of `resolve` or `plan`. A place that is no
longer there raises at once, so that a control cannot quietly become the original.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from routeproof_spec import CaptureConfig, Layout, LayoutError, Rank, StepContext, Topology

from routeproof_reference.plan import Plan, plan
from routeproof_reference.proofs.target import Decision, Figures, Members, Number, Outcome, run_reference
from routeproof_reference.resolve import Resolution, resolve

CONFIG = CaptureConfig(max_tokens=1, layers=1, top_k=8, experts=256)
RANK = Rank(topology=Topology(tp=2, dp=1), dp=0, tp=0)

FAULTS: dict[str, tuple[str, str]] = {
    "shards rounded down": ("s = shard_rows(own, tp)", "s = own // tp"),
    "start of all ranks": (
        "Resolution(Layout.CROSS_DP, before, gather=False)",
        "Resolution(Layout.CROSS_DP, 0, gather=False)",
    ),
    "tokens for shards": (
        "Resolution(Layout.GATHERED_SHARDS, sizes_before,",
        "Resolution(Layout.GATHERED_SHARDS, before,",
    ),
    "no gather": ("gather=own > 1 and tp > 1", "gather=False"),
    "always gather": ("gather=own > 1 and tp > 1", "gather=True"),
    "gather of whole rows": (
        "Resolution(Layout.FULL, 0, gather=False)",
        "Resolution(Layout.FULL, 0, gather=tp > 1)",
    ),
    "unfit passes": (
        "    else:\n        raise LayoutError(",
        (
            "    else:\n        found = "
            "Resolution(Layout.FULL, 0, gather=False)\n    if n < 0:\n        raise LayoutError("
        ),
    ),
    "groups unchecked": ("if not usable:", "if False:"),
    "groups judged early": (
        "    if is_cross:",
        "    if has_sizes and not usable:\n        raise ShardGroupError('early')\n    if is_cross:",
    ),
    "harm ignored": ("    if harmful:", "    if False:"),
    "harm without tokens": ("harmful = own > 0 and (", "harmful = ("),
    "order swapped": (
        (
            "    if is_cross:\n        found = Resolution(Layout.CROSS_DP, before, gather=False)\n"
            "    elif is_full:\n        found = Resolution(Layout.FULL, 0, gather=False)\n    elif"
        ),
        "    if",
    ),
    "declaration unchecked": ("is_max = padded_to_max and n == dp * largest", "is_max = padded_to_max"),
    "local padding at any DP": ("is_local = padded_local and n == s * tp", "is_local = n == s * tp"),
}
"""Name -> what stands in `resolve`, what stands there instead."""

PLAN_FAULTS: dict[str, tuple[str, str]] = {
    "a row is skipped": ("Plan(Layout.UNCOUNTED, 0, n,", "Plan(Layout.UNCOUNTED, 1, n,"),
    "a row is left out": ("Plan(Layout.UNCOUNTED, 0, n,", "Plan(Layout.UNCOUNTED, 0, n - 1,"),
    "a counted layout passes": ("not in (None, Layout.UNCOUNTED)", "is Layout.UNCOUNTED"),
}
"""The same of `plan`, where no count is known."""


@cache
def faulty(name: str) -> Callable[..., Any]:
    """Give `resolve` or `plan` with a fault; raise ValueError where the place is not found exactly once."""
    old, new = {**FAULTS, **PLAN_FAULTS}[name]
    original = resolve if name in FAULTS else plan
    source = inspect.getsource(original)
    if source.count(old) != 1:
        raise ValueError(
            f"fault {name!r}: {old!r} occurs {source.count(old)} times in {original.__name__}, expected once"
        )
    space: dict[str, Any] = dict(vars(sys.modules[original.__module__]))
    exec(source.replace(old, new), space)  # noqa: S102 - our own source, changed on purpose
    made: Callable[..., Any] = space[original.__name__]
    return made


class ReferenceTarget:
    """The reference's `resolve`, or a faulty copy of it."""

    configurable = True
    sizes_at_one = True
    deployed = False
    smallest_dp = 1
    faults = (*FAULTS, *PLAN_FAULTS)

    def __init__(self, fault: str = "") -> None:
        """Take the original, or plant a fault."""
        self.name = f"reference with fault: {fault}" if fault else "reference"
        self.code: Callable[..., Resolution] = faulty(fault) if fault in FAULTS else resolve
        self.plan: Callable[..., Plan] = faulty(fault) if fault in PLAN_FAULTS else plan

    def layouts(self, dp: int) -> frozenset[Layout]:
        """Give the default set."""
        from routeproof_spec import default_layouts  # noqa: PLC0415

        return default_layouts(dp)

    def decide(self, figures: Figures, members: Members, declared: Layout | None) -> Decision:
        """Run it."""
        return run_reference(figures, members, declared, self.code)

    def unknown(self, n: Number, declared: Layout | None) -> Decision:
        """Run `plan` without counts, over a buffer of n rows."""
        config = CONFIG.model_copy(update={"max_tokens": n})
        step = StepContext(counts=None, real=(0,), declared=declared)
        try:
            found = self.plan(config, RANK, step, 0, 0, n, CONFIG.width)
        except LayoutError:
            return Decision(Outcome.LAYOUT_ERROR)
        return Decision(Outcome.ROWS, found.start, found.rows, found.gather)

    def faulty(self, fault: str) -> "ReferenceTarget":
        """Plant a fault."""
        return ReferenceTarget(fault)
