"""Predicates over what must be rejected, and over collectives."""

from routeproof_spec import CapacityError, Verdict

from routeproof_conformance.arrays import MOVABLE, unpack
from routeproof_conformance.judge.rows import changed, own_rows
from routeproof_conformance.judge.view import NOTHING_TO_JUDGE, PASSED, Outcome, Slot, View, failed

_READS = ("meta tensors", "meta tensor;", "meta device", "data-independent implementation")
"""Words of torch where a value, or a shape that depends on values, is asked of a tensor without data."""

LOST = ("deadlock", "mismatch", "timeout", "died")
"""Failures that the world saw, not the engine raised (COL-01)."""


def _accepted_by(slot: Slot) -> list[int]:
    """TP ranks that took what they must reject."""
    return [tp for tp, seen in enumerate(slot.ranks) if seen.failure is None]


def rejection(view: View) -> Outcome:
    """Every rank of every DP rank that must reject, does, and what must be accepted is."""
    for slot in view.rejected:
        took = _accepted_by(slot)
        if took:
            seen = slot.publisher.published
            shape = "nothing" if seen is None else f"{list(seen.shape)}"
            return failed(
                f"step {slot.step}, DP rank {slot.dp}: TP ranks {took} accepted what must be rejected "
                f"({slot.expected.error}); published {shape}"
            )
    return own_rows(view)


def value_error(view: View) -> Outcome:
    """LAY-08: rejected, with a ValueError."""
    outcome = rejection(view)
    if outcome.verdict is not Verdict.PASSED:
        return outcome
    for slot in view.rejected:
        for tp, failure in slot.refusals:
            if "ValueError" not in failure.types:
                return failed(
                    f"step {slot.step}, dp{slot.dp}/tp{tp}: rejected with {failure.types[0]} "
                    f"({failure.message}), expected a ValueError"
                )
    return PASSED


def capacity(view: View) -> Outcome:
    """BUF-04: a larger step is captured whole or refused, by all TP ranks alike; never cut."""
    limit = view.case.config.max_tokens
    for slot in view.rejected:
        if not isinstance(slot.expected.error, CapacityError):
            continue
        took = _accepted_by(slot)
        if took and len(took) < len(slot.ranks):
            return failed(f"step {slot.step}, DP rank {slot.dp}: only TP ranks {took} accepted the step")
        if took:
            counts = view.case.steps[slot.step].context.real
            rows = 0 if slot.publisher.published is None else slot.publisher.published.shape[0]
            if rows != counts[slot.dp]:
                return failed(
                    f"step {slot.step}, DP rank {slot.dp}: {counts[slot.dp]} tokens, a buffer of {limit} "
                    f"rows: neither refused nor captured whole ({rows} rows published)"
                )
    return own_rows(view)


FITS = Outcome(Verdict.UNSUPPORTED, "the engine's buffer fits the larger step, so nothing is to be rejected")


def fits(view: View) -> bool:
    """Whether what may be refused for its size alone was captured whole instead (BUF-04)."""
    return (
        bool(view.rejected)
        and all(isinstance(slot.expected.error, CapacityError) for slot in view.rejected)
        and not any(slot.refusals for slot in view.rejected)
        and capacity(view).verdict is Verdict.PASSED
    )


def invalid_ids(view: View) -> Outcome:
    """IDS-02: an id outside [0, E) is an error at the publisher, or the declared marker."""
    marker = view.profile.missing
    for slot in view.rejected:
        if slot.publisher.failure is not None:
            continue
        seen = slot.publisher.published
        if marker is None or seen is None:
            shape = "nothing" if seen is None else "valid-looking ids"
            return failed(
                f"step {slot.step}, publisher dp{slot.dp}/tp0: published {shape}, where {slot.expected.error}"
            )
        problem = _marked(view, slot, marker)
        if problem:
            return failed(problem)
    return own_rows(view)


def _marked(view: View, slot: Slot, marker: int) -> str:
    """Check that exactly the invalid ids became the marker."""
    seen = slot.publisher.published
    config = view.case.config
    if seen is None or seen.shape[1:] != (config.layers, config.top_k):
        return (
            f"step {slot.step}: published {None if seen is None else list(seen.shape)}, expected [R_d, L, K]"
        )
    got = unpack(seen).astype("int64")
    producer = view.producers[slot.step]
    for layer in range(view.case.config.layers):
        table = producer.own(slot.dp, producer.parts[0])[: len(got)]
        table[:, 1] = layer
        want = producer.rows(table)[:, : view.case.config.top_k]
        valid = (want >= 0) & (want < view.case.config.experts)
        if (got[:, layer][valid] != want[valid]).any() or (got[:, layer][~valid] != marker).any():
            return f"step {slot.step}, layer {layer}: marker {marker} expected in place of invalid ids only"
    return ""


