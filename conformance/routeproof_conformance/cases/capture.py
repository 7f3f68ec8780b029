"""Families of the groups COL, BUF, SNP and IDS."""

from collections.abc import Iterator

from routeproof_spec import Call, CaptureConfig, Case, CaseStep, Layout, Microbatch, Topology

from routeproof_conformance.cases.build import (
    FEW_RANKS,
    LAYERS,
    MANY_RANKS,
    MAX_TOKENS,
    accepted,
    config,
    context,
    filling,
    halves,
    rejected,
    sizes,
    step,
    topologies,
)

SOME = {1: ((5,), (6,)), 2: ((5, 3), (2, 6)), 3: ((3, 5, 2), (4, 1, 6))}


def _given(counts: tuple[int, ...], ids: object, emitted: Layout = Layout.FULL) -> CaseStep:
    """Give a step of given ids, per DP rank [T_d][L][K]."""
    return CaseStep.model_validate({"context": context(counts, 1), "emitted": emitted, "ids": ids})


def gathers() -> Iterator[Case]:
    """COL-01 to COL-04 and COL-06: how many collectives a step has, and on what."""
    for topology in topologies(tp=(2, 3, 4, 8)):
        for counts in SOME[topology.dp][: 1 if topology.size > MANY_RANKS else 2]:
            sharded = step(topology, counts, Layout.TP_SHARD)
            four = config(layers=4)
            twice = (filling(topology), sharded, sharded)
            yield accepted("COL-03/layers", topology, twice, ("COL-04",), settings=four, at={"T": counts})
            for element in ("int32", "int64"):
                for strided in (False, True):
                    odd = step(topology, counts, Layout.TP_SHARD, element=element, strided=strided)
                    more = {"T": counts, "element": element, "strided": int(strided)}
                    yield accepted("COL-06/input", topology, (filling(topology), odd), at=more)
            mixed = _mixed(topology, counts)
            yield accepted("COL-02/mixed-layers", topology, (filling(topology), mixed), at={"T": counts})
        ones = step(topology, (1,) * topology.dp, Layout.TP_SHARD)
        yield accepted("COL-02/single-token", topology, (filling(topology), ones))
        uneven = tuple(1 if dp == 0 else 4 for dp in range(topology.dp))
        steps = (filling(topology), step(topology, uneven, Layout.TP_SHARD))
        yield accepted("COL-01/uneven-dp", topology, steps, at={"T": uneven})


def _mixed(topology: Topology, counts: tuple[int, ...]) -> CaseStep:
    """Give a step that captures layer 1 before layer 0: the order of layers is the engine's affair."""
    return step(topology, counts, Layout.TP_SHARD, calls=(Call(layer=1), Call(layer=0)))


def checks_first() -> Iterator[Case]:
    """COL-05, BUF-03 and BUF-09: index and width are judged before the gather."""
    for topology in topologies(tp=(1, 2, 4, 8)):
        for counts in SOME[topology.dp][: 1 if topology.size <= MANY_RANKS else 0]:
            for layout in (Layout.FULL, Layout.TP_SHARD):
                right = step(topology, counts, layout)
                for layer in (-1, LAYERS, LAYERS + 5):
                    wrong = step(topology, counts, layout, calls=(Call(layer=layer),))
                    more = {"T": counts, "emitted": layout, "layer": layer}
                    yield rejected("BUF-03/layer", topology, wrong, right, at=more)
                for width in (1, 7, 9):
                    wrong = step(topology, counts, layout, calls=(Call(layer=0, width=width),))
                    more = {"T": counts, "emitted": layout, "width": width}
                    yield rejected("BUF-09/width", topology, wrong, right, at=more)


def reuse() -> Iterator[Case]:
    """BUF-01: smaller and smaller steps on one buffer, in one layout or in turns."""
    for topology in topologies():
        for kind in ("shards", "whole", "turns"):
            layouts = {
                "shards": (Layout.TP_SHARD,) * 4,
                "whole": (Layout.FULL,) * 4,
                "turns": (Layout.TP_SHARD, Layout.FULL, Layout.CROSS_DP, Layout.TP_SHARD),
            }[kind]
            counts = [tuple(max(0, size - dp) for dp in range(topology.dp)) for size in (13, 6, 5, 1)]
            steps = tuple(step(topology, c, layout) for c, layout in zip(counts, layouts, strict=True))
            yield accepted("BUF-01/reuse", topology, (filling(topology), *steps), at={"kind": kind})


