"""What the families share: configurations, earlier steps, twins, ids."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from routeproof_reference import plan
from routeproof_spec import (
    Call,
    CaptureConfig,
    CaptureError,
    Case,
    CaseStep,
    Layout,
    Microbatch,
    Rank,
    StepContext,
    Topology,
)

ACCEPTED = ("LAY-02", "LAY-05", "BUF-01", "SNP-01", "SNP-03", "SNP-04", "COL-01", "COL-02", "COL-03")
"""Rules that every accepted case shows beside its own."""

REJECTED = ("BUF-02", "COL-01", "COL-05", "GAT-03")
"""Rules that every rejected case shows beside its own; GAT-03 on few ranks, since it runs all twice."""

TP_SIZES = (1, 2, 3, 4, 8)
DP_SIZES = (1, 2, 3)
MAX_TOKENS = 24
FEW_RANKS, MANY_RANKS = 4, 8
"""Topologies beyond have fewer cases, step by step: they take longest and show little more."""
LAYERS = 2


def topologies(tp: Iterable[int] = TP_SIZES, dp: Iterable[int] = DP_SIZES) -> Iterator[Topology]:
    """Give all combinations."""
    for tp_size, dp_size in product(tp, dp):
        yield Topology(tp=tp_size, dp=dp_size)


def config(max_tokens: int = MAX_TOKENS, layers: int = LAYERS, **more: object) -> CaptureConfig:
    """Give the configuration of generated rows, E = 256 and K = 8, unless `more` says otherwise."""
    fields = {"max_tokens": max_tokens, "layers": layers, "top_k": 8, "experts": 256, **more}
    return CaptureConfig.model_validate(fields)


def sizes(counts: tuple[int, ...], tp: int) -> tuple[int, ...]:
    """Give the well-formed shard sizes: ceil(T_d / tp), tp times for each DP rank."""
    return tuple(-(-count // tp) for count in counts for _ in range(tp))


def context(
    counts: tuple[int, ...], tp: int, real: tuple[int, ...] | None = None, **more: object
) -> StepContext:
    """Give the counts of a step; shard sizes are known at DP > 1, as engines have them there."""
    known = sizes(counts, tp) if len(counts) > 1 else None
    fields = {"counts": counts, "real": counts if real is None else real, "shard_sizes": known, **more}
    return StepContext.model_validate(fields)


def step(
    topology: Topology,
    counts: tuple[int, ...],
    emitted: Layout,
    real: tuple[int, ...] | None = None,
    calls: tuple[Call, ...] | None = None,
    element: str = "int32",
    strided: bool = False,
    mask: bool = False,
    **more: object,
) -> CaseStep:
    """Give a step of generated rows."""
    return CaseStep.model_validate(
        {
            "context": context(counts, topology.tp, real, **more),
            "emitted": emitted,
            "calls": calls,
            "element": element,
            "strided": strided,
            "mask": mask,
        }
    )


def filling(topology: Topology, rows: int = MAX_TOKENS) -> CaseStep:
    """Give an earlier step of full size, whose rows are stale ever after."""
    return step(topology, (rows,) * topology.dp, Layout.FULL)


def axes(topology: Topology, more: Mapping[str, object] | None = None) -> str:
    """Spell the axes of an id: tp, dp, then the others; tuples with + between."""
    values = {"tp": topology.tp, "dp": topology.dp, **(more or {})}
    return ",".join(f"{name}={_spell(value)}" for name, value in values.items())


def _spell(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(str(item) for item in value)
    return str(value)


def accepted(
    name: str,
    topology: Topology,
    steps: tuple[CaseStep, ...],
    rules: tuple[str, ...] = (),
    capabilities: tuple[str, ...] = (),
    settings: CaptureConfig | None = None,
    source: str = "",
    at: Mapping[str, object] | None = None,
) -> Case:
    """Give a case that must be accepted; `name` is RULE/slug, `at` the further axes of its id."""
    listed = tuple(dict.fromkeys((name[:6], *rules, *ACCEPTED)))
    return Case(
        id=f"{name}[{axes(topology, at)}]",
        rules=listed,
        topology=topology,
        config=settings or config(),
        steps=steps,
        capabilities=capabilities,
        source=source,
    )


def rejected(
    name: str,
    topology: Topology,
    wrong: CaseStep,
    right: CaseStep,
    rules: tuple[str, ...] = (),
    capabilities: tuple[str, ...] = (),
    settings: CaptureConfig | None = None,
    source: str = "",
    before: tuple[CaseStep, ...] | None = None,
    at: Mapping[str, object] | None = None,
) -> Case:
    """Give a case whose step `wrong` must be rejected, between a full step and one that is right.

    Its twin has `right` in place of `wrong`.
    """
    first = (filling(topology),) if before is None else before
    ident = f"{name}[{axes(topology, at)}]"
    shared = {
        "id": ident,
        "topology": topology,
        "config": settings or config(),
        "capabilities": capabilities,
        "source": source,
    }
    twin = Case.model_validate({**shared, "rules": (name[:6], "LAY-02"), "steps": (*first, right, right)})
    few = topology.size <= FEW_RANKS
    shown = [rule for rule in (name[:6], *rules, *REJECTED) if few or rule != "GAT-03"]
    listed = tuple(dict.fromkeys(shown))
    return Case.model_validate({**shared, "rules": listed, "steps": (*first, wrong, right), "twin": twin})


def unfit(topology: Topology, counts: tuple[int, ...], settings: CaptureConfig) -> list[int]:
    """Give every n up to 3 past the largest layout that no DP rank can resolve."""
    told = context(counts, topology.tp)
    limit = max(len(counts) * max(counts), sum(sizes(counts, topology.tp))) + 3
    return [n for n in range(limit + 1) if not _fits(topology, told, settings, n)]


def _fits(topology: Topology, told: StepContext, settings: CaptureConfig, n: int) -> bool:
    for dp in range(topology.dp):
        rank = Rank(topology=topology, dp=dp, tp=0)
        try:
            plan(settings, rank, told, 0, 0, n, settings.width)
        except CaptureError:
            continue
        return True
    return False


def halves(offsets: tuple[int, int], counts: tuple[tuple[int, ...], ...], tp: int) -> tuple[Microbatch, ...]:
    """Give two microbatches whose tokens are all real."""
    return tuple(
        Microbatch(
            offset=offset, counts=part, real=part, shard_sizes=sizes(part, tp) if len(part) > 1 else None
        )
        for offset, part in zip(offsets, counts, strict=True)
    )
