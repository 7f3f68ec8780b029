"""Obligations of the capturer in torch: drawn steps, the state machine, meta tensors."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from routeproof_reference import expected, producers
from routeproof_reference.proofs import child, crosshair
from routeproof_reference.proofs.group import SequentialGroup
from routeproof_reference.proofs.machine import machine
from routeproof_reference.proofs.obligation import Check, OpenError, Status
from routeproof_reference.proofs.registry import BY_ID
from routeproof_reference.proofs.scenario import right_sizes
from routeproof_reference.proofs.strategies import off_by_some, steps, topologies
from routeproof_spec import CaptureConfig, Case, Layout, Rank, StepContext, Topology

from routeproof_conformance.arrays import concatenate
from routeproof_conformance.engines import EngineError
from routeproof_conformance.engines.own import RouteproofEngine
from routeproof_conformance.prove import differential

CONTRACTS = "routeproof_conformance.prove.contracts"
EXAMPLES = 400
RUNS = 40
_DRAWN = CaptureConfig(max_tokens=40, layers=1, top_k=8, experts=256)


def _engine() -> RouteproofEngine:
    try:
        return RouteproofEngine()
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
    """Draw steps layout first, and compare what is published, or the error."""
    engine = _engine()

    @_settings(EXAMPLES)
    @given(data=st.data())
    def agrees(data: st.DataObject) -> None:
        topology = data.draw(topologies())
        step = data.draw(steps(topology, _DRAWN))
        if data.draw(st.booleans()) and step.emitted is not Layout.TP_SHARD:
            n = {Layout.FULL: max(step.context.counts or (0,))}.get(step.emitted, 7)
            step = step.model_copy(update={"calls": (data.draw(off_by_some(_DRAWN, n)),)})
        case = Case(id="LAY-02/drawn[]", rules=("LAY-02",), topology=topology, config=_DRAWN, steps=(step,))
        dp = data.draw(st.integers(0, topology.dp - 1))
        _compare(engine, case, dp, fault)

    try:
        agrees()
    except DifferenceError as error:
        return Check(Status.REFUTED, str(error))
    return Check(Status.ESTABLISHED, f"{EXAMPLES} examples")


def _compare(engine: RouteproofEngine, case: Case, dp: int, fault: str) -> None:
    (producer,) = producers(case)
    wanted = expected(case)[0][dp]
    group = SequentialGroup(case.topology.tp, concatenate)
    ranks = [Rank(topology=case.topology, dp=dp, tp=tp) for tp in range(case.topology.tp)]
    got: Any = None
    error: Exception | None = None
    for rank in reversed(ranks):
        capturer = engine.create(case.config, rank, group.members[rank.tp])
        try:
            capturer.begin_step(producer.context(rank))
            for call in producer.calls:
                capturer.capture(call.layer, producer.ids(rank, call), call.microbatch)
            capturer.end_step()
            got = capturer.published()
        except ValueError as raised:
            error = raised
    if (error is None) != (wanted.error is None) or (error and type(error) is not type(wanted.error)):
        raise DifferenceError(f"{case.steps[0]}: {error!r}, expected {wanted.error!r}")
    if error is not None or wanted.published is None:
        return
    rows = np.roll(got, 1, axis=0) if fault else got
    if not np.array_equal(rows, np.maximum(wanted.published, 0)):
        raise DifferenceError(f"{case.steps[0]}, DP rank {dp}: other rows")


class _Shared:
    """Control: an engine whose faults the machine has to find."""

    def __init__(self, inner: Any, fault: str) -> None:  # noqa: ANN401
        self.inner, self.fault = inner, fault
        self.capture, self.end_step = inner.capture, inner.end_step
        self.dropped = False
        self.open = False

    def begin_step(self, step: StepContext) -> None:
        self.dropped, self.open = self.open, True
        self.inner.begin_step(step)

    def published(self) -> Any:  # noqa: ANN401
        self.open = False
        rows = self.inner.published()
        if self.fault == "an abandoned step is published" and self.dropped and rows is not None:
            return rows[:-1]
        shares = self.fault == "a snapshot shares the buffer" and rows is not None
        return self.inner.capturer.buffer.numpy()[: len(rows)] if shares else rows


def state_machine(fault: str) -> Check:
    """Run the machine on the capturer."""
    engine = _engine()

    def make(config: CaptureConfig, rank: Rank, comm: Any) -> Any:  # noqa: ANN401
        capturer = engine.create(config, rank, comm)
        return _Shared(capturer, fault) if fault else capturer

    steps_of_a_run = 20
    try:
        run_state_machine_as_test(
            machine(make, concatenate),
            settings=_settings(
                RUNS, stateful_step_count=steps_of_a_run, print_blob=False, verbosity=Verbosity.quiet
            ),
        )
    except AssertionError as error:
        return Check(Status.REFUTED, str(error).splitlines()[0])
    return Check(Status.ESTABLISHED, f"{RUNS} runs of up to {steps_of_a_run} rules")


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


def no_host_sync(fault: str) -> Check:
    """Run the capture path on meta tensors: whoever reads one raises."""
    _engine()
    import torch  # noqa: PLC0415
    from routeproof_impl import RoutedExpertsCapturer  # noqa: PLC0415

    done = 0
    config = CaptureConfig(max_tokens=12, layers=2, top_k=8, experts=256)
    for tp in (1, 2, 3):
        for counts in ((5,), (1,), (0,), (5, 3), (0, 4)):
            topology = Topology(tp=tp, dp=len(counts))
            sizes = right_sizes(counts, tp) if len(counts) > 1 else None
            context = StepContext(counts=counts, real=counts, shard_sizes=sizes)
            for rank in topology.ranks():
                capturer = RoutedExpertsCapturer(config, rank, _Meta(torch, rank), device="meta")
                for n in {sum(counts), counts[rank.dp], -(-counts[rank.dp] // tp), sum(sizes or counts)}:
                    ids = torch.empty((n, 8), dtype=torch.int32, device="meta")
                    try:
                        _meta_step(capturer, context, ids, fault)
                    except (RuntimeError, NotImplementedError) as error:
                        return Check(Status.REFUTED, f"{rank}, n = {n}: {str(error).splitlines()[0]}")
                    done += 1
    return Check(Status.ESTABLISHED, f"{done} steps")


def _meta_step(capturer: Any, context: StepContext, ids: Any, fault: str) -> None:  # noqa: ANN401
    import torch  # noqa: PLC0415

    with _queued_copies(torch):
        capturer.begin_step(context)
        for layer in (0, 1):
            if fault and ids.numel():
                ids.max().item()
            capturer.capture(layer, ids)
        capturer.end_step()


CHECKS: dict[str, Callable[[str], Check]] = {
    "same-decision": same_decision,
    "layouts-drawn": layouts_drawn,
    "state-machine": state_machine,
    "differential": differential.run,
    "differential-optimised": optimised,
    "no-host-sync": no_host_sync,
}
"""By obligation."""
