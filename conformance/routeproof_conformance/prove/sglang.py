"""The slices of a published SGLang, taken by its own functions out of the published files.

SGLang infers no layout: a server is started for one, and there is one target for each way of
starting it. In a step the capturer's `capture` is called, then its `on_forward_end`; these,
what they call in the classes of the base file and in `dp_attention.py`, and `finalize` of what
is copied later run unmodified over fakes. What the host cache is given is the decision.
"""

from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, NoReturn

from routeproof_reference.proofs.placed import Placed, Way
from routeproof_reference.proofs.symbolic import Int
from routeproof_reference.proofs.target import Decision, Figures, Members, Number, Outcome
from routeproof_spec import Layout

from routeproof_conformance.engines.sglang_source import BASE, CAPTURER, DP_ATTENTION
from routeproof_conformance.prove.fakes import (
    STRANGE,
    Attributes,
    Change,
    Rows,
    compiled,
    same,
    takes,
    wrapped,
)
from routeproof_conformance.prove.sglang_fakes import (
    WIDTH,
    Buffer,
    GatherBuffer,
    HostBuffer,
    Ids,
    PerRank,
    Place,
    Published,
    Slots,
)
from routeproof_conformance.prove.sglang_faults import CONTROLS, FAULTS
from routeproof_conformance.prove.shape import Source, unknown

IMPORTED = ("attn_tp_all_gather_into_tensor", "get_dp_local_slice_cpu", "is_dp_attention_enabled")
"""What the capturer imports from `dp_attention.py`."""

_CONTEXT = "sglang.srt.runtime_context"
ORIGINS = {
    CAPTURER: {
        **dict.fromkeys(IMPORTED, "sglang.srt.layers.dp_attention"),
        "get_moe_a2a_backend": "sglang.srt.layers.moe",
        "get_parallel": _CONTEXT,
        "BaseTopkCapturer": "sglang.srt.state_capturer.base",
    },
    BASE: {},
    DP_ATTENTION: {"get_parallel": _CONTEXT, "get_flags": _CONTEXT},
}
"""What each file's functions call, and where it has to come from."""

CLASSES = {
    "RoutedExpertsCapturer": (CAPTURER, ("BaseTopkCapturer",), ()),
    "BaseTopkCapturer": (BASE, (), ()),
    "BaseDeviceCache": (BASE, (), ()),
    "TopkCaptureOutput": (BASE, (), ("dataclasses.dataclass",)),
}
"""File, bases and decorators of each class."""


class Deployment(NamedTuple):
    """How a server is started."""

    layout: Layout
    dp_attention: bool = False
    """All DP ranks' tokens in one batch; off at DP = 1, as SGLang has it."""
    deepep: bool = False
    """Every TP rank routes its own shard."""


DEPLOYMENTS: dict[str, Deployment] = {
    "plain": Deployment(Layout.FULL),
    "dp-attention": Deployment(Layout.CROSS_DP, dp_attention=True),
    "decode-graph": Deployment(Layout.CROSS_DP, dp_attention=True),
    "deepep": Deployment(Layout.TP_SHARD, dp_attention=True, deepep=True),
}


class Forward(NamedTuple):
    """What the model runner hands over at the end of a forward pass."""

    own: Number
    """Tokens of this DP rank that have a slot."""
    before: Number
    extent: Number | None = None
    """Of a DP rank in the graph; None: no graph ran."""