def same_counts() -> Iterator[Case]:
    """SNP-03: steps of one size, as of one graph, of which each has other real tokens."""
    for topology in topologies():
        counts = tuple(8 - dp % 2 for dp in range(topology.dp))
        for layout in (Layout.FULL, Layout.TP_SHARD, Layout.CROSS_DP):
            if topology.size > MANY_RANKS and layout is Layout.CROSS_DP:
                continue
            reals = [tuple(max(0, count - less) for count in counts) for less in (5, 0, 3, 7)]
            steps = tuple(step(topology, counts, layout, real) for real in reals)
            yield accepted(
                "SNP-03/same-counts", topology, (filling(topology), *steps), at={"emitted": layout}
            )
    for topology in topologies(tp=(1, 2, 4), dp=(1, 2)):
        both = (6,) * topology.dp
        for layout in (Layout.FULL, Layout.TP_SHARD):
            steps = tuple(
                step(
                    topology,
                    (12,) * topology.dp,
                    layout,
                    tuple(first + second for _ in both),
                    microbatches=tuple(
                        part.model_copy(update={"real": (real,) * topology.dp})
                        for part, real in zip(
                            halves((0, 6), (both, both), topology.tp), (first, second), strict=True
                        )
                    ),
                )
                for first, second in ((2, 5), (6, 6), (4, 1))
            )
            yield accepted(
                "SNP-03/same-halves",
                topology,
                (filling(topology), *steps),
                capabilities=("microbatches", "staged-microbatches"),
                at={"emitted": layout},
            )


def capacity() -> Iterator[Case]:
    """BUF-04: a step larger than the buffer."""
    for topology in topologies(tp=(1, 2, 4)):
        for rows in (MAX_TOKENS + 1, 2 * MAX_TOKENS):
            for layout in (Layout.FULL, Layout.TP_SHARD, Layout.CROSS_DP):
                right = step(topology, (MAX_TOKENS,) * topology.dp, layout)
                wrong = step(topology, (rows,) * topology.dp, layout)
                yield rejected("BUF-04/larger", topology, wrong, right, at={"T": rows, "emitted": layout})
    for topology in topologies(tp=(1, 2), dp=(1, 2)):
        for last in (1, 2):
            counts = ((MAX_TOKENS,) * topology.dp, (last,) * topology.dp)
            parts = halves((0, MAX_TOKENS), counts, topology.tp)
            wrong = step(topology, (MAX_TOKENS + last,) * topology.dp, Layout.FULL, microbatches=parts)
            fitting = halves((0, 12), ((12,) * topology.dp, (last,) * topology.dp), topology.tp)
            right = step(topology, (12 + last,) * topology.dp, Layout.FULL, microbatches=fitting)
            need = ("microbatches",)
            yield rejected(
                "BUF-04/last-microbatch",
                topology,
                wrong,
                right,
                capabilities=need,
                at={"T": (MAX_TOKENS, last)},
            )


def microbatches() -> Iterator[Case]:
    """BUF-05: microbatches at their own offsets, whole and sharded."""
    for topology in topologies():
        pairs = ((4, 3), (3, 3), (5, 1), (1, 6))
        for first, second in pairs[: 1 if topology.size > MANY_RANKS else 4]:
            for layout in (Layout.FULL, Layout.TP_SHARD, Layout.CROSS_DP):
                counts = ((first,) * topology.dp, (second,) * topology.dp)
                parts = halves((0, first), counts, topology.tp)
                whole = (first + second,) * topology.dp
                steps = (filling(topology), step(topology, whole, layout, microbatches=parts))
                more = {"T": (first, second), "emitted": layout}
                yield accepted("BUF-05/halves", topology, steps, capabilities=("microbatches",), at=more)
        staged = tuple(
            Microbatch(
                offset=offset,
                counts=(8,) * topology.dp,
                real=(real,) * topology.dp,
                shard_sizes=sizes((8,) * topology.dp, topology.tp) if topology.dp > 1 else None,
            )
            for offset, real in ((0, 4), (8, 3))
        )
        real = (7,) * topology.dp
        for layout in (Layout.FULL, Layout.TP_SHARD):
            told = step(topology, (16,) * topology.dp, layout, real, microbatches=staged)
            need = ("microbatches", "staged-microbatches")
            steps = (filling(topology), told)
            yield accepted("BUF-05/staged", topology, steps, capabilities=need, at={"emitted": layout})


def dense_layers() -> Iterator[Case]:
    """BUF-08: layers that no step captures."""
    for topology in topologies(tp=(1, 2, 4)):
        for dense in ((0,), (0, 2), (3,)):
            calls = tuple(Call(layer=layer) for layer in range(4) if layer not in dense)
            counts = SOME[topology.dp][0]
            told = step(topology, counts, Layout.TP_SHARD, calls=calls)
            full = step(topology, (MAX_TOKENS,) * topology.dp, Layout.FULL, calls=calls)
            settings = config(layers=4)
            yield accepted("BUF-08/dense", topology, (full, told), settings=settings, at={"dense": dense})


def snapshots() -> Iterator[Case]:
    """SNP-01 to SNP-04: four steps, every snapshot read again at the end."""
    for topology in topologies():
        for layout in (Layout.FULL, Layout.TP_SHARD):
            counts = SOME[topology.dp][0]
            real = tuple(max(0, count - 2) for count in counts)
            told = step(topology, counts, layout, real)
            steps = (filling(topology), told, filling(topology), told)
            yield accepted("SNP-01/later-steps", topology, steps, ("IDS-05",), at={"emitted": layout})
        for rows in (0, 1, MAX_TOKENS - 1):
            padded = step(topology, (MAX_TOKENS,) * topology.dp, Layout.FULL, (rows,) * topology.dp)
            yield accepted("SNP-03/real-rows", topology, (filling(topology), padded), at={"R": rows})
        yield accepted("SNP-04/publisher", topology, (filling(topology),))


