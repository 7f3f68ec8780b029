"""The decision of a published capturer, run by its own methods out of the published file.

The methods are taken by their syntax trees and compiled unmodified. What they touch are
fakes: a tensor that records its slices, a group that counts its gathers, counts that know
sums over DP ranks only. A fake that is used in a way it does not know raises, and the file
is reported as of another shape; it never passes for that.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

from routeproof_reference.proofs.placed import Placed, Way
from routeproof_reference.proofs.target import Decision, Figures, Members, Number, Outcome
from routeproof_spec import Layout

from routeproof_conformance.prove.fakes import (
    STRANGE,
    Attributes,
    Change,
    Rows,
    compiled,
    layer_of,
    same,
    takes,
    wrapped,
)
from routeproof_conformance.prove.published_faults import CONTROLS, FAULTS
from routeproof_conformance.prove.shape import Functions, Source, unknown

CLASS = "RoutedExpertsCapturer"

ORIGINS = {
    "get_forward_context": "vllm.forward_context",
    "get_tp_group": "vllm.distributed.parallel_state",
    "dbo_current_ubatch_token_offset": "vllm.v1.worker.ubatching",
}
"""What the methods call, and where it has to come from."""

FIELDS = {
    "dp_rank": "vllm_config.parallel_config.data_parallel_rank",
    "tp_size": "vllm_config.parallel_config.tensor_parallel_size",
}
"""What `__init__` has to set; without one the capturer has neither."""


class Counts:
    """Token counts per DP rank: sums over the ranks before, this one, or all."""

    def __init__(self, f: Figures, part: str = "all") -> None:
        """Stand for the counts of `part` of the DP ranks."""
        self.f, self.part = f, part

    def __getitem__(self, key: object) -> "Counts":
        if self.part != "all":
            unknown("a part of the token counts is indexed again")
        if isinstance(key, slice):
            if key.start is not None or key.step is not None:
                unknown(f"token counts are sliced with {key!r}")
            if key.stop is None:
                return self
            if same(key.stop, self.f.dp_rank + 1):
                return Counts(self.f, "through")
            if same(key.stop, self.f.dp_rank):
                return Counts(self.f, "before")
            unknown("token counts are sliced at neither this DP rank nor the next")
        if not same(key, self.f.dp_rank):
            unknown("the token count of another DP rank is read")
        return Counts(self.f, "own")

    def length(self) -> Number:
        """Give their number."""
        if self.part != "all":
            unknown("the length of a part of the token counts")
        return self.f.dp

    def sum(self) -> "Counts":
        """Add up; `item` reads it."""
        if self.part == "own":
            unknown("the sum of one token count")
        return Counts(self.f, f"sum {self.part}")

    def item(self) -> Number:
        """Read a count or a sum."""
        f = self.f
        values = {"own": f.own, "sum all": f.total, "sum before": f.before, "sum through": f.before + f.own}
        if self.part not in values:
            unknown(f"item() of token counts ({self.part})")
        return values[self.part]


class Sizes:
    """Shard sizes, DP-major: sums over all or over the groups before this DP rank."""

    def __init__(self, f: Figures, stop: str = "all") -> None:
        """Stand for the sizes up to `stop`."""
        self.f, self.stop = f, stop

    def length(self) -> Number:
        """Their number: tp for each DP rank, or one more where they do not divide."""
        if self.stop != "all":
            unknown("the length of a part of the shard sizes")
        whole = self.f.dp * self.f.tp
        return whole if self.f.divide else whole + 1

    def __getitem__(self, key: object) -> "Sizes":
        if not isinstance(key, slice) or key.start is not None or key.step is not None:
            unknown(f"shard sizes are indexed with {key!r}")
        if not same(key.stop, self.f.dp_rank * self.f.tp):
            unknown("shard sizes are sliced elsewhere than before this DP rank's group")
        return Sizes(self.f, "before")

    def total(self) -> Number:
        """Add them up."""
        return self.f.sizes_total if self.stop == "all" else self.f.sizes_before


class Log:
    """What one call did."""

    def __init__(self, f: Figures, way: Way) -> None:
        """Start with nothing written."""
        self.f, self.way, self.gathers = f, way, 0
        self.written: tuple[Number, Number, Rows] | None = None
        """First row, layer, what."""


class Buffer:
    """The device buffer: takes one write of consecutive rows at a layer, and gives rows of all layers."""

    def __init__(self, log: Log) -> None:
        """Write to a log."""
        self.log = log
        self.shape = (object(), log.way.layers)

    def __setitem__(self, key: Any, rows: object) -> None:  # noqa: ANN401
        if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], slice):  # noqa: PLR2004
            unknown(f"the buffer is written at {key!r}")
        if not isinstance(rows, Rows) or isinstance(key[1], (slice, bool)) or key[0].step is not None:
            unknown(f"the buffer is written at {key!r}")
        if self.log.written is not None:
            unknown("the buffer is written twice in one call")
        start = 0 if key[0].start is None else key[0].start
        if not same(key[0].stop - start, rows.shape[0]):
            unknown("the rows written are not as many as the place for them")
        if start < 0:
            unknown("the buffer is written from its end")
        self.log.written = (start, layer_of(key[1], self.log.way.layers), rows)

    def __getitem__(self, key: object) -> "Snapshot":
        if not isinstance(key, slice) or key.step is not None:
            unknown(f"the buffer is read at {key!r}")
        return Snapshot(0 if key.start is None else key.start, key.stop)


class Snapshot:
    """Rows of the device buffer, all layers."""

    def __init__(self, first: Number, last: Number) -> None:
        """Hold rows [first, last)."""
        self.first, self.last = first, last

    def to(self, dtype: object) -> "Snapshot":
        """Give the same in the dtype that is published."""
        if dtype is not DTYPE:
            unknown(f"a snapshot is taken as {dtype!r}")
        return self


DTYPE = object()
"""The dtype that is published."""


class Self:
    """The capturer itself: the published methods, over fake state."""

    def __init__(self, harness: "Harness", log: Log) -> None:
        """Bind to one call."""
        values = {"dp_rank": log.f.dp_rank, "tp_size": log.f.tp, "output_dtype": DTYPE}
        state = {name: values[name] for name in harness.fields}
        self.__dict__.update(state, device_buffer=Buffer(log), _harness=harness, _log=log)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        made = self.__dict__["_harness"].method(name, self.__dict__["_log"])
        return lambda *arguments: made(self, *arguments)


class Harness:
    """The methods of one published file, over fakes."""

    def __init__(self, path: Path, label: str, change: Change | None = None) -> None:
        """Parse the file; `change` plants a fault. Raise UnknownShapeError where it is not known."""
        self.label = label
        source = Source(path, label)
        nodes = source.methods(CLASS)
        takes(nodes, label, CLASS, "capture", 3)
        self.names = source.imported(ORIGINS)
        self.fields = _fields(nodes, label)
        self._code = {name: compiled(node, source, change) for name, node in nodes.items()}

    def method(self, name: str, log: Log) -> Callable[..., Any]:
        """Compile a method against the fakes of one call."""
        if name not in self._code:
            unknown(f"{self.label}: the code reads {name!r} of the capturer")
        known = {key: value for key, value in _globals(log).items() if key in self.names}
        space = {"__builtins__": wrapped(), **known}
        exec(self._code[name], space)  # noqa: S102 - the code under examination
        made: Callable[..., Any] = space[name]
        return made

    def run(self, f: Figures, way: Way) -> Placed:
        """Run `capture`, and `snapshot_routing_data` if rows are published; give what they did."""
        log = Log(f, way)
        log_context(log, way.counted)
        ids, capturer = Rows(0, f.n, gathered=False), Self(self, log)
        try:
            capturer.capture(way.layer, ids)
        except STRANGE as error:
            unknown(f"{self.label}: {type(error).__name__}: {error}")
        except (ValueError, AssertionError) as error:
            group = isinstance(error, ValueError)
            refused = Outcome.GROUP_ERROR if group else Outcome.LAYOUT_ERROR
            return Placed(Decision(refused, gathers=log.gathers))
        if log.written is None:
            unknown(f"{self.label}: capture wrote nothing")
        start, layer, rows = log.written
        decision = Decision(Outcome.ROWS, rows.start, rows.shape[0], rows.gathered, log.gathers)
        return Placed(decision, layer, start)

    def snapshot(self, f: Figures, way: Way) -> tuple[Number, Number]:
        """Run `snapshot_routing_data`; give the rows that are published."""
        try:
            found = Self(self, Log(f, way)).snapshot_routing_data(way.rows)
        except (*STRANGE, ValueError, AssertionError) as error:
            unknown(f"{self.label}: {type(error).__name__}: {error}")
        if not isinstance(found, Snapshot):
            unknown(f"{self.label}: snapshot_routing_data gives a {type(found).__name__}")
        return found.first, found.last


def _fields(nodes: Functions, label: str) -> frozenset[str]:
    """Give the names of the capturer's state; refuse where `__init__` sets it to something else."""
    if "__init__" not in nodes:
        return frozenset()
    plain = [ast.unparse(item) for item in nodes["__init__"].body if isinstance(item, ast.Assign)]
    for name, value in FIELDS.items():
        stored = [
            item
            for node in nodes.values()
            for item in ast.walk(node)
            if isinstance(item, ast.Attribute) and item.attr == name and not isinstance(item.ctx, ast.Load)
        ]
        if len(stored) != 1 or f"self.{name} = {value}" not in plain:
            unknown(f"{label}: {CLASS}.__init__ sets {name} otherwise than to {value}")
    again = [item for item in ast.walk(nodes["__init__"]) if isinstance(item, ast.Name) and item.id in FREE]
    if any(not isinstance(item.ctx, ast.Load) for item in again):
        unknown(f"{label}: {CLASS}.__init__ assigns to its arguments")
    return frozenset((*FIELDS, "output_dtype"))


