"""Contracts on the layout decision of `routeproof_impl`, and the two decisions side by side.

The decision's file is loaded by its path: importing its package would import torch, which
the proofs do without. CrossHair's `diffbehavior` reads no preconditions, so the domain is
guarded inside, and errors are return values.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

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


class _Step(NamedTuple):
    """A step at DP rank 0 of 1, or at DP rank 1 of 2, TP size 2, shard sizes known at DP 2."""

    n: int
    own: int
    shards: int
    """Shards of the DP rank before."""
    before: int
    alone: bool

    @property
    def rows(self) -> int:
        """Rows of a shard."""
        return (self.own + 1) // 2


def _step(kind: int, own: int, shards: int, before: int, alone: bool) -> _Step | None:
    """Give the step with the n of a layout, if there is one.

    An n that fits nothing is left out: the error's message would make the numbers concrete.
    """
    if kind < 0 or own < 0 or shards < 0 or not shards <= before <= 2 * shards or (alone and shards > 0):
        return None
    rows = (own + 1) // 2
    if kind == 0:
        return _Step(before + own, own, shards, before, alone)
    if kind == 1:
        return _Step(own, own, shards, before, alone)
    if kind == 2:  # noqa: PLR2004 - a shard
        return _Step(rows, own, shards, before, alone)
    if kind == 3:  # noqa: PLR2004 - padded rows: of all DP ranks, or at DP 1 of this one
        return _Step(2 * (shards + rows), own, shards, before, alone)
    return None


def _spelt(step: _Step, start: int, gather: bool) -> int:
    """Spell a decision in few values: an int that depends on a count would have a path for each."""
    if gather:
        return 4 if start == 0 else 5
    if start == 0:
        return 0
    if start == step.before:
        return 1
    return 2 if start == 2 * step.shards else 3


def reference_decision(kind: int, own: int, shards: int, before: int, alone: bool) -> int:
    """Give the reference's decision in the default set."""
    step = _step(kind, own, shards, before, alone)
    if step is None:
        return OUTSIDE
    try:
        found = resolve(
            n=step.n,
            own=own,
            before=before,
            total=before + own,
            largest=own,
            dp_rank=0 if alone else 1,
            dp=1 if alone else 2,
            tp=2,
            has_sizes=not alone,
            sizes_formed=not alone,
            sizes_before=2 * shards,
            sizes_own=2 * step.rows,
            sizes_total=2 * (shards + step.rows),
            cross_dp=True,
            full=True,
            gathered_shards=True,
            padded_to_max=False,
            tp_shard=True,
            padded_local=alone,
        )
    except LayoutError:
        return REJECTED
    return _spelt(step, found.start, found.gather)


def impl_decision(kind: int, own: int, shards: int, before: int, alone: bool) -> int:
    """Give the capturer's decision in the default set."""
    step = _step(kind, own, shards, before, alone)
    if step is None:
        return OUTSIDE
    found = _plain.locate(
        n=step.n,
        counted=True,
        own=own,
        before=before,
        total=before + own,
        largest=own,
        dp=1 if alone else 2,
        tp=2,
        dp_rank=0 if alone else 1,
        sized=not alone,
        grouped=not alone,
        gathered=2 * (shards + step.rows),
        group_before=2 * shards,
        group_rows=2 * step.rows,
        cross_dp=True,
        full=True,
        gathered_shards=True,
        padded_to_max=False,
        tp_shard=True,
        padded_local=alone,
        declared=_plain.UNDECLARED,
    )
    if found.verdict != _plain.FITS:
        return REJECTED
    return _spelt(step, found.start, found.gather)


def impl_full(own: int, shards: int, before: int, alone: bool) -> int:
    """Give the capturer's decision on FULL rows."""
    return impl_decision(1, own, shards, before, alone)


def planted_full(own: int, shards: int, before: int, alone: bool) -> int:
    """Control: the reference's decision on FULL rows, but wrong for one odd step."""
    found = reference_decision(1, own, shards, before, alone)
    return found + 6 if own == 7 and before == 2 else found  # noqa: PLR2004