def element_types() -> Iterator[Case]:
    """SNP-02: E decides the element type, and every id below E survives."""
    for experts in (2, 8, 255, 256, 257, 384, 512, 32_767, 32_768, 65_535, 65_536):
        settings = CaptureConfig(max_tokens=4, layers=1, top_k=2, experts=experts)
        for low in (True, False):
            pair = (0, 1) if low else (experts - 1, experts - 2)
            told = _given((2,), (((pair,), (pair[::-1],)),))
            more = {"E": experts, "ids": "low" if low else "high"}
            topology = Topology()
            yield accepted("SNP-02/element", topology, (told,), ("IDS-05",), settings=settings, at=more)
    settings = CaptureConfig(max_tokens=4, layers=1, top_k=2, experts=65_537)
    told = _given((1,), ((((65_536, 1),),),))
    beyond = accepted("SNP-02/beyond-two-bytes", Topology(), (told,), settings=settings, at={"E": 65_537})
    yield beyond.model_copy(update={"rules": ("SNP-02",)})


def invalid_ids() -> Iterator[Case]:
    """IDS-02: ids outside [0, E), whole and sharded, in either element type."""
    for experts, wrong in ((256, (-1, 256, 300, 511, 65_536)), (512, (-1, 512, 65_536)), (8, (8, 255, 264))):
        settings = CaptureConfig(max_tokens=8, layers=1, top_k=2, experts=experts)
        good = tuple((((i % 7, 7),),) for i in range(4))
        rows = tuple(row[0] for row in good)
        for tp in (1, 2, 4):
            topology = Topology(tp=tp)
            for bad in wrong:
                for layout in (Layout.FULL, Layout.TP_SHARD):
                    ids = (*rows[:3], ((bad, 7),))
                    right = _given((4,), (rows,), layout)
                    told = _given((4,), (ids,), layout)
                    more = {"E": experts, "id": bad, "emitted": layout}
                    case = rejected(
                        "IDS-02/range", topology, told, right, settings=settings, before=(right,), at=more
                    )
                    yield case.model_copy(update={"rules": ("IDS-02", "COL-01", "GAT-03")})
    settings = CaptureConfig(max_tokens=8, layers=1, top_k=2, experts=256)
    right = _given((2,), ((((1, 2),), ((3, 4),)),))
    wide = _given((2,), ((((1, 2),), ((2**32 + 5, 4),)),)).model_copy(update={"element": "int64"})
    case = rejected(
        "IDS-02/wide", Topology(), wide, right, settings=settings, before=(right,), at={"id": 2**32 + 5}
    )
    yield case.model_copy(update={"rules": ("IDS-02", "COL-01", "GAT-03")})
    padding = CaseStep.model_validate(
        {
            "context": {"counts": (3,), "real": (2,)},
            "emitted": Layout.FULL,
            "ids": ((((1, 2),), ((3, 4),), ((-1, -1),)),),
        }
    )
    yield accepted("IDS-02/padding-row", Topology(), (padding,), settings=settings)


def shared_columns() -> Iterator[Case]:
    """BUF-09: declared shared-expert columns are dropped."""
    for topology in topologies(tp=(1, 2, 4)):
        for shared in (1, 2):
            settings = config(shared_columns=shared)
            counts = SOME[topology.dp][0]
            for layout in (Layout.FULL, Layout.TP_SHARD):
                told = step(topology, counts, layout)
                need = ("shared-columns",)
                steps = (filling(topology), told)
                more = {"shared": shared, "emitted": layout}
                yield accepted(
                    "BUF-09/shared",
                    topology,
                    steps,
                    capabilities=need,
                    settings=settings,
                    at=more,
                )
                bare = step(topology, counts, layout, calls=(Call(layer=0, width=8),))
                yield rejected(
                    "BUF-09/missing-shared",
                    topology,
                    bare,
                    told,
                    capabilities=need,
                    settings=settings,
                    at=more,
                )


def host_reads() -> Iterator[Case]:
    """COL-07: ids that have a shape and no data, whole and sharded."""
    for topology in topologies(tp=(1, 2, 4), dp=(1, 2)):
        if topology.size > FEW_RANKS:
            continue
        counts = SOME[topology.dp][0]
        layouts = [Layout.FULL, Layout.TP_SHARD]
        layouts.append(Layout.CROSS_DP if topology.dp > 1 else Layout.PADDED_LOCAL)
        for layout in layouts:
            for element in ("int32", "int64") if layout is Layout.TP_SHARD else ("int32",):
                told = step(topology, counts, layout, element=element)
                case = accepted(
                    "COL-07/no-data", topology, (told, told), at={"emitted": layout, "element": element}
                )
                yield case.model_copy(
                    update={"rules": ("COL-07",), "device": "meta", "capabilities": ("device-tensors",)}
                )


FAMILIES = (
    gathers,
    checks_first,
    reuse,
    same_counts,
    capacity,
    microbatches,
    dense_layers,
    snapshots,
    element_types,
    invalid_ids,
    shared_columns,
    host_reads,
)
