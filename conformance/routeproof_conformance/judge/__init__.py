"""The judge: one finding per rule of a case, each by its own predicate. Exact."""

from collections.abc import Callable, Mapping
from itertools import groupby

from routeproof_spec import Finding, Verdict
from routeproof_spec.rules import RULES

from routeproof_conformance.judge import rejections, rows
from routeproof_conformance.judge.view import BROKEN, Outcome, View, failed

Predicate = Callable[[View], Outcome]


def _uncounted(view: View) -> Outcome:
    """LAY-09: rows pass through, or are rejected, as the profile says."""
    if view.profile.uncounted == "pass-through":
        return rows.own_rows(view)
    for slot in view.slots:
        if view.case.steps[slot.step].context.counts is None and len(slot.refusals) < len(slot.ranks):
            return failed(f"step {slot.step}: the profile says that uncounted rows are rejected")
    return Outcome(Verdict.PASSED)


PREDICATES: Mapping[str, Predicate] = {
    "LAY-01": rejections.rejection,
    "LAY-02": rows.own_rows,
    "LAY-03": rows.shard_order,
    "LAY-04": rows.dp_order,
    "LAY-05": rows.trimming,
    "LAY-06": rejections.rejection,
    "LAY-07": rows.own_rows,
    "LAY-08": rejections.value_error,
    "LAY-09": _uncounted,
    "LAY-10": rejections.rejection,
    "LAY-12": rows.empty,
    "COL-01": rejections.lockstep,
    "COL-02": rejections.needless,
    "COL-03": rejections.per_call,
    "COL-04": rejections.per_step,
    "COL-05": rejections.checks_first,
    "COL-06": rejections.gather_input,
    "COL-07": rejections.host_reads,
    "BUF-01": rows.freshness,
    "BUF-02": rejections.untouched,
    "BUF-03": rejections.rejection,
    "BUF-04": rejections.capacity,
    "BUF-05": rows.own_rows,
    "BUF-08": rows.fill,
    "BUF-09": rejections.rejection,
    "SNP-01": rows.isolation,
    "SNP-02": rows.element_type,
    "SNP-03": rows.real_rows,
    "SNP-04": rows.publisher_only,
    "IDS-02": rejections.invalid_ids,
    "IDS-04": rows.own_rows,
    "IDS-05": rows.column_order,
    "GAT-03": rejections.rejection,
}
"""What decides a rule; a case may list only rules that are here."""


def broken(view: View) -> str:
    """Say how the adapter or a stub is broken, if it is."""
    for rank, step, failure in view.failures():
        kinds = BROKEN & set(failure.types)
        if kinds or failure.kind == "misuse":
            where = "at creation" if step < 0 else f"step {step}, {failure.phase}"
            return f"broken adapter or stub: {rank}, {where}: {failure.types[0]}: {failure.message}"
    return ""


def judge(view: View, world: str) -> list[Finding]:
    """Give a finding for each rule of the case, except GAT-03, which needs another run."""
    fault = broken(view)
    found = []
    for rule in view.case.rules:
        if rule == "GAT-03":
            continue
        if view.case.device == "meta":
            outcome = rejections.host_reads(view)
        else:
            outcome = Outcome(Verdict.ERROR, fault) if fault else _judged(view, rule)
        found.append(finding(view, rule, world, outcome))
    return found


def _judged(view: View, rule: str) -> Outcome:
    """Ask the predicate; a pass counts only where all of the case was seen."""
    outcome = PREDICATES[rule](view)
    if outcome.verdict is Verdict.PASSED and rule != "SNP-02" and not rows.seen_whole(view):
        return Outcome(
            Verdict.SKIPPED, "not all of the case was seen, so this tells nothing; LAY-02 says why"
        )
    return outcome


def finding(view: View, rule: str, world: str, outcome: Outcome) -> Finding:
    """Put an outcome into a finding; anything but a pass tells what was handed over."""
    message = outcome.message
    if outcome.verdict in (Verdict.FAILED, Verdict.ERROR):
        message = f"{message}\n  {_inputs(view)}"
    return Finding(
        case=view.case.id,
        rule=rule,
        level=RULES[rule].level,
        world=world,
        topology=str(view.case.topology),
        verdict=outcome.verdict,
        message=message,
    )


def _inputs(view: View) -> str:
    """Tell the counts of the steps and the shapes that each rank handed over first."""
    told = []
    for index, step in enumerate(view.case.steps):
        context = step.context
        parts = "".join(
            f", microbatch at {m.offset}: T {list(m.counts)}, R {list(m.real)}" for m in context.microbatches
        )
        sizes = "" if context.shard_sizes is None else f", shard sizes {list(context.shard_sizes)}"
        counts = "unknown" if context.counts is None else list(context.counts)
        told.append(
            f"step {index}: {step.emitted}, T {counts}, R {list(context.real)}{sizes}{parts}; "
            f"handed over: {_handed(view, index)}"
        )
    return "\n  ".join(told)


def _handed(view: View, step: int) -> str:
    """Tell the shape of the first call of each rank; neighbours with the same one together."""
    shapes = [
        (seen.rank, seen.steps[step].handed[0])
        for seen in view.observations
        if step < len(seen.steps) and seen.steps[step].handed
    ]
    told = []
    for (dp, shape), group in groupby(shapes, key=lambda item: (item[0].dp, item[1])):
        ranks = [rank.tp for rank, _ in group]
        span = f"tp{ranks[0]}" if len(ranks) == 1 else f"tp{ranks[0]}-{ranks[-1]}"
        told.append(f"dp{dp}/{span} {list(shape)}")
    return ", ".join(told) or "nothing"


__all__ = ["PREDICATES", "View", "broken", "finding", "judge", "rejections"]
