"""A rule-based state machine: any order of steps, microbatches, rejected calls and dropped steps.

The engine under test and the reference do the same; what they publish and how they refuse
is compared, and every snapshot is looked at again after every rule (SNP-01).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from routeproof_spec import Call, CaptureConfig, Layout, Rank, Topology

from routeproof_reference.capturer import ReferenceCapturer
from routeproof_reference.producer import Producer
from routeproof_reference.proofs.group import SequentialGroup
from routeproof_reference.proofs.strategies import steps, topologies

CONFIG = CaptureConfig(max_tokens=24, layers=2, top_k=8, experts=256)

Make = Callable[[CaptureConfig, Rank, Any], Any]
"""Makes an engine of one rank: begin_step, capture, end_step, published."""


class Team:
    """All ranks of one TP group of an engine, called one after the other, the publisher last."""

    def __init__(
        self, make: Make, topology: Topology, dp: int, concatenate: Callable[[list[Any]], Any]
    ) -> None:
        """Make every rank."""
        self.group = SequentialGroup(topology.tp, concatenate)
        self.ranks = [Rank(topology=topology, dp=dp, tp=tp) for tp in range(topology.tp)]
        self.engines = [
            make(CONFIG, rank, member) for rank, member in zip(self.ranks, self.group.members, strict=True)
        ]

    def call(self, do: Callable[[Any, Rank], object]) -> tuple[str, ...]:
        """Make a call on all ranks; give the names of the error at each, "" where there is none."""
        seen = []
        for rank in reversed(range(len(self.engines))):
            try:
                do(self.engines[rank], self.ranks[rank])
            except (ValueError, IndexError, RuntimeError) as error:
                seen.append(type(error).__name__)
            else:
                seen.append("")
        return tuple(seen)

    @property
    def publisher(self) -> Any:  # noqa: ANN401
        """The engine of TP rank 0."""
        return self.engines[0]


def machine(  # noqa: C901 - Hypothesis wants the rules in one class
    make: Make, concatenate: Callable[[list[Any]], Any]
) -> type[RuleBasedStateMachine]:
    """Give the machine for an engine."""

    class Steps(RuleBasedStateMachine):
        """Steps on one buffer."""

        def __init__(self) -> None:
            super().__init__()
            self.number = 0
            self.open: Producer | None = None
            self.kept: list[tuple[Any, Any]] = []

        @initialize(topology=topologies(tp=(1, 2, 3), dp=2), data=st.data())
        def create(self, topology: Topology, data: st.DataObject) -> None:
            self.topology = topology
            dp = data.draw(st.integers(0, topology.dp - 1))
            self.subject = Team(make, topology, dp, concatenate)
            self.model = Team(ReferenceCapturer, topology, dp, np.concatenate)

        def both(self, do: Callable[[Any, Rank], object]) -> bool:
            """Make a call on both; say whether it went well."""
            got, wanted = self.subject.call(do), self.model.call(do)
            _check(got == wanted, f"errors {got}, expected {wanted}")
            return not any(wanted)

        @rule(data=st.data())
        def begin(self, data: st.DataObject) -> None:
            """Begin a step; one that is open is dropped."""
            step = data.draw(steps(self.topology, CONFIG, split=True))
            self.number += 1
            self.open = Producer(self.topology, CONFIG, step, self.number % 30)
            told = self.open
            self.both(lambda engine, rank: engine.begin_step(told.context(rank)))
            self.subject.group.settle()
            self.model.group.settle()

        @precondition(lambda self: self.open is not None)
        @rule(layer=st.integers(0, 1))
        def capture(self, layer: int) -> None:
            """Capture a layer, all microbatches of it."""
            told = self.open
            for part in range(len(told.parts) if told is not None else 0):
                self.one(Call(layer=layer, microbatch=part))

        @precondition(lambda self: self.open is not None)
        @rule(layer=st.integers(-1, 2), more=st.integers(-3, 3), width=st.sampled_from([8, 8, 8, 7, 1]))
        def capture_oddly(self, layer: int, more: int, width: int) -> None:
            """Capture with rows, a layer or a width that may be wrong."""
            if self.open is None or self.open.step.emitted is Layout.TP_SHARD:
                return
            rank = self.subject.ranks[0]
            n = len(self.open.handed(rank, Call(layer=0))[0])
            self.one(Call(layer=layer, n=max(0, n + more), width=width))

        def one(self, call: Call) -> None:
            told = self.open
            if told is None:
                return
            if not self.both(
                lambda engine, rank: engine.capture(call.layer, told.ids(rank, call), call.microbatch)
            ):
                self.open = None

        @precondition(lambda self: self.open is not None)
        @rule()
        def end(self) -> None:
            """End the step, and compare what is published."""
            self.open = None
            if not self.both(lambda engine, _: engine.end_step()):
                return
            issued, needed = self.subject.group.settle(), self.model.group.settle()
            _check(issued <= needed and bool(issued) == bool(needed), f"{issued} collectives, not {needed}")
            got, wanted = self.subject.publisher.published(), self.model.publisher.published()
            _check(np.array_equal(got, wanted), "other rows are published")
            self.kept.append((got, wanted.copy()))

        @invariant()
        def snapshots_stay(self) -> None:
            """Compare every snapshot with what it was."""
            for got, wanted in self.kept:
                _check(np.array_equal(got, wanted), "a snapshot has changed")

    return Steps


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