FREE = ("self", "vllm_config")


_CONTEXT = "_routeproof_context"


def log_context(log: Log, known: bool) -> None:
    """Build the forward context of a call: metadata at DP > 1, a batch descriptor always."""
    f = log.f
    one = isinstance(f.dp, int) and f.dp == 1
    metadata = None
    if known and not one:
        sizes = Sizes(f) if f.has_sizes else None
        metadata = Attributes("DP metadata", num_tokens_across_dp_cpu=Counts(f), local_sizes=sizes)
    descriptor = Attributes("batch descriptor", num_tokens=f.own) if known else None
    context = Attributes("forward context", dp_metadata=metadata, batch_descriptor=descriptor)
    log.__dict__[_CONTEXT] = context


def _globals(log: Log) -> dict[str, Any]:
    """Give what the methods may call."""

    def gather(rows: object, dim: int = -1) -> Rows:
        if not isinstance(rows, Rows) or dim != 0:
            unknown(f"a gather of {type(rows).__name__} along dimension {dim}")
        if rows.gathered is not False or not same(rows.start, 0) or not same(rows.stop, log.f.n):
            unknown("a gather of other rows than those handed over")
        log.gathers += 1
        return Rows(0, log.f.n * log.f.tp, gathered=True)

    group = Attributes("TP group", all_gather=gather)
    return {
        "get_forward_context": lambda: log.__dict__[_CONTEXT],
        "get_tp_group": lambda: group,
        "dbo_current_ubatch_token_offset": lambda: log.way.offset,
    }


