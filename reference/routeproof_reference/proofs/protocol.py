"""Ranks, layers and steps as processes: every interleaving, searched state by state.

A rank runs a program made from the layout decisions of the code examined. It has a
compute part, which goes through its program, and a copy part, which takes the snapshot on
a stream of its own. Groups are declared, not inferred: a rank that never joins is missed.
"""

from collections.abc import Iterator
from typing import NamedTuple

from routeproof_spec import Layout

from routeproof_reference.proofs.obligation import Check, Status
from routeproof_reference.proofs.scenario import figures_of, right_sizes
from routeproof_reference.proofs.target import Outcome, Target, members_of

MAX_STATES = 2_000_000


class Action(NamedTuple):
    """One thing that a rank does."""

    kind: str
    """write, gather, fence (wait for the copy of an earlier step), copy (start one), fail."""
    layer: int = 0
    step: int = 0
    shape: int = 0
    """Rows gathered: all members must bring as many."""


Program = tuple[Action, ...]


class Setting(NamedTuple):
    """What is searched."""

    tp: int
    counts: tuple[int, ...]
    emitted: tuple[Layout, ...]
    """Layout of each step."""
    layers: int
    deferred: bool
    """One gather a step, instead of one a layer."""


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(tp, counts, emitted, layers, deferred)
    for deferred in (False, True)
    for tp, counts, layers in ((2, (3,), 3), (2, (5, 3), 2), (4, (5,), 2), (3, (1, 4), 2), (2, (0, 3), 3))
    for emitted in (
        (Layout.TP_SHARD, Layout.TP_SHARD),
        (Layout.FULL, Layout.TP_SHARD),
        (Layout.TP_SHARD, Layout.CROSS_DP),
    )
)

FAULTS: tuple[str, ...] = (
    "a rank is handed one row less",
    "a rank skips the gather",
    "layers in another order on one rank",
    "a layer is not written",
    "no fence before the next step",
)


def programs(target: Target, setting: Setting, fault: str) -> tuple[tuple[Program, ...], ...]:
    """Write the programs [group][TP rank] that the target's decisions make."""
    return tuple(
        tuple(tuple(_program(target, setting, dp, tp, fault)) for tp in range(setting.tp))
        for dp in range(len(setting.counts))
    )


def _rows(setting: Setting, layout: Layout, dp: int) -> int:
    own = setting.counts[dp]
    s = -(-own // setting.tp)
    return {Layout.FULL: own, Layout.CROSS_DP: sum(setting.counts), Layout.TP_SHARD: s}[layout]


def _program(  # noqa: C901 - one branch per kind of action, and the planted faults
    target: Target, setting: Setting, dp: int, tp: int, fault: str
) -> Iterator[Action]:
    members = members_of(target.layouts(min(2, len(setting.counts))))
    odd = tp == setting.tp - 1
    sizes = right_sizes(setting.counts, setting.tp) if len(setting.counts) > 1 else None
    for step, layout in enumerate(setting.emitted):
        if step and fault != "no fence before the next step":
            yield Action("fence", step=step)
        order = list(range(setting.layers))
        if fault == "layers in another order on one rank" and odd:
            order.reverse()
        joint: list[Action] = []
        for layer in order:
            n = _rows(setting, layout, dp)
            if fault == "a rank is handed one row less" and odd and layout is Layout.TP_SHARD:
                n = max(0, n - 1)
            found = target.decide(figures_of(setting.counts, dp, setting.tp, n, sizes), members, None)
            if found.outcome is not Outcome.ROWS:
                yield Action("fail", layer, step)
                return
            if (found.gather or found.gathers) and not (fault == "a rank skips the gather" and odd):
                gather = Action("gather", layer, step, n)
                joint.append(gather)
                if not setting.deferred:
                    yield gather
            if fault != "a layer is not written" or layer != setting.layers - 1 or step == 0:
                yield Action("write", layer, step)
        if setting.deferred and joint:
            yield Action("gather", joint[0].layer, step, sum(action.shape for action in joint))
        if tp == 0:
            yield Action("copy", step=step)


class State(NamedTuple):
    """One moment of one group."""

    at: tuple[int, ...]
    """Program counter of each rank."""
    written: tuple[int, ...]
    """Step whose rows each layer of the publisher's buffer holds; -1: none."""
    copying: tuple[int, int] | None
    """Step that is being copied at the publisher, and layers copied so far."""


def search(target: Target, fault: str = "", settings: tuple[Setting, ...] = SETTINGS) -> Check:
    """Search all interleavings of all settings; DP ranks share no group, so each group stands alone."""
    states = 0
    gathers = 0
    for setting in settings:
        for group in programs(target, setting, fault):
            gathers += sum(action.kind == "gather" for program in group for action in program)
            found, seen = _explore(group, setting.layers)
            states += seen
            if found:
                return Check(Status.REFUTED, f"{found} ({setting}, after {states:,} states)")
            if states > MAX_STATES:
                return Check(Status.OPEN, f"more than {MAX_STATES:,} states")
    vacuous = () if gathers else ("nothing is gathered",)
    return Check(Status.ESTABLISHED, f"{states:,} states, {len(settings)} settings", None, vacuous)


def _explore(group: tuple[Program, ...], layers: int) -> tuple[str, int]:
    """Give what goes wrong, or "", and the number of states."""
    start = State((0,) * len(group), (-1,) * layers, None)
    seen, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        moves = list(_moves(group, state, layers))
        for wrong, following in moves:
            if wrong:
                return wrong, len(seen)
            if following not in seen:
                seen.add(following)
                waiting.append(following)
        over = all(at == len(program) for at, program in zip(state.at, group, strict=True))
        if not moves and not over:
            stuck = [rank for rank, at in enumerate(state.at) if at < len(group[rank])]
            return f"deadlock: ranks {stuck} wait for one that has gone on", len(seen)
    return "", len(seen)


def _moves(  # noqa: C901, PLR0912 - one branch per kind of action
    group: tuple[Program, ...], state: State, layers: int
) -> Iterator[tuple[str, State]]:
    """Give every next state, or what is wrong with taking it."""
    heads = [program[at] if at < len(program) else None for program, at in zip(group, state.at, strict=True)]
    joined = [head for head in heads if head is not None and head.kind == "gather"]
    if len(joined) == len(group):
        if len(set(joined)) > 1:
            yield f"mispaired collectives: {sorted(set(joined))}", state
        else:
            yield "", state._replace(at=tuple(at + 1 for at in state.at))
    for rank, head in enumerate(heads):
        if head is None or head.kind == "gather":
            continue
        after = state._replace(at=tuple(at + (number == rank) for number, at in enumerate(state.at)))
        if head.kind == "write" and rank == 0:
            held = state.copying
            if held is not None and head.layer >= held[1] and held[0] != head.step:
                yield f"layer {head.layer} of step {held[0]} is overwritten before it is copied", state
            written = (*state.written[: head.layer], head.step, *state.written[head.layer + 1 :])
            yield "", after._replace(written=written)
        elif head.kind == "copy":
            if state.copying is None:
                yield "", after._replace(copying=(head.step, 0))
        elif head.kind != "fence" or rank != 0 or state.copying is None:
            yield "", after
    if state.copying is not None:
        step, done = state.copying
        if state.written[done] != step:
            yield f"layer {done} of step {step} is published with rows of step {state.written[done]}", state
        else:
            yield "", state._replace(copying=None if done + 1 == layers else (step, done + 1))