class Harness:
    """The functions of the published files, over fakes."""

    def __init__(self, root: Path, label: str, change: Change | None = None) -> None:
        """Parse the files; `change` plants a fault. Raise UnknownShapeError where they are not known."""
        self.label = label
        files = {name: Source(root / name, label) for name in (CAPTURER, BASE, DP_ATTENTION)}
        nodes = {
            name: files[file].methods(name, bases, decorators)
            for name, (file, bases, decorators) in CLASSES.items()
        }
        for name, method, number in (
            ("RoutedExpertsCapturer", "capture", 3),
            ("RoutedExpertsCapturer", "_get_local_slice", 4),
            ("BaseTopkCapturer", "capture", 3),
            ("BaseTopkCapturer", "on_forward_end", 5),
            ("BaseDeviceCache", "capture", 3),
            ("TopkCaptureOutput", "map_device_tensors", 2),
            ("TopkCaptureOutput", "finalize", 1),
        ):
            takes(nodes[name], label, name, method, number)
        functions = {
            CAPTURER: files[CAPTURER].functions(("_is_scattered_a2a_backend",)),
            DP_ATTENTION: files[DP_ATTENTION].functions(IMPORTED),
        }
        self.imported = {name: source.imported(ORIGINS[name]) for name, source in files.items()}
        if "BaseTopkCapturer" not in self.imported[CAPTURER]:
            unknown(f"{label}: the capturer's file does not import BaseTopkCapturer")
        self.methods = {
            name: {method: compiled(node, files[CLASSES[name][0]], change) for method, node in found.items()}
            for name, found in nodes.items()
        }
        self.own, self.parallel = (
            tuple(compiled(node, files[file], change) for node in found.values())
            for file, found in functions.items()
        )

    def run(self, f: Figures, served: Deployment, forward: Forward, way: Way) -> "Ran":
        """Capture at a layer, and end the forward pass."""
        step = _Step(self, f, served, way)
        try:
            rows = step.slice(forward)
        except STRANGE as error:
            unknown(f"{self.label}: {type(error).__name__}: {error}")
        except (ValueError, AssertionError):
            return Ran(None, step.gathers)
        return Ran(rows, step.gathers, step.buffer.layer)


class Ran(NamedTuple):
    """What a step did."""

    rows: Rows | None
    """None: refused."""
    gathers: int
    layer: Number = 0
    """That was written."""


