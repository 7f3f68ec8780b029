"""What is written goes to the captured layer, from the microbatch's offset on, and nowhere else (BUF-05).

The other obligations look at layer 0 and at offset 0. Here the code runs twice on the same
step, as they run it, and another way: at any layer of any number of layers, at any offset, and
with what else the target leaves open. Both have to decide the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from routeproof_reference.proofs.claims import negate
from routeproof_reference.proofs.obligation import Check, OpenError, Status, UnknownShapeError
from routeproof_reference.proofs.paths import explore
from routeproof_reference.proofs.scenario import scenario
from routeproof_reference.proofs.smt import TIMEOUT_MS
from routeproof_reference.proofs.symbolic import Bool, Space
from routeproof_reference.proofs.target import Decision, Figures, Number, Outcome, Target, Truth, members_of

BOUNDS = (4, 8, 16, None)
"""On rows, layers and offsets, tried in turn, for an example that is easy to read."""


class Way(NamedTuple):
    """Where a call captures, and what else is open."""

    layer: Number = 0
    layers: Number = 1
    offset: Number = 0
    """Of the microbatch; always 0 in an engine without any."""
    rows: Number = 0
    """How many rows are published."""
    options: Mapping[str, Truth] = {}
    """By the names that the target gives; what is left out is false."""
    counted: bool = True
    """Whether the step's counts are known."""


class Placed(NamedTuple):
    """A decision, and where it was carried out."""

    decision: Decision
    layer: Number = 0
    row: Number = 0
    """First row written."""
    first: Number = 0
    """First row published."""
    last: Number = 0
    """The row after the last published."""


@runtime_checkable
class PlacedTarget(Protocol):
    """A target that writes rows, and not only says which."""

    @property
    def microbatches(self) -> bool:
        """Whether the engine splits a step."""
        ...

    @property
    def uncounted(self) -> bool:
        """Whether it runs without counts."""
        ...

    @property
    def options(self) -> tuple[str, ...]:
        """What a step or a server may be or not be, without any effect on the rows."""
        ...

    def placed(self, f: Figures, way: Way) -> Placed:
        """Capture one layer, and publish."""
        ...


class _Both(NamedTuple):
    """The same step, run both ways."""

    usual: Placed
    found: Placed


def establish(target: Target) -> Check:
    """Establish or refute it for every step, layer and offset.

    Raises:
        OpenError: the solver is missing or does not know.
        UnknownShapeError: the target cannot be driven.

    """
    if not isinstance(target, PlacedTarget):
        raise UnknownShapeError(f"{target.name} writes no rows")
    theorems = 0
    for many in (False, True) if target.smallest_dp == 1 else (True,):
        for counted in (True, False) if target.uncounted and not many else (True,):
            question = _Question(target, many, counted)
            example = question.example()
            if example:
                return Check(Status.REFUTED, example)
            if question.strange is not None:
                raise question.strange
            if not question.written:
                told = f"DP {'> 1' if many else '= 1'}" if counted else "no counts"
                return Check(Status.ESTABLISHED, vacuous=(f"something is written, {told}",))
            theorems += question.paths
    return Check(Status.ESTABLISHED, f"{theorems} theorems")


