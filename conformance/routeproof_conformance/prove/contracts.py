"""Contracts on the layout decision of `routeproof_impl`, and the two decisions side by side.

The decision's file is loaded by its path: importing its package would import torch, which
the proofs do without. CrossHair's `diffbehavior` reads no preconditions, so the domain is
guarded inside, and errors are return values.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from routeproof_reference.resolve import resolve
from routeproof_spec import LayoutError

OUTSIDE = -2
REJECTED = -1


def load_decision() -> ModuleType:
    """Load `routeproof_impl.layout` without its package."""
    spec = importlib.util.find_spec("routeproof_impl")
    folder = (spec.submodule_search_locations or [""])[0] if spec is not None else ""
    name = "routeproof_impl_layout_alone"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, Path(folder) / "layout.py")
        if found is None or found.loader is None:
            raise ImportError("routeproof_impl has no layout.py")
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    return sys.modules[name]


_plain = load_decision()


def start_of(n: int, own: int, p: int, before: int, q: int, after: int, tp: int) -> int:
    """Give the first own row in the default set at DP > 1, plus 1 << 20 if gathered; or -1."""
    s = (own + tp - 1) // tp
    found = _plain.locate(
        n=n,
        counted=True,
        own=own,
        before=before,
        total=before + own + after,
        largest=own,
        dp=3,
        tp=tp,
        dp_rank=1,
        sized=True,
        grouped=True,
        gathered=tp * (p + s + q),
        group_before=tp * p,
        group_rows=tp * s,
        cross_dp=True,
        full=True,
        gathered_shards=True,
        padded_to_max=False,
        tp_shard=True,
        padded_local=False,
        declared=_plain.UNDECLARED,
    )
    if found.verdict != _plain.FITS:
        return REJECTED
    start: int = found.start
    return start + ((1 << 20) if found.gather else 0)


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


def _spelt(start: int, before: int, gather: bool) -> int:
    """Spell a decision in few values: an int that depends on a count would have a path for each."""
    if gather:
        return 3 if start == 0 else 4
    if start == 0:
        return 0
    return 1 if start == before else 2


def _n(kind: int, own: int, before: int) -> int:
    """Give the n of a layout; a message about an n that fits none would make numbers concrete."""
    if kind == 0:
        return before + own
    if kind == 1:
        return own
    return (own + 1) // 2


def reference_decision(kind: int, own: int, before: int) -> int:
    """Give the reference's decision at tp 2, DP rank 1 of 2, without shard sizes."""
    if kind < 0 or kind > 2 or own < 0 or before < 0:  # noqa: PLR2004 - three layouts
        return OUTSIDE
    try:
        found = resolve(
            n=_n(kind, own, before),
            own=own,
            before=before,
            total=before + own,
            largest=own,
            dp_rank=1,
            dp=2,
            tp=2,
            has_sizes=False,
            sizes_formed=False,
            sizes_before=0,
            sizes_own=0,
            sizes_total=0,
            cross_dp=True,
            full=True,
            gathered_shards=True,
            padded_to_max=False,
            tp_shard=True,
            padded_local=False,
        )
    except LayoutError:
        return REJECTED
    return _spelt(found.start, before, found.gather)


def impl_decision(kind: int, own: int, before: int) -> int:
    """Give the capturer's decision at tp 2, DP rank 1 of 2, without shard sizes."""
    if kind < 0 or kind > 2 or own < 0 or before < 0:  # noqa: PLR2004 - three layouts
        return OUTSIDE
    found = _plain.locate(
        n=_n(kind, own, before),
        counted=True,
        own=own,
        before=before,
        total=before + own,
        largest=own,
        dp=2,
        tp=2,
        dp_rank=1,
        sized=False,
        grouped=False,
        gathered=0,
        group_before=0,
        group_rows=0,
        cross_dp=True,
        full=True,
        gathered_shards=True,
        padded_to_max=False,
        tp_shard=True,
        padded_local=False,
        declared=_plain.UNDECLARED,
    )
    if found.verdict != _plain.FITS:
        return REJECTED
    return _spelt(found.start, before, found.gather)


def planted_decision(kind: int, own: int, before: int) -> int:
    """Control: the reference, but wrong for one odd step."""
    found = reference_decision(kind, own, before)
    return found + 5 if own == 7 and kind == 1 and before == 2 else found  # noqa: PLR2004