class _Step:
    """One call, and the end of its forward pass."""

    def __init__(self, harness: Harness, f: Figures, served: Deployment, way: Way) -> None:
        self.harness, self.f, self.way, self.gathers = harness, f, way, 0
        one = isinstance(f.dp, int) and f.dp == 1
        self.dp_attention = served.dp_attention and not one
        self.parallel = self._names(DP_ATTENTION, self._state(), harness.parallel)
        second = way.options.get("DeepEP v2", False)
        first = (second ^ True) & served.deepep
        given = {
            "get_moe_a2a_backend": lambda: Attributes(
                "all-to-all backend", is_deepep=lambda: first, is_deepep_v2=lambda: second
            ),
            "get_parallel": self.parallel.get("get_parallel"),
            **{name: made for name, made in self.parallel.items() if name in IMPORTED},
        }
        self.names = self._names(CAPTURER, given, harness.own)
        self.base = self._names(BASE, {}, ())
        self.base["TopkCaptureOutput"] = lambda **state: Published(
            "capture's output", self._method("TopkCaptureOutput", self.base), **state
        )
        self.buffer = Buffer(way.layers)

    def _names(self, file: str, given: dict[str, Any], functions: tuple[CodeType, ...]) -> dict[str, Any]:
        """Give the names that functions of one module see: its own, and those that it imports."""
        known = {name: made for name, made in given.items() if name in self.harness.imported[file]}
        names = {"__builtins__": {**wrapped(), "super": _no_super}, **known}
        for code in functions:
            exec(code, names)  # noqa: S102 - the code under examination
        return names

    def _state(self) -> dict[str, Any]:
        """Give what SGLang's runtime context says; the TP rank in symbolic runs alone."""
        f = self.f
        rank = {"attn_tp_rank": f.n.space.int("t")} if isinstance(f.n, Int) else {}
        group = Attributes("attention-TP group", all_gather_into_tensor=self._gather)
        parallel = Attributes(
            "parallel state",
            num_dp_ranks=f.dp,
            attn_dp_size=f.dp if self.dp_attention else 1,
            attn_dp_rank=f.dp_rank if self.dp_attention else 0,
            attn_tp_size=f.tp,
            attn_tp_group=group,
            **rank,
        )
        scaled_up = {"use_world_group_for_gather": False, "joiner_skip_all_gather": False}
        dp = Attributes("DP flags", enabled=self.dp_attention, scoped_gather_slot=None, **scaled_up)
        return {"get_parallel": lambda: parallel, "get_flags": lambda: Attributes("flags", dp=dp)}

    def _gather(self, output: object, rows: object) -> None:
        """Gather, if the sizes are right; torch.distributed refuses others before anything moves."""
        if not isinstance(output, Place) or not isinstance(rows, Ids) or isinstance(rows, Place):
            unknown(f"a gather of {type(rows).__name__} into {type(output).__name__}")
        if not same(rows.start, 0) or not same(rows.stop, self.f.n):
            unknown("a gather of other rows than those handed over")
        if not same(output.length(), rows.length() * self.f.tp):
            raise ValueError("the output is not tp times the input")
        self.gathers += 1
        output.fill()

    def slice(self, forward: Forward) -> Rows:
        """Run `capture`, then `on_forward_end`; give the rows that the host cache is given."""
        way = self.way
        cache = Published(
            "device cache",
            self._method("BaseDeviceCache", self.base),
            buffer=self.buffer,
            topk_size=WIDTH,
            num_layers=way.layers,
        )
        slots, virtual = Slots("slots", forward.own), None
        if way.options.get("virtual slots", False):
            virtual = Slots("virtual slots", forward.own)
        host = HostBuffer(slots if virtual is None else virtual)
        own = self._method("RoutedExpertsCapturer", self.names)
        parent = self._method("BaseTopkCapturer", self.base)
        scattered = self.names["_is_scattered_a2a_backend"]()  # as its __init__ asks
        capturer = Published(
            "capturer",
            lambda name: own(name) or parent(name),
            device_cache=cache,
            topk_size=WIDTH,
            num_layers=way.layers,
            num_fused_shared_experts=0,
            host_cache=Attributes("host cache", buffer=host),
            **({"gather_buffer": GatherBuffer(self.f)} if scattered else {}),
        )
        self.names["super"] = lambda: Published("base class", parent, _self=capturer)
        capturer.capture(way.layer, Ids(0, self.f.n, gathered=False))
        batch = Attributes(
            "forward batch",
            out_cache_loc=slots,
            out_cache_loc_virtual=virtual,
            global_num_tokens_cpu=PerRank(self.f, forward.own, forward.before) if self.dp_attention else None,
        )
        later = not way.options.get("copied at once", False)
        found = capturer.on_forward_end(batch, forward.extent is not None, forward.extent, later)
        if later:
            if not isinstance(found, Published):
                unknown(f"{self.harness.label}: on_forward_end gives a {type(found).__name__}")
            found.map_device_tensors(lambda tensor: tensor.clone())
            found.finalize()
        if host.rows is None:
            unknown(f"{self.harness.label}: the host cache is given nothing")
        return host.rows

    def _method(self, owner: str, names: dict[str, Any]) -> Callable[[str], Callable[..., Any] | None]:
        """Give what compiles a method of a class against the names of its module."""
        codes = self.harness.methods[owner]

        def method(name: str) -> Callable[..., Any] | None:
            if name not in codes:
                return None
            exec(codes[name], names)  # noqa: S102
            made: Callable[..., Any] = names.pop(name)
            return made

        return method


def _no_super() -> NoReturn:
    unknown("super() elsewhere than in the capturer")


