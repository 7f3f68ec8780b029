"""Contracts on the layout decision of the reference, for CrossHair (PEP 316).

Flat ints only: with models or arrays CrossHair misses planted faults. What counts are the
words "Confirmed over all paths". TP sizes are fixed, so that divisions are linear.
"""

from routeproof_spec import LayoutError

from routeproof_reference.resolve import resolve

REJECTED = -1


def start_of(n: int, own: int, p: int, before: int, q: int, after: int, tp: int) -> int:
    """Give the first own row in the default set at DP > 1, plus 1 << 20 if gathered; or REJECTED."""
    s = (own + tp - 1) // tp
    try:
        found = resolve(
            n=n,
            own=own,
            before=before,
            total=before + own + after,
            largest=own,
            dp_rank=1,
            dp=3,
            tp=tp,
            has_sizes=True,
            sizes_formed=True,
            sizes_before=tp * p,
            sizes_own=tp * s,
            sizes_total=tp * (p + s + q),
            cross_dp=True,
            full=True,
            gathered_shards=True,
            padded_to_max=False,
            tp_shard=True,
            padded_local=False,
        )
    except LayoutError:
        return REJECTED
    return found.start + ((1 << 20) if found.gather else 0)


def cross_dp_tp2(own: int, p: int, before: int, q: int, after: int) -> int:
    """Restore CROSS_DP.

    pre: 0 <= own and 0 <= p <= before <= 2 * p and 0 <= q <= after <= 2 * q
    post: own == 0 or __return__ == before
    """
    return start_of(before + own + after, own, p, before, q, after, 2)


def shards_tp2(own: int, p: int, before: int, q: int, after: int) -> int:
    """Restore GATHERED_SHARDS.

    pre: 0 <= own and 0 <= p <= before <= 2 * p and 0 <= q <= after <= 2 * q
    post: own == 0 or __return__ == 2 * p
    """
    return start_of(2 * (p + (own + 1) // 2 + q), own, p, before, q, after, 2)


def tp_shard_tp3(own: int, p: int, before: int, q: int, after: int) -> int:
    """Restore TP_SHARD.

    pre: 1 < own and 0 <= p <= before <= 3 * p and 0 <= q <= after <= 3 * q
    post: __return__ == 1 << 20
    """
    return start_of((own + 2) // 3, own, p, before, q, after, 3)


def full_tp4(own: int, p: int, before: int, q: int, after: int) -> int:
    """Restore FULL.

    pre: 0 < own and 0 <= p <= before <= 4 * p and 0 <= q <= after <= 4 * q
    post: __return__ == 0
    """
    return start_of(own, own, p, before, q, after, 4)


def planted_tokens_for_shards(own: int, p: int, before: int, q: int, after: int) -> int:
    """Control: start at the tokens before, where the shards before are meant.

    pre: 0 < own and 0 <= p <= before <= 2 * p and 0 <= q <= after <= 2 * q
    post: __return__ == before
    """
    return start_of(2 * (p + (own + 1) // 2 + q), own, p, before, q, after, 2)
