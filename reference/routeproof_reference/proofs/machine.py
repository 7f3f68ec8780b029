"""A rule-based state machine: any order of steps, microbatches, rejected calls and dropped steps.

The engine under test and the reference do the same; what they publish and how they refuse
is compared, a rejected call must issue no collective (COL-05), and every snapshot is looked at
again after every rule, while later steps are published (SNP-01).
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from routeproof_spec import Call, CaptureConfig, CaseStep, Layout, Rank, Topology

from routeproof_reference.capturer import ReferenceCapturer
from routeproof_reference.producer import Producer
from routeproof_reference.proofs.group import SequentialGroup
from routeproof_reference.proofs.strategies import UNDECLARED, other_real, steps, topologies

CONFIG = CaptureConfig(max_tokens=24, layers=2, top_k=8, experts=256)
KEPT: Final = 5
"""Snapshots held at a time: an engine may refuse to have many in flight."""
ENOUGH: Final = 3
"""A run with as many published steps that have rows has used the buffers of the first ones again."""

WRONG: Final = (
    *[None] * 5,
    Call(layer=2),
    Call(layer=0, n=1, width=7),
    Call(layer=1, n=CONFIG.max_tokens * 3),
)
"""None, and calls that are rejected in any step."""

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
        """Make a call on all ranks; give the names of the error at each, "" where there is none.

        Raise AssertionError where a rejected call issued a collective.
        """
        seen, before = [], self.group.issued()
        for rank in reversed(range(len(self.engines))):
            try:
                do(self.engines[rank], self.ranks[rank])
            except (ValueError, IndexError, RuntimeError) as error:
                seen.append(type(error).__name__)
            else:
                seen.append("")
        after = self.group.issued()
        _check(not all(seen) or after == before, f"a collective is issued by a call that raises {seen[-1]}")
        return tuple(seen)

    @property
    def publisher(self) -> Any:  # noqa: ANN401
        """The engine of TP rank 0."""
        return self.engines[0]


class Told:
    """A step as its producers hand it over: in the layout that it names, or layer by layer in others."""

    def __init__(self, topology: Topology, step: CaseStep, number: int) -> None:
        """Take a step."""
        self.topology, self.step, self.number = topology, step, number
        self.made: dict[Layout, Producer] = {}
        self.parts = max(1, len(step.context.microbatches))
        others = [layout for layout in UNDECLARED if topology.dp > 1 or layout is not Layout.GATHERED_SHARDS]
        self.layouts = [step.emitted] if step.context.declared is not None else others

    def producer(self, layout: Layout) -> Producer:
        """Give the producer of a layout."""
        if layout not in self.made:
            step = self.step.model_copy(update={"emitted": layout})
            self.made[layout] = Producer(self.topology, CONFIG, step, self.number % 30)
        return self.made[layout]

    def rows(self, layout: Layout, rank: Rank, part: int) -> int:
        """Give the n of a layout."""
        return len(self.producer(layout).handed(rank, Call(layer=0, microbatch=part))[0])


def machine(  # noqa: C901 - Hypothesis wants the rules in one class
    make: Make, concatenate: Callable[[list[Any]], Any], drops_rejected: bool = False
) -> type[RuleBasedStateMachine]:
    """Give the machine for an engine; its class counts in `seen` what has happened.

    Args:
        make: makes a rank of it.
        concatenate: puts its ids tensors one behind the other.
        drops_rejected: the engine promises that a step of which a call was rejected ends with a
            StepError. Otherwise it may refuse, or publish what the accepted calls wrote.

    """

    class Steps(RuleBasedStateMachine):
        """Steps on one buffer."""

        seen: ClassVar[Counter[str]] = Counter()

        def __init__(self) -> None:
            super().__init__()
            self.seen["runs"] += 1
            self.number = self.filled = 0
            self.open: Told | None = None
            self.last: CaseStep | None = None
            self.rejected = False
            self.gathers: dict[tuple[int, int], bool] = {}
            self.kept: deque[tuple[Any, Any]] = deque(maxlen=KEPT)

        @initialize(topology=topologies(tp=(1, 2, 3), dp=2), data=st.data())
        def create(self, topology: Topology, data: st.DataObject) -> None:
            """Make the engines, and some steps at once: no run is without snapshots and used buffers."""
            self.topology = topology
            dp = data.draw(st.integers(0, topology.dp - 1))
            self.subject = Team(make, topology, dp, concatenate)
            self.model = Team(ReferenceCapturer, topology, dp, np.concatenate)
            self.drawn = steps(topology, CONFIG, split=True)
            filled = steps(topology, CONFIG, split=True, empty=False)
            self.mostly_filled = st.one_of(filled, filled, filled, self.drawn)
            self.whole(data, ENOUGH + 1)

        def both(self, do: Callable[[Any, Rank], object]) -> bool:
            """Make a call on both; say whether it went well."""
            got, wanted = self.subject.call(do), self.model.call(do)
            _check(got == wanted, f"errors {got}, expected {wanted}")
            return not any(wanted)

        @rule(data=st.data())
        def begin(self, data: st.DataObject) -> None:
            """Begin a step; one that is open is dropped."""
            self.start(self.drawn_from(data, self.drawn))

        def drawn_from(self, data: st.DataObject, fresh: st.SearchStrategy[CaseStep]) -> CaseStep:
            """Draw a step: a fresh one, or at times the last one with other real tokens."""
            if self.last is None or data.draw(st.integers(0, 2)):
                return data.draw(fresh)
            self.seen["steps of the last one's size"] += 1
            return data.draw(other_real(self.last))

        def start(self, step: CaseStep) -> None:
            """Begin this step on both."""
            self.seen["dropped"] += self.open is not None
            self.number += 1
            told = self.open = Told(self.topology, step, self.number)
            self.last = step
            self.rejected, self.gathers = False, {}
            self.both(lambda engine, rank: engine.begin_step(told.producer(step.emitted).context(rank)))
            self.subject.group.settle()
            self.model.group.settle()

        @precondition(lambda self: self.open is not None)
        @rule(data=st.data(), layer=st.integers(0, 1))
        def capture(self, data: st.DataObject, layer: int) -> None:
            """Capture a layer: all microbatches of it, or one."""
            if self.open is not None:
                parts = [*range(self.open.parts)]
                layout = data.draw(st.sampled_from(self.open.layouts))
                for part in data.draw(st.sampled_from([parts, parts, [parts[-1]]])):
                    self.one(layout, Call(layer=layer, microbatch=part))

        @precondition(lambda self: self.open is not None)
        @rule(
            data=st.data(),
            layer=st.integers(-1, 2),
            more=st.integers(-3, 3),
            width=st.sampled_from([8, 8, 8, 7, 1]),
        )
        def capture_oddly(self, data: st.DataObject, layer: int, more: int, width: int) -> None:
            """Capture with rows, a layer or a width that may be wrong."""
            if self.open is not None:
                layout = data.draw(st.sampled_from(self.open.layouts))
                part = data.draw(st.integers(0, self.open.parts - 1))
                n = max(0, self.open.rows(layout, self.subject.ranks[0], part) + more)
                self.one(layout, Call(layer=layer, microbatch=part, n=n, width=width))

        def one(self, layout: Layout, call: Call) -> None:
            """Make one capture call on all ranks."""
            if self.open is None:
                return
            producer, before = self.open.producer(layout), self.model.group.issued()
            if self.both(
                lambda engine, rank: engine.capture(call.layer, producer.ids(rank, call), call.microbatch)
            ):
                self.gathers[call.layer, call.microbatch] = self.model.group.issued() > before
            else:
                self.rejected = True
                self.seen["rejected calls"] += 1

        @rule(data=st.data(), several=st.integers(1, 2))
        def whole(self, data: st.DataObject, several: int) -> None:
            """Make steps from begin to end, the layers in one layout or in several.

            At times a call is left out; at times one too many is rejected; at times a layer that a
            dropped step has captured before is not captured in this one.
            """
            for _ in range(several):
                missing = data.draw(st.sampled_from((None, None, None, 0, 1)))
                if missing is not None:
                    self.start(self.drawn_from(data, self.mostly_filled))
                    self.capture(data, missing)
                self.start(self.drawn_from(data, self.mostly_filled))
                if self.open is None:
                    return
                layers = [layer for layer in (0, 1) if layer != missing]
                at = [(layer, part) for layer in layers for part in range(self.open.parts)]
                layouts = data.draw(_layouts(tuple(self.open.layouts)))
                left_out = data.draw(st.integers(-8, len(at) - 1))
                for number, ((layer, part), layout) in enumerate(zip(at, layouts, strict=False)):
                    if number != left_out:
                        self.one(layout, Call(layer=layer, microbatch=part))
                wrong = data.draw(st.sampled_from(WRONG))
                if wrong is not None:
                    self.one(layouts[0], wrong)
                self.end()

        @precondition(lambda self: self.open is not None)
        @rule()
        def end(self) -> None:
            """End the step, and compare what is published."""
            self.open = None
            needed, least = self.model.group.settle(), any(self.gathers.values())
            got = self.subject.call(lambda engine, _: engine.end_step())
            wanted = self.model.call(lambda engine, _: engine.end_step())
            if self.rejected:
                self.seen["ended after a rejected call"] += 1
                refused = all(name == "StepError" for name in got) if drops_rejected else all(got)
                _check(refused or (not drops_rejected and got == wanted), f"a rejected step ends with {got}")
            else:
                _check(got == wanted, f"errors {got}, expected {wanted}")
            issued = self.subject.group.settle()
            if any(got):
                _check(
                    self.subject.publisher.published() is None, "a step that ends with an error is published"
                )
                return
            _check(issued <= needed, f"{issued} collectives, not {needed}")
            _check(issued > 0 or not least, f"no collective, though {needed} shards are to be gathered")
            self.published()

        def published(self) -> None:
            """Compare the snapshots, and keep them."""
            got, right = self.subject.publisher.published(), self.model.publisher.published()
            _check(np.array_equal(got, right), "other rows are published")
            self.seen["published steps"] += 1
            if len(right):
                self.filled += 1
                self.seen["runs that use buffers again"] += self.filled == ENOUGH
                self.kept.append((got, right.copy()))

        @invariant()
        def snapshots_stay(self) -> None:
            """Compare every snapshot with what it was."""
            for got, wanted in self.kept:
                _check(np.array_equal(got, wanted), "a snapshot has changed")

    return Steps


@cache
def _layouts(told: tuple[Layout, ...]) -> st.SearchStrategy[list[Layout]]:
    """Give the layouts of the calls of a step: shards for all, often; one for all; or each another."""
    one = st.sampled_from(told)
    shards = st.just([Layout.TP_SHARD if Layout.TP_SHARD in told else told[0]] * 4)
    return st.one_of(shards, one.map(lambda layout: [layout] * 4), st.lists(one, min_size=4, max_size=4))


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