class SglangTarget:
    """The capturer of a published SGLang in one deployment, as a target of proofs."""

    configurable = False
    sizes_at_one = False
    deployed = True
    microbatches = False
    uncounted = False

    def __init__(self, name: str, deployment: str, root: Path, fault: str = "") -> None:
        """Read the files below `root`; raise UnknownShapeError where they are not known."""
        self._base, self._root, self.deployment = name, root, deployment
        label = f"{name} {deployment}"
        self.name = f"{label} with fault: {fault}" if fault else label
        self.served = DEPLOYMENTS[deployment]
        self.smallest_dp = 2 if self.served.layout is Layout.CROSS_DP else 1
        v2 = ("DeepEP v2",) if self.served.deepep else ()
        self.options = ("virtual slots", "copied at once", *v2)
        self.faults, self.controls = tuple(FAULTS), CONTROLS[deployment]
        self.harness = Harness(root, name, FAULTS[fault]().visit if fault else None)

    def layouts(self, dp: int) -> frozenset[Layout]:  # noqa: ARG002 - it is started for one
        """Give the layout of the deployment."""
        return frozenset({self.served.layout})

    def decide(self, figures: Figures, _: Members, declared: Layout | None) -> Decision:
        """Run the published functions at the end of an eager pass."""
        if declared is not None:
            raise ValueError(f"{self.name} takes no declarations")
        return self._step(figures, Way()).decision

    def placed(self, f: Figures, way: Way) -> Placed:
        """Run them at any layer, with what is open of a server and a step."""
        return self._step(f, way)._replace(last=way.rows)

    def _step(self, f: Figures, way: Way) -> Placed:
        return self._decided(f, Forward(f.own, f.before), 0, way)

    def _decided(self, f: Figures, forward: Forward, padding: Number, way: Way) -> Placed:
        found = self.harness.run(f, self.served, forward, way)
        if found.rows is None:
            return Placed(Decision(Outcome.LAYOUT_ERROR, gathers=found.gathers))
        start, length = found.rows.start, found.rows.length() + padding
        decision = Decision(Outcome.ROWS, start, length, found.rows.gathered, found.gathers)
        return Placed(decision, found.layer)

    def real(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Give the real tokens of a step in numbers: all of an eager batch."""
        return counts

    def unknown(self, n: Number, declared: Layout | None = None) -> Decision:
        """Run them on a batch of which nothing is known but its own tokens."""
        if declared is not None or self.served.layout is not Layout.FULL:
            raise ValueError(f"{self.name}: the scheduler counts tokens, and nothing is declared")
        step = Figures(n, n, 0, n, n, 0, 1, 1, False, False, False, 0, 0, 0)
        return self._step(step, Way()).decision

    def faulty(self, fault: str) -> "SglangTarget":
        """Plant a fault into the functions."""
        return type(self)(self._base, self.deployment, self._root, fault)


class GraphedTarget(SglangTarget):
    """The same in a server that has decode graphs: a step of equal counts replays one."""

    def _step(self, f: Figures, way: Way) -> Placed:
        """Run the published functions at the end of a graph, if the counts are equal."""
        equal = (f.own == f.largest) & (f.before == f.dp_rank * f.largest)
        if equal & (f.total == f.dp * f.largest):
            return self._graph(f, f.largest, way)
        return super()._step(f, way)

    def in_graph(self, f: Figures, extent: Number) -> Decision:
        """Run them at the end of a graph that is said to have `extent` rows a DP rank."""
        return self._graph(f, extent, Way()).decision

    def _graph(self, f: Figures, extent: Number, way: Way) -> Placed:
        """Only real tokens have slots, so a slice of them alone is whole: the rest is padding."""
        own, before = _real(f)
        return self._decided(f, Forward(own, before, extent), f.own - own, way)

    def real(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Give the real tokens of a step in numbers: all but one of a graph's rows, all of an eager batch."""
        return tuple(max(0, count - 1) for count in counts) if len(set(counts)) == 1 else counts


def sglang_target(name: str, deployment: str, root: Path) -> SglangTarget:
    """Make the target of one deployment of a published SGLang; `root` holds its package."""
    kind = GraphedTarget if deployment == "decode-graph" else SglangTarget
    return kind(name, deployment, root)


def _real(f: Figures) -> tuple[Number, Number]:
    """Give the real tokens of this DP rank and of those before: any, or, in numbers, one less a rank."""
    if not isinstance(f.own, Int):
        own = f.own - (f.own > 0)
        return own, f.dp_rank * own
    space = f.own.space
    own, before = space.int("real"), space.int("real_before")
    least = (own >= 0) & (own <= f.own) & (before >= 0) & (before <= f.before)
    if not any(axiom.eq(least.term) for axiom in space.axioms):
        space.axioms.append(least.term)
    return own, before