class PublishedTarget:
    """The capturer of a published vLLM, as a target of proofs."""

    configurable = False
    sizes_at_one = False
    deployed = False
    smallest_dp = 1
    microbatches = True
    uncounted = True
    options = ()

    def __init__(self, name: str, path: Path, fault: str = "") -> None:
        """Read the file; raise UnknownShapeError where it is not known."""
        self.name = f"{name} with fault: {fault}" if fault else name
        self._base, self._path = name, path
        self.faults, self.controls = tuple(FAULTS), CONTROLS
        self.harness = Harness(path, name, FAULTS[fault]().visit if fault else None)

    def layouts(self, dp: int) -> frozenset[Layout]:
        """Give the layouts that its documentation names; padded local rows at DP = 1 only."""
        base = {Layout.CROSS_DP, Layout.FULL, Layout.TP_SHARD}
        more = {Layout.PADDED_LOCAL} if dp == 1 else {Layout.GATHERED_SHARDS}
        return frozenset(base | more)

    def decide(self, figures: Figures, _: Members, declared: Layout | None) -> Decision:
        """Run the published methods."""
        if declared is not None:
            raise ValueError(f"{self.name} takes no declarations")
        return self._first(figures, Way())

    def _first(self, f: Figures, way: Way) -> Decision:
        """Run them at layer 0 of 1, at offset 0; `placed` is about all others."""
        found = self.harness.run(f, way)
        if not same(found.row, 0):
            unknown(f"{self.name}: capture wrote elsewhere than at the microbatch's offset")
        return found.decision

    def placed(self, f: Figures, way: Way) -> Placed:
        """Run them at any layer and offset, and publish."""
        step = f if way.counted else _uncounted(f.n)
        found = self.harness.run(step, way)
        first, last = self.harness.snapshot(step, way)
        return found._replace(first=first, last=last)

    def unknown(self, n: Number, declared: Layout | None) -> Decision:
        """Run them without counts."""
        if declared is not None:
            raise ValueError(f"{self.name} takes no declarations")
        return self._first(_uncounted(n), Way(counted=False))

    def faulty(self, fault: str) -> "PublishedTarget":
        """Plant a fault into every method."""
        return PublishedTarget(self._base, self._path, fault)


def _uncounted(n: Number) -> Figures:
    return Figures(n, 0, 0, 0, 0, 0, 1, 1, False, False, False, 0, 0, 0)
