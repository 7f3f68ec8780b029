"""Predicates over published rows and buffers."""

import numpy as np
from routeproof_reference import Kind
from routeproof_spec import Verdict

from routeproof_conformance.arrays import unpack
from routeproof_conformance.judge.view import NOTHING_TO_JUDGE, PASSED, Outcome, Slot, View, WrongRow, failed

SHOWN = 5
"""Differing rows that a message lists."""


def refusals(view: View) -> list[str]:
    """List what was raised where nothing should be."""
    created = [
        f"{seen.rank}: create raised {seen.create.types[0]}: {seen.create.message}"
        for seen in view.observations
        if seen.create is not None
    ]
    return created + [
        f"step {slot.step}, dp{slot.dp}/tp{tp}: {failure.phase} raised {failure.types[0]}: {failure.message}"
        for slot in view.accepted
        for tp, failure in slot.refusals
    ]


def own_rows(view: View) -> Outcome:
    """LAY-02: every accepted step ends and leaves exactly the own rows at its publishers."""
    raised = refusals(view)
    if raised:
        return failed("a step that must be accepted was not; " + "; ".join(raised[:SHOWN]))
    if not view.complete:
        return failed("the case was cut short: not every rank reached its last step")
    for slot in view.accepted:
        problem = _shape(view, slot)
        if problem:
            return failed(problem)
    return differences(view.wrong_rows)


def _shape(view: View, slot: Slot) -> str:
    config, want = view.case.config, slot.expected.published
    if want is None:
        return ""
    where = f"step {slot.step}, publisher dp{slot.dp}/tp0"
    if slot.publisher.published is None:
        return f"{where}: published() is None, expected [{len(want)}, {config.layers}, {config.top_k}]"
    if slot.publisher.published.shape != want.shape:
        shape = list(slot.publisher.published.shape)
        return f"{where}: published shape {shape}, expected {list(want.shape)} = [R_d, L, K]"
    if slot.publisher.published.dtype.startswith("float"):
        return f"{where}: published element type {slot.publisher.published.dtype}, expected integers"
    if slot.publisher.buffer is not None and slot.expected.own is not None:
        shape = list(slot.publisher.buffer.shape)
        rows, *rest = shape or [0]
        if rest != [config.layers, config.top_k] or rows < len(slot.expected.own):
            return f"{where}: buffer() has shape {shape}, expected at least {list(slot.expected.own.shape)}"
    return ""


def seen_whole(view: View) -> bool:
    """Whether every rank was made and reached the last step, and what was published has the right form."""
    made = all(seen.create is None for seen in view.observations)
    return made and view.complete and not any(_shape(view, slot) for slot in view.accepted)


def differences(wrong: tuple[WrongRow, ...]) -> Outcome:
    """Fail with the first differing rows."""
    if not wrong:
        return PASSED
    first = wrong[0]
    place = f"step {first.step}, publisher dp{first.dp}/tp0: {len(wrong)} rows differ"
    return failed("\n  ".join([place, *(str(row) for row in wrong[:SHOWN])]))


def _telling(view: View, wrong: tuple[WrongRow, ...]) -> Outcome:
    """Judge by the origin of rows; where none were published there is nothing to tell."""
    if wrong:
        return differences(wrong)
    silent = any(slot.publisher.published is None for slot in view.accepted)
    return NOTHING_TO_JUDGE if silent else PASSED


def shard_order(view: View) -> Outcome:
    """LAY-03: no token of the own DP rank stands where one of another shard belongs."""
    return _telling(
        view,
        tuple(
            wrong
            for wrong in view.wrong_rows
            if wrong.origin is not None
            and wrong.expected is not None
            and (wrong.origin.step, wrong.origin.dp) == (wrong.step, wrong.dp)
            and wrong.origin.kind in (Kind.REAL, Kind.GRAPH_PADDING)
        ),
    )


def dp_order(view: View) -> Outcome:
    """LAY-04: no row of another DP rank."""
    return _telling(
        view,
        tuple(
            wrong
            for wrong in view.wrong_rows
            if wrong.origin is not None and wrong.origin.step == wrong.step and wrong.origin.dp != wrong.dp
        ),
    )


def trimming(view: View) -> Outcome:
    """LAY-05: no padding row of this step."""
    return _telling(
        view,
        tuple(
            wrong
            for wrong in view.wrong_rows
            if wrong.origin is not None and wrong.origin.step == wrong.step and not view.real(wrong.origin)
        ),
    )


def freshness(view: View) -> Outcome:
    """BUF-01: no row is of an earlier step, or of none: one value throughout, as memory never written."""
    return _telling(
        view,
        tuple(
            wrong
            for wrong in view.wrong_rows
            if (
                len(set(wrong.got.tolist())) == 1 if wrong.origin is None else wrong.origin.step != wrong.step
            )
        ),
    )


def column_order(view: View) -> Outcome:
    """IDS-05: no row has the right ids in another order."""
    return _telling(
        view,
        tuple(
            wrong
            for wrong in view.wrong_rows
            if wrong.expected is not None and sorted(wrong.got.tolist()) == sorted(wrong.expected.tolist())
        ),
    )


