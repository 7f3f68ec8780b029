"""Obligations of the capturer in torch: drawn steps, the state machine, meta tensors."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any, Final, Literal

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from routeproof_reference import Producer, expected, plan, producers
from routeproof_reference.proofs import child, crosshair
from routeproof_reference.proofs.group import GroupError, SequentialGroup
from routeproof_reference.proofs.machine import machine
from routeproof_reference.proofs.obligation import Check, OpenError, Status
from routeproof_reference.proofs.registry import BY_ID
from routeproof_reference.proofs.scenario import right_sizes
from routeproof_reference.proofs.strategies import malformed_sizes, off_by_some, steps, topologies
from routeproof_spec import (
    PRECEDENCE,
    Call,
    CaptureConfig,
    CaptureError,
    Case,
    Layout,
    Microbatch,
    Rank,
    ShardGroupError,
    StepContext,
    Topology,
)

from routeproof_conformance.arrays import concatenate
from routeproof_conformance.engines import EngineError
from routeproof_conformance.engines.own import PerLayerEngine, RouteproofEngine
from routeproof_conformance.prove import differential

CONTRACTS = "routeproof_conformance.prove.contracts"
EXAMPLES = 400
ENOUGH = 20
"""Fewer examples of an outcome say nothing about it."""
RUNS = (60, 40)
"""Of the machine, by mode."""
STEPS = 10
"""Rules in a run."""
REUSED = 25
"""Fewer runs that use buffers again say nothing about it, nor fewer steps ended after a rejected call."""
MODES: Final[tuple[Literal["deferred", "per-layer"], ...]] = ("deferred", "per-layer")
_META = CaptureConfig(max_tokens=24, layers=2, top_k=8, experts=256)
_DRAWN = CaptureConfig(max_tokens=40, layers=1, top_k=8, experts=256)


def _engines() -> tuple[RouteproofEngine, ...]:
    """Give the capturer in both modes."""
    try:
        return RouteproofEngine(), PerLayerEngine()
    except EngineError as error:
        raise OpenError(str(error)) from error


def _settings(examples: int, **more: Any) -> settings:  # noqa: ANN401
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        **more,
    )


class DifferenceError(Exception):
    """The capturer and the reference differ; carries the example out of Hypothesis."""


def same_decision(fault: str) -> Check:
    """Compare the two decisions by CrossHair."""
    if fault:
        return crosshair.same(CONTRACTS, fault, "impl_full")
    return crosshair.same(CONTRACTS, "reference_decision", "impl_decision")


def layouts_drawn(fault: str) -> Check:
    """Draw steps layout first, and compare what is published, or the error, in both modes."""
    engines = _engines()
    seen: Counter[str] = Counter()

    @_settings(EXAMPLES)
    @given(data=st.data())
    def agrees(data: st.DataObject) -> None:
        topology = data.draw(topologies())
        dp = data.draw(st.integers(0, topology.dp - 1))
        kind = data.draw(st.integers(0, 4))
        config = _DRAWN
        if kind == 0:
            step = data.draw(malformed_sizes(topology, config))
        else:
            step = data.draw(steps(topology, config, forms=True))
        if kind == 1:
            config = config.model_copy(
                update={"layouts": data.draw(st.frozensets(st.sampled_from(PRECEDENCE)))}
            )
        if kind == 2:  # noqa: PLR2004 - the kinds are numbered
            rank = Rank(topology=topology, dp=dp, tp=0)
            n = len(Producer(topology, config, step, 0).handed(rank, Call(layer=0))[0])
            step = step.model_copy(update={"calls": (data.draw(off_by_some(config, n)),)})
        case = Case(id="LAY-02/drawn[]", rules=("LAY-02",), topology=topology, config=config, steps=(step,))
        for engine in engines:
            seen[_compare(engine, case, dp, fault)] += 1

    try:
        agrees()
    except (DifferenceError, GroupError) as error:
        return Check(Status.REFUTED, str(error))
    told = ", ".join(f"{number} {what}" for what, number in sorted(seen.items()))
    few = [what for what in ("accepted", "LayoutError", "ShardGroupError") if seen[what] < ENOUGH]
    return Check(Status.OPEN if few else Status.ESTABLISHED, f"{EXAMPLES} examples in two modes: {told}")


def _compare(engine: RouteproofEngine, case: Case, dp: int, fault: str) -> str:
    """Give what the step comes to; raise DifferenceError."""
    wanted = expected(case)[0][dp]
    reverse = fault == "per layer, shards in another order" and engine.mode == "per-layer"
    group = SequentialGroup(case.topology.tp, concatenate, reverse)
    got, error = _made(engine, case, dp, group)
    if fault == "malformed sizes pass" and isinstance(error, ShardGroupError):
        error = None
    where = f"{case.steps[0]}, DP rank {dp}, {engine.name}"
    if type(error) is not type(wanted.error):
        raise DifferenceError(f"{where}: {error!r}, expected {wanted.error!r}")
    if any(member.strided for member in group.members):
        raise DifferenceError(f"{where}: a strided gather")
    issued = group.settle()
    if issued != (0 if error is not None else wanted.gathers):
        raise DifferenceError(f"{where}: {issued} collectives")
    if error is not None or wanted.published is None:
        return type(error).__name__
    rows = np.roll(got, 1, axis=0) if fault == "a row too early" else got
    if not np.array_equal(rows, np.maximum(wanted.published, 0)):
        raise DifferenceError(f"{where}: other rows")
    return "accepted"


def _made(
    engine: RouteproofEngine, case: Case, dp: int, group: SequentialGroup
) -> tuple[Any, Exception | None]:
    """Make the step on all ranks; give what the publisher publishes, or its error."""
    (producer,) = producers(case)
    got: Any = None
    error: Exception | None = None
    for tp in reversed(range(case.topology.tp)):
        rank = Rank(topology=case.topology, dp=dp, tp=tp)
        capturer = engine.create(case.config, rank, group.members[tp])
        got = error = None
        try:
            capturer.begin_step(producer.context(rank))
            for call in producer.calls:
                capturer.capture(call.layer, producer.ids(rank, call), call.microbatch)
            capturer.end_step()
            got = capturer.published()
        except (ValueError, IndexError, RuntimeError) as raised:
            error = raised
    return got, error


class _Faulty:
    """Control: an engine whose faults the machine has to find."""

    def __init__(self, inner: Any, fault: str, config: CaptureConfig, comm: Any) -> None:  # noqa: ANN401
        self.inner, self.fault, self.layers, self.comm = inner, fault, config.layers, comm
        self.end_step = inner.end_step
        shape = (config.max_tokens, config.layers, config.top_k)
        self.ring = [np.zeros(shape, np.uint8) for _ in range(2)]
        self.step: StepContext | None = None

    def begin_step(self, step: StepContext) -> None:
        self.step = step
        self.inner.begin_step(step)

    def capture(self, layer: int, ids: Any, microbatch: int) -> None:  # noqa: ANN401
        early = self.fault == "a collective before a rejection" and not 0 <= layer < self.layers
        if early and self.comm.size > 1:
            self.comm.all_gather(ids)
        self.inner.capture(layer, ids, microbatch)

    def published(self) -> Any:  # noqa: ANN401
        rows = self.inner.published()
        if rows is None:
            return None
        if self.fault == "a snapshot's memory is used again":
            self.ring.reverse()
            self.ring[0][: len(rows)] = rows
            return self.ring[0][: len(rows)]
        parts = self.step.microbatches if self.step is not None else ()
        if self.fault == "a microbatch at the offset of another" and parts:
            first, second = (part.real[self.inner.capturer._rank.dp] for part in parts)  # noqa: SLF001
            most = min(first, second)
            rows = rows.copy()
            rows[first : first + most] = rows[:most]
        return rows


def state_machine(fault: str) -> Check:
    """Run the machine on the capturer, in both modes."""
    told = []
    for engine, runs in zip(_engines(), RUNS, strict=True):
        check = _runs(engine, runs, fault)
        if check.status is not Status.ESTABLISHED:
            return check
        told.append(check.detail)
    return Check(Status.ESTABLISHED, "; ".join(told))


def _runs(engine: RouteproofEngine, runs: int, fault: str) -> Check:
    def make(config: CaptureConfig, rank: Rank, comm: Any) -> Any:  # noqa: ANN401
        capturer = engine.create(config, rank, comm)
        return _Faulty(capturer, fault, config, comm) if fault else capturer

    check = runs_of(machine(make, concatenate, drops_rejected=True), runs)
    return Check(check.status, f"{engine.mode}: {check.detail}")


def runs_of(found: Any, runs: int) -> Check:  # noqa: ANN401 - the class that `machine` gives
    """Run a machine; open where too little has happened."""
    told = _settings(runs, stateful_step_count=STEPS, print_blob=False, verbosity=Verbosity.quiet)
    try:
        run_state_machine_as_test(found, settings=told)
    except (AssertionError, GroupError) as error:
        return Check(Status.REFUTED, str(error).splitlines()[0])
    detail = ", ".join(f"{number} {what}" for what, number in found.seen.items())
    few = min(found.seen["runs that use buffers again"], found.seen["ended after a rejected call"]) < REUSED
    return Check(Status.OPEN if few else Status.ESTABLISHED, detail)


def optimised(fault: str) -> Check:
    """Run the comparison under `python -O`."""
    return _optimised()[fault]


@cache
def _optimised() -> dict[str, Check]:
    """Give the checks by fault, all from one process."""
    faults = BY_ID["differential-optimised"].controls
    done = child.run(differential.__name__, *faults, optimised=True)
    if done.returncode:
        raise OpenError(f"python -O failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if not all(document["optimised"] for document in found):
        raise OpenError("python -O still has its assertions")
    checks = [Check(Status(document["status"]), document["detail"]) for document in found]
    return dict(zip(("", *faults), checks, strict=True))


class _Meta:
    """A communicator of tensors without data."""

    def __init__(self, torch: Any, rank: Rank) -> None:  # noqa: ANN401
        self.torch, self.rank, self.size = torch, rank.tp, rank.topology.tp

    def all_gather(self, rows: Any) -> Any:  # noqa: ANN401
        return self.torch.cat([rows] * self.size)

    def gather(self, rows: Any, dst: int = 0) -> Any:  # noqa: ANN401
        gathered = self.all_gather(rows)
        return gathered if self.rank == dst else None


def _queued_copies(torch: Any) -> Any:  # noqa: ANN401
    """Let a copy to the host pass that is only queued, as the snapshot's is; a blocking one raises."""
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    class Queued(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
        def __torch_dispatch__(self, *call: Any) -> Any:  # noqa: ANN401
            func, _, args = call[:3]
            kwargs = call[3] if len(call) > 3 else {}  # noqa: PLR2004
            if func is torch.ops.aten.copy_.default and len(args) > 1:
                queued = args[2] if len(args) > 2 else kwargs.get("non_blocking")  # noqa: PLR2004
                if queued and args[1].is_meta and not args[0].is_meta:
                    return args[0]
            return func(*args, **kwargs)

    made: Any = Queued
    return made()


def _meta_contexts(tp: int) -> Iterator[tuple[Topology, StepContext]]:
    """Give steps: inferred, declared, without counts, and of two microbatches."""
    for counts in ((5,), (1, 4)):
        topology = Topology(tp=tp, dp=len(counts))
        sizes = right_sizes(counts, tp)
        for declared in (None, Layout.GATHERED_SHARDS, Layout.PADDED_TO_MAX, Layout.PADDED_LOCAL):
            yield topology, StepContext(counts=counts, real=counts, shard_sizes=sizes, declared=declared)
        yield topology, StepContext(counts=None, real=counts)
        parts = tuple(
            Microbatch(offset=at, counts=counts, real=counts, shard_sizes=sizes)
            for at in (0, _META.max_tokens // 2)
        )
        both = tuple(2 * count for count in counts)
        whole = (_META.max_tokens,) * len(counts)
        yield topology, StepContext(counts=whole, real=both, microbatches=parts)


def _meta_rows(rank: Rank, context: StepContext) -> dict[int, Layout]:
    """Give every n that is accepted, with the layout that it is taken for."""
    found = {}
    for n in range(_META.max_tokens + 1):
        with suppress(CaptureError):
            found[n] = plan(_META, rank, context, 0, 0, n, _META.width).layout
    if context.counts is None:
        return {n: layout for n, layout in found.items() if n == context.real[rank.dp]}
    return found


def no_host_sync(fault: str) -> Check:
    """Run the capture path on meta tensors: whoever reads one raises."""
    _engines()
    import torch  # noqa: PLC0415
    from routeproof_impl import RoutedExpertsCapturer  # noqa: PLC0415

    done, layouts = 0, set()
    for tp, mode in product((1, 2, 3), MODES):
        made: dict[Rank, Any] = {}
        for topology, context in _meta_contexts(tp):
            for rank in topology.ranks():
                if rank.tp and tp != 2:  # noqa: PLR2004 - who does not publish is seen at TP 2
                    continue
                if rank not in made:
                    made[rank] = RoutedExpertsCapturer(
                        _META, rank, _Meta(torch, rank), device="meta", mode=mode
                    )
                for n, layout in _meta_rows(rank, context).items():
                    layouts.add(layout)
                    for dtype in (torch.int64,) if context.declared else (torch.int32, torch.int64):
                        ids = torch.empty((n, 2 * _META.width), dtype=dtype, device="meta")[:, ::2]
                        try:
                            _meta_step(made[rank], context, ids, fault)
                        except (RuntimeError, NotImplementedError) as error:
                            where = f"{mode}, {rank}, {layout}, n = {n}, {dtype}"
                            return Check(Status.REFUTED, f"{where}: {str(error).splitlines()[0]}")
                        done += 1
    missing = sorted(set(Layout) - layouts)
    return Check(
        Status.OPEN if missing else Status.ESTABLISHED,
        f"{done:,} steps" + f", without {missing}" * bool(missing),
    )


def _meta_step(capturer: Any, context: StepContext, ids: Any, fault: str) -> None:  # noqa: ANN401
    import torch  # noqa: PLC0415

    read = {"": (), "ids of 64 bits are read": (torch.int64,)}.get(fault, (torch.int32, torch.int64))
    with _queued_copies(torch):
        capturer.begin_step(context)
        for layer, part in product((0, 1), range(max(1, len(context.microbatches)))):
            if ids.dtype in read and ids.numel():
                ids.max().item()
            capturer.capture(layer, ids, part)
        capturer.end_step()


CHECKS: dict[str, Callable[[str], Check]] = {
    "same-decision": same_decision,
    "layouts-drawn": layouts_drawn,
    "state-machine": state_machine,
    "differential": differential.run,
    "differential-per-layer": differential.per_layer,
    "differential-optimised": optimised,
    "no-host-sync": no_host_sync,
}
"""By obligation."""
