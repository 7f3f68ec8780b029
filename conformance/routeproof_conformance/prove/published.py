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

from routeproof_reference.proofs.target import Decision, Figures, Members, Number, Outcome
from routeproof_spec import Layout

from routeproof_conformance.prove.fakes import (
    STRANGE,
    Attributes,
    Change,
    Rows,
    Shift,
    compiled,
    methods_of,
    same,
    takes,
    unknown,
    wrapped,
)

CLASS = "RoutedExpertsCapturer"


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

    def __init__(self, f: Figures, offset: Number) -> None:
        """Start with nothing written."""
        self.f, self.offset, self.gathers = f, offset, 0
        self.written: tuple[Number, Rows] | None = None


class Buffer:
    """The device buffer: takes one write of consecutive rows at a layer."""

    shape = (0, 1)

    def __init__(self, log: Log) -> None:
        """Write to a log."""
        self.log = log

    def __setitem__(self, key: Any, rows: object) -> None:  # noqa: ANN401
        if not isinstance(key, tuple) or not isinstance(key[0], slice) or not isinstance(rows, Rows):
            unknown(f"the buffer is written at {key!r}")
        if self.log.written is not None:
            unknown("the buffer is written twice in one call")
        start = 0 if key[0].start is None else key[0].start
        if not same(key[0].stop - start, rows.shape[0]):
            unknown("the rows written are not as many as the place for them")
        self.log.written = (start, rows)


class Self:
    """The capturer itself: the published methods, over fake state."""

    def __init__(self, harness: "Harness", log: Log) -> None:
        """Bind to one call."""
        self.__dict__.update(
            dp_rank=log.f.dp_rank, tp_size=log.f.tp, device_buffer=Buffer(log), _harness=harness, _log=log
        )

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        made = self.__dict__["_harness"].method(name, self.__dict__["_log"])
        return lambda *arguments: made(self, *arguments)


class Harness:
    """The methods of one published file, over fakes."""

    def __init__(self, path: Path, label: str, change: Change | None = None) -> None:
        """Parse the file; `change` plants a fault. Raise UnknownShapeError without the class."""
        self.label = label
        nodes = methods_of(path, label, CLASS)
        takes(nodes, label, CLASS, "capture", 3)
        self._code = {name: compiled(node, path, change) for name, node in nodes.items()}

    def method(self, name: str, log: Log) -> Callable[..., Any]:
        """Compile a method against the fakes of one call."""
        if name not in self._code:
            unknown(f"{self.label}: the code reads {name!r} of the capturer")
        space = _globals(log)
        exec(self._code[name], space)  # noqa: S102 - the code under examination
        made: Callable[..., Any] = space[name]
        return made

    def run(self, f: Figures, offset: Number, known: bool = True) -> Decision:
        """Run `capture` on layer 0 of 1; give what it wrote, or how it was refused."""
        log = Log(f, offset)
        log_context(log, known)
        ids = Rows(0, f.n, gathered=False)
        try:
            self.method("capture", log)(Self(self, log), 0, ids)
        except STRANGE as error:
            unknown(f"{self.label}: {type(error).__name__}: {error}")
        except (ValueError, AssertionError) as error:
            group = isinstance(error, ValueError)
            return Decision(Outcome.GROUP_ERROR if group else Outcome.LAYOUT_ERROR, gathers=log.gathers)
        if log.written is None:
            unknown(f"{self.label}: capture wrote nothing")
        start, rows = log.written
        if not same(start, offset):
            unknown(f"{self.label}: capture wrote elsewhere than at the microbatch's offset")
        return Decision(Outcome.ROWS, rows.start, rows.shape[0], rows.gathered, log.gathers)


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
    """Give the names that the methods may use; the builtins that numbers pass through are wrapped."""

    def gather(rows: object, dim: int = -1) -> Rows:
        if not isinstance(rows, Rows) or dim != 0:
            unknown(f"a gather of {type(rows).__name__} along dimension {dim}")
        if rows.gathered is not False or not same(rows.start, 0) or not same(rows.stop, log.f.n):
            unknown("a gather of other rows than those handed over")
        log.gathers += 1
        return Rows(0, log.f.n * log.f.tp, gathered=True)

    group = Attributes("TP group", all_gather=gather)
    return {
        "__builtins__": wrapped(),
        "get_forward_context": lambda: log.__dict__[_CONTEXT],
        "get_tp_group": lambda: group,
        "dbo_current_ubatch_token_offset": lambda: log.offset,
    }


class _Floor(ast.NodeTransformer):
    """A division that rounds up rounds down."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numerator = node.left
        if isinstance(node.op, ast.FloorDiv) and isinstance(numerator, ast.BinOp):
            inner = numerator.left
            node.left = inner.left if isinstance(inner, ast.BinOp) else inner
        return node


class _Accept(ast.NodeTransformer):
    """Nothing is rejected."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Return(ast.Name("topk_ids", ast.Load())), node)


class _Alone(ast.NodeTransformer):
    """Shards are not gathered."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "all_gather":
            return node.args[0]
        return node


class _Gathered(ast.NodeTransformer):
    """Rows that are whole as they are handed over are gathered all the same."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return self._gathered(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._gathered(node)

    @staticmethod
    def _gathered(node: ast.Return | ast.Assign) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "topk_ids":
            node.value = ast.parse("get_tp_group().all_gather(topk_ids, dim=0)", mode="eval").body
        return node


class _Whole(ast.NodeTransformer):
    """Nothing is cut off."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        loaded = isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice)
        return node.value if loaded else node


class _Lose(ast.NodeTransformer):
    """The first row is lost on entry."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "capture":
            ids = node.args.args[2].arg
            node.body[:0] = ast.parse(f"{ids} = {ids}[1:]").body
        return node


FAULTS: dict[str, type[ast.NodeTransformer]] = {
    "slices one row later": Shift,
    "shards rounded down": _Floor,
    "nothing rejected": _Accept,
    "no gather": _Alone,
    "whole rows gathered": _Gathered,
    "nothing cut off": _Whole,
    "the first row is lost": _Lose,
}

CONTROLS: dict[str, tuple[str, ...]] = {
    "own-rows": ("slices one row later", "shards rounded down", "no gather"),
    "other-ranks": ("no gather",),
    "fail-closed": ("nothing rejected",),
    "malformed-groups": ("nothing rejected",),
    "needless-gather": ("whole rows gathered",),
    "zero-tokens": ("nothing cut off",),
    "uncounted": ("the first row is lost",),
    "box": ("slices one row later", "nothing rejected"),
}
"""Faults of the published methods that an obligation has to refute."""


class PublishedTarget:
    """The capturer of a published vLLM, as a target of proofs."""

    configurable = False
    sizes_at_one = False
    deployed = False
    smallest_dp = 1

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
        return self.harness.run(figures, 0)

    def unknown(self, n: Number, declared: Layout | None) -> Decision:
        """Run them without counts."""
        if declared is not None:
            raise ValueError(f"{self.name} takes no declarations")
        none = Figures(n, 0, 0, 0, 0, 0, 1, 1, False, False, False, 0, 0, 0)
        return self.harness.run(none, 0, known=False)

    def faulty(self, fault: str) -> "PublishedTarget":
        """Plant a fault into every method."""
        return PublishedTarget(self._base, self._path, fault)