def isolation(view: View) -> Outcome:
    """SNP-01: what was published reads the same after the last step."""
    if all(seen.published is None for slot in view.slots for seen in slot.ranks):
        return NOTHING_TO_JUDGE
    for slot in view.slots:
        for tp, seen in enumerate(slot.ranks):
            if seen.published == seen.published_later:
                continue
            if seen.published is None or seen.published_later is None:
                return failed(f"step {slot.step}, dp{slot.dp}/tp{tp}: the snapshot vanished later")
            before, after = unpack(seen.published), unpack(seen.published_later)
            row, layer, _ = (int(i) for i in np.argwhere(before != after)[0])
            return failed(
                f"step {slot.step}, dp{slot.dp}/tp{tp}: a later step changed the snapshot: "
                f"row {row}, layer {layer} was {before[row, layer].tolist()}, "
                f"is {after[row, layer].tolist()}"
            )
    return PASSED


def element_type(view: View) -> Outcome:
    """SNP-02: the element type is the profile's for E, and every id survives."""
    experts = view.case.config.experts
    want = view.profile.element_type(experts)
    created = [seen.create for seen in view.observations]
    if all(failure is not None for failure in created):
        refusal = next(failure for failure in created if failure is not None)
        if want is None:
            return PASSED
        return failed(f"E = {experts} was refused ({refusal.types[0]}: {refusal.message}), expected {want}")
    if want is None:
        return failed(f"E = {experts} was accepted, the profile has no element type for it")
    for slot in view.accepted:
        seen = slot.publisher.published
        if seen is not None and seen.dtype != want:
            return failed(f"published {seen.dtype}, the profile names {want} for E = {experts}")
    return own_rows(view)


def real_rows(view: View) -> Outcome:
    """SNP-03: exactly R_d rows."""
    for slot in view.accepted:
        want, seen = slot.expected.published, slot.publisher.published
        if want is None:
            continue
        if seen is None:
            return NOTHING_TO_JUDGE
        if (seen.shape or (0,))[0] != len(want):
            return failed(
                f"step {slot.step}, dp{slot.dp}/tp0: published {(seen.shape or (0,))[0]} rows, "
                f"R_d = {len(want)}"
            )
    return PASSED


def publisher_only(view: View) -> Outcome:
    """SNP-04: TP ranks other than 0 publish None."""
    for slot in view.slots:
        for tp, seen in enumerate(slot.ranks):
            if tp > 0 and seen.published is not None:
                return failed(f"step {slot.step}: dp{slot.dp}/tp{tp} published {list(seen.published.shape)}")
    return PASSED


def fill(view: View) -> Outcome:
    """BUF-08: layers never captured hold the declared fill."""
    if view.profile.fill is None:
        return Outcome(Verdict.UNSUPPORTED, "the profile declares no fill")
    captured = {call.layer for producer in view.producers for call in producer.calls}
    dense = [layer for layer in range(view.case.config.layers) if layer not in captured]
    for slot in view.accepted:
        if slot.publisher.published is None:
            return NOTHING_TO_JUDGE
        if _shape(view, slot):
            return failed(_shape(view, slot))
        rows = unpack(slot.publisher.published)[:, dense]
        if (rows != view.profile.fill).any():
            return failed(
                f"step {slot.step}, dp{slot.dp}/tp0: layers {dense} were never captured and hold "
                f"{rows[0].tolist()}..., declared fill {view.profile.fill}"
            )
    return PASSED


def empty(view: View) -> Outcome:
    """LAY-12: an empty DP rank raises nothing and leaves its buffer unchanged."""
    outcome = own_rows(view)
    if outcome.verdict is not Verdict.PASSED:
        return outcome
    for slot in view.accepted:
        counts = view.case.steps[slot.step].context.counts
        if counts is None or counts[slot.dp] > 0:
            continue
        for tp, seen in enumerate(slot.ranks):
            if seen.buffer_before != seen.buffer:
                return failed(
                    f"step {slot.step}: dp{slot.dp}/tp{tp} has no token, and its buffer changed; "
                    + changed(slot, tp)
                )
    return PASSED


def changed(slot: Slot, tp: int) -> str:
    """Say where a buffer changed."""
    seen = slot.ranks[tp]
    if seen.buffer_before is None or seen.buffer is None:
        return "it was readable once only"
    before, after = unpack(seen.buffer_before), unpack(seen.buffer)
    if before.shape != after.shape:
        return f"shape {list(before.shape)} became {list(after.shape)}"
    if before.ndim != 3:  # noqa: PLR2004 - [rows, L, K]
        return f"it has shape {list(before.shape)}, expected [rows, L, K]"
    places = np.argwhere((before != after).any(axis=2))
    row, layer = (int(i) for i in places[0])
    return (
        f"{len(places)} rows, the first: row {row}, layer {layer} was {before[row, layer].tolist()}, "
        f"is {after[row, layer].tolist()}"
    )
