"""Establishing one obligation about one target: which check, which controls."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from routeproof_spec import Layout

from routeproof_reference.proofs import box, crosshair, examples, facts, placed, protocol, smt, uncounted
from routeproof_reference.proofs.obligation import Check, Obligation, Result, UnknownShapeError, judge
from routeproof_reference.proofs.registry import BY_ID, DECISIONS, FACTS, OBLIGATIONS, TARGET_FACTS
from routeproof_reference.proofs.slots import GraphTarget
from routeproof_reference.proofs.target import Target

NEED_SETS = ("order", "order-any-set", "declared", "box-every-set", "contracts", "arrays")
"""Obligations of code that takes any set of layouts, declarations, and flat ints."""

ABOUT_LAYOUTS = (*(name for name in FACTS if name not in TARGET_FACTS), "producers")
"""Obligations about layouts alone: asked once, with the reference."""

INFERENCE = ("malformed-groups", "uncounted", "padded-local-misread", "uneven-shards", "physical-counts")
"""Obligations of code that infers the layout, or is told shard sizes."""

DEPLOYED = ("own-rows", "other-ranks", "zero-tokens", "fail-closed", "needless-gather")
"""Claims about code that is started for its layout."""

OF_GRAPHS = ("slots-in-requests",)
"""Facts about decode graphs."""

CONTRACTS = ("cross_dp_tp2", "shards_tp2", "tp_shard_tp3", "full_tp4")

Examine = Callable[[str], Check]
"""Gives the check of the subject (called with ""), or of a planted fault."""


def names_for(target: Target, deep: bool) -> tuple[str, ...]:
    """Give the obligations that this package can examine of a target."""
    known = (*DECISIONS, *FACTS, *(item.id for item in OBLIGATIONS if item.id in _SEARCHES))
    return tuple(
        name
        for name in known
        if (deep or not BY_ID[name].deep)
        and (target.configurable or name not in NEED_SETS)
        and (target.name == "reference" or name not in ABOUT_LAYOUTS)
        and (not target.deployed or name not in INFERENCE)
        and (_gathers(target) or name != "protocol")
        and (isinstance(target, GraphTarget) or name not in OF_GRAPHS)
        and (isinstance(target, placed.PlacedTarget) or name != "placed")
    )


def _gathers(target: Target) -> bool:
    """Whether shards are handed to it; where none are, no collective can be told from another."""
    return Layout.TP_SHARD in target.layouts(2)


def establish(name: str, target: Target, deep: bool = False, contracts: str = "") -> Result:
    """Establish one obligation.

    Args:
        name: id of the obligation.
        target: the code examined.
        deep: wider scopes.
        contracts: module with the contracts of this target; empty: the reference's.

    """
    return settle(BY_ID[name], target, examiner(name, target, deep, contracts))


def settle(obligation: Obligation, target: Target, examine: Examine) -> Result:
    """Judge an obligation, and time it."""
    start = time.perf_counter()
    own: Mapping[str, tuple[str, ...]] = getattr(target, "controls", {})
    result = judge(obligation, target.name, examine, own.get(obligation.id))
    return replace(result, seconds=time.perf_counter() - start)


def examiner(name: str, target: Target, deep: bool, contracts: str) -> Examine:
    """Give the check of an obligation."""
    if name == "uncounted":
        return lambda fault: uncounted.establish(target.faulty(fault) if fault else target)
    if name == "placed":
        return lambda fault: placed.establish(target.faulty(fault) if fault else target)
    if name in facts.FACTS:
        return lambda fault: _fact(name, target, fault, deep)
    if name in DECISIONS:
        return lambda fault: _decision(name, target, fault, deep)
    return _SEARCHES[name](target, contracts)


def _fact(name: str, target: Target, fault: str, deep: bool) -> Check:
    """Establish a fact; a fault is one of the target, or a faulty statement."""
    if fault in target.faults:
        return facts.establish(name, target.faulty(fault), (2, None), "")
    sizes = smt.TP_SIZES if deep else smt.FEW_TP_SIZES
    return facts.establish(name, target, (2, None) if fault else (*sizes, None), fault)


def _meant(target: Target, check: Check) -> Check:
    """Drop from the vacuous parts that a gather is needed, where no shards are handed over."""
    if _gathers(target):
        return check
    return replace(check, vacuous=tuple(part for part in check.vacuous if not part.endswith("needed")))


def _decision(name: str, target: Target, fault: str, deep: bool) -> Check:
    if fault:
        return smt.prove(target.faulty(fault), name, (2, 3))
    singly = smt.TP_SIZES if deep or name == "own-rows" else smt.FEW_TP_SIZES
    if name == "order-any-set":
        singly = smt.FEW_TP_SIZES if deep else ()
    sizes: tuple[int | None, ...] = (*singly, None)
    return _meant(target, smt.prove(target, name, sizes))


def _box(bounds: box.Bounds, every_set: bool) -> Callable[[Target, str], Examine]:
    def make(target: Target, _: str) -> Examine:
        only = DEPLOYED if target.deployed else None

        def examine(fault: str) -> Check:
            code = target.faulty(fault) if fault else target
            return _meant(target, box.enumerate_box(code, bounds, every_set, only, whole=not fault))

        return examine

    return make


def _protocol(target: Target, _: str) -> Examine:
    settings = protocol.SETTINGS
    if target.deployed:
        layout = next(iter(target.layouts(2)))
        same = (setting._replace(emitted=(layout, layout)) for setting in settings if not setting.deferred)
        settings = tuple(dict.fromkeys(same))

    def examine(fault: str) -> Check:
        try:
            return protocol.search(target, fault, settings)
        except UnknownShapeError as error:
            raise UnknownShapeError(f"protocol: {error}") from error

    return examine


def _contracts(_: Target, module: str) -> Examine:
    where = module or "routeproof_reference.proofs.contracts"
    return lambda fault: crosshair.check_contracts(where, (fault,) if fault else CONTRACTS)


def _arrays(target: Target, _: str) -> Examine:
    return lambda fault: examples.check_arrays(target.faulty(fault) if fault else target)


_SEARCHES: dict[str, Callable[[Target, str], Examine]] = {
    "box": _box(box.BOX, every_set=False),
    "box-every-set": _box(box.SETS_BOX, every_set=True),
    "box-deep": _box(box.DEEP, every_set=False),
    "producers": lambda _target, _module: examples.check_producers,
    "protocol": _protocol,
    "contracts": _contracts,
    "arrays": _arrays,
}