class _Question:
    """All paths of the two runs."""

    def __init__(self, target: PlacedTarget, many: bool, counted: bool) -> None:
        self.space = space = Space()
        members = members_of(target.layouts(2 if many else 1))  # type: ignore[attr-defined]
        scene = scenario(space, many, None, told=False, members=members)
        self.f, self.counted, self.offsets = scene.at.f, counted, target.microbatches
        offset = space.int("offset") if target.microbatches else 0
        options = {name: space.bool(name) for name in target.options}
        layer, layers, rows = space.int("layer"), space.int("layers"), space.int("rows")
        self.way = way = Way(layer, layers, offset, rows, options, counted)
        given = [*scene.axioms, *(space.term(term) for term in (layer >= 0, layer < layers, rows >= 0))]
        given.append(space.term(offset >= 0))
        if not (many or target.sizes_at_one) or target.deployed:  # type: ignore[attr-defined]
            given.append(space.z3.Not(self.f.has_sizes.term))
        self.axioms = given

        def run() -> _Both | UnknownShapeError:
            try:
                return _Both(target.placed(self.f, Way(counted=counted)), target.placed(self.f, way))
            except UnknownShapeError as error:
                return error

        self.wrong: list[tuple[Any, _Both]] = []
        self.paths, self.written = 0, False
        self.strange: UnknownShapeError | None = None
        """Of a path on which the code cannot be driven, and which some step takes."""
        for path in explore(space, run, given):
            if isinstance(path.result, UnknownShapeError):
                if self.strange is None and self._ask(path.condition) is not None:
                    self.strange = path.result
                continue
            self.paths += 1
            self.written = self.written or path.result.usual.decision.outcome is Outcome.ROWS
            right = Bool(space, space.term(_right(path.result, way)))
            self.wrong.append((space.z3.And(path.condition, negate(right).term), path.result))

    def _ask(self, *terms: Any) -> Any:  # noqa: ANN401
        solver = self.space.z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        solver.add(*self.axioms, *self.space.axioms, *terms)
        answer = solver.check()
        if answer == self.space.z3.unknown:
            raise OpenError(f"Z3 does not know ({solver.reason_unknown()})")
        return solver.model() if answer == self.space.z3.sat else None

    def example(self) -> str:
        """Say what goes wrong in a small step, or nothing."""
        z3, f, way = self.space.z3, self.f, self.way
        whole = self.space.term(f.total + f.n + f.tp + way.layers + way.offset + way.rows)
        if self._ask(z3.Or(*(wrong for wrong, _ in self.wrong))) is None:
            return ""
        for some in (self.space.term(f.own > 0), True):
            for bound in BOUNDS:
                small = [] if bound is None else [whole <= bound]
                for wrong, both in self.wrong:
                    model = self._ask(wrong, some, *small)
                    if model is not None:
                        return self._say(model, both)
        raise OpenError("a model without an example")

    def _say(self, model: Any, both: _Both) -> str:  # noqa: ANN401
        def value(number: Number) -> str:
            return str(model.eval(self.space.term(number), model_completion=True))

        f, way = self.f, self.way
        rank = f", {value(f.before)} before, {value(f.total)} in all" if not isinstance(f.dp, int) else ""
        told = f"{value(f.own)} own tokens{rank}" if self.counted else "no counts"
        offset = f", offset {value(way.offset)}" if self.offsets else ""
        options = "".join(f", {name}" for name, truth in way.options.items() if value(truth) == "True")
        where = f"layer {value(way.layer)} of {value(way.layers)}{offset}{options}"
        usual, found = (_told(placed, value) for placed in both)
        said = found if usual == found else f"{found}, but at layer 0 of 1 {usual}"
        first, last, rows = value(both.found.first), value(both.found.last), value(way.rows)
        if (first, last) != ("0", rows):
            said += f"; rows [{first}, {last}) published instead of [0, {rows})"
        return f"{told}, tp {value(f.tp)}, n = {value(f.n)}, {where}: {said}"


def _right(both: _Both, way: Way) -> Truth:
    """Whether the same rows are written, at the layer and offset, and the first ones published."""
    usual, found = (both.usual.decision, both.found.decision)
    published = (both.found.first == 0) & (both.found.last == way.rows)
    if usual.outcome is not found.outcome or usual.outcome is not Outcome.ROWS:
        return (usual.outcome is found.outcome) & (usual.gathers == found.gathers) & published
    same = (usual.start == found.start) & (usual.length == found.length)
    same &= (usual.gather ^ found.gather ^ True) & (usual.gathers == found.gathers)
    there = (both.found.layer == way.layer) & (both.found.row == way.offset)
    return same & published & ((found.length == 0) | there)


def _told(placed: Placed, value: Callable[[Number], str]) -> str:
    found = placed.decision
    if found.outcome is not Outcome.ROWS:
        return str(found.outcome)
    rows = f"rows [{value(found.start)}, {value(found.start + found.length)})"
    return f"{rows} go to row {value(placed.row)} of layer {value(placed.layer)}"