def untouched(view: View) -> Outcome:
    """BUF-02: a rejected step leaves the buffer of every rank as it was, and the next step is right."""
    if fits(view):
        return FITS
    if all(len(_accepted_by(slot)) == len(slot.ranks) for slot in view.rejected):
        return Outcome(Verdict.SKIPPED, "nothing was rejected, so there is no rejected call to judge")
    for slot in view.rejected:
        for tp, seen in enumerate(slot.ranks):
            if seen.failure is not None and seen.buffer_before != seen.buffer:
                return failed(
                    f"step {slot.step}: dp{slot.dp}/tp{tp} rejected the call ({seen.failure.types[0]}), "
                    f"yet its buffer changed: {changed(slot, tp)}"
                )
    return own_rows(view)


def lockstep(view: View) -> Outcome:
    """COL-01: the ranks of a group issue the same collectives, and none is left waiting."""
    for rank, step, failure in view.failures():
        if failure.kind in LOST:
            return failed(f"step {step}, {rank}: {failure.phase}: {failure.kind}: {failure.message}")
    for slot in view.slots:
        first = [(call.op, call.dtype, call.shape) for call in slot.publisher.collectives]
        for tp, seen in enumerate(slot.ranks):
            mine = [(call.op, call.dtype, call.shape) for call in seen.collectives]
            if mine != first:
                return failed(f"step {slot.step}, DP rank {slot.dp}: tp0 issued {first}, tp{tp} {mine}")
    return PASSED


def _gathers(view: View, limit: int | None) -> Outcome:
    """At most as many collectives as calls, or `limit`; whether one is needed at all is COL-02's affair."""
    for slot in view.accepted:
        if slot.refusals:
            return NOTHING_TO_JUDGE
        allowed = slot.expected.calls if limit is None else limit
        for tp, seen in enumerate(slot.ranks):
            if len(seen.collectives) > allowed:
                return failed(
                    f"step {slot.step}, dp{slot.dp}/tp{tp}: {len(seen.collectives)} collectives, "
                    f"at most {allowed} for {slot.expected.calls} calls, "
                    f"{slot.expected.gathers} of which need a gather"
                )
    return PASSED


def needless(view: View) -> Outcome:
    """COL-02: no collective in a step whose rows are whole."""
    for slot in view.accepted:
        if slot.expected.gathers == 0:
            for tp, seen in enumerate(slot.ranks):
                if seen.collectives:
                    return failed(
                        f"step {slot.step}, dp{slot.dp}/tp{tp}: {len(seen.collectives)} collectives, though "
                        f"the rows handed over {seen.handed[:1]} hold the own rows"
                    )
    return PASSED


def per_call(view: View) -> Outcome:
    """COL-03: at most one gather per captured layer call."""
    return _gathers(view, None)


def per_step(view: View) -> Outcome:
    """COL-04: one gather a step."""
    return _gathers(view, 1)


def checks_first(view: View) -> Outcome:
    """COL-05: what is rejected issues no collective."""
    if fits(view):
        return FITS
    if all(len(_accepted_by(slot)) == len(slot.ranks) for slot in view.rejected):
        return Outcome(Verdict.SKIPPED, "nothing was rejected, so no check can come first")
    for slot in view.rejected:
        for tp, seen in enumerate(slot.ranks):
            if seen.collectives and seen.failure is not None:
                return failed(
                    f"step {slot.step}, dp{slot.dp}/tp{tp}: {len(seen.collectives)} collectives before "
                    f"{seen.failure.types[0]}: {seen.failure.message}"
                )
    return PASSED


def gather_input(view: View) -> Outcome:
    """COL-06: contiguous, of a type that backends move. What comes out is LAY-02's affair."""
    silent = False
    for slot in view.slots:
        for tp, seen in enumerate(slot.ranks):
            for call in seen.collectives:
                if not call.contiguous or call.dtype not in MOVABLE:
                    form = "contiguous" if call.contiguous else "non-contiguous"
                    return failed(
                        f"step {slot.step}, dp{slot.dp}/tp{tp}: {call.op} of a {form} {call.dtype} "
                        f"input {list(call.shape)}"
                    )
        silent = silent or (slot.expected.gathers > 0 and not slot.publisher.collectives)
    if silent:
        return Outcome(Verdict.SKIPPED, "a gather was needed and none was seen; LAY-02 tells what came of it")
    return PASSED


def host_reads(view: View) -> Outcome:
    """COL-07: the capture path runs on ids that have no data, so nothing read them.

    An operation that torch cannot do without data is told from a read by its message.
    """
    for rank, step, failure in view.failures():
        where = f"step {step}, {rank}: {failure.phase} raised {failure.types[0]}: {failure.message}"
        if any(words in failure.message for words in _READS):
            return failed(f"the capture path reads ids or buffer from the host; {where}")
        return Outcome(Verdict.ERROR, f"the capture path does not run on tensors without data; {where}")
    return PASSED
