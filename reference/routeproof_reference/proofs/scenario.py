"""Steps as proofs see them: any DP size by abstraction, or concrete counts.

The abstraction keeps, of the other DP ranks, the tokens before and after this one and the
shards they fill: `p` shards hold from `p` to `tp * p` tokens, and any such pair of numbers
is reached by some DP ranks. Where the largest count matters, `blocks` stands for dp * largest and
`earlier` for d * largest, with what is linear about them.
"""

from typing import Any, NamedTuple

from routeproof_reference.proofs.claims import Situation
from routeproof_reference.proofs.obligation import Counterexample
from routeproof_reference.proofs.symbolic import Space
from routeproof_reference.proofs.target import Figures, Members


class Scenario(NamedTuple):
    """Variables, and the Z3 axioms that they satisfy."""

    at: Situation
    axioms: tuple[Any, ...]
    shards_before: Any
    """p: shards of the DP ranks before, an Int."""
    shards_after: Any
    after: Any
    """Tokens of the DP ranks after, an Int."""


def scenario(space: Space, many: bool, tp: int | None, told: bool, members: Members) -> Scenario:
    """Make the variables of a step.

    Args:
        space: where they live.
        many: DP > 1, any size; otherwise DP = 1.
        tp: TP size; None: any.
        told: shard sizes are right if they are known; otherwise they are anything.
        members: the set.

    """
    n, own, t = space.int("n"), space.int("own"), space.int("t")
    size: Any = space.int("tp") if tp is None else tp
    # With any tp, two definitions of ceil would need a proof that they agree, which Z3 does not find.
    s = space.int("s") if tp is not None else space.divide(own + size - 1, size)
    p: Any
    q: Any
    before: Any
    after: Any
    dp: Any
    d: Any
    p, q = (space.int("p"), space.int("q")) if many else (space.lift(0), space.lift(0))
    before, after = (space.int("before"), space.int("after")) if many else (space.lift(0), space.lift(0))
    dp, d = (space.int("dp"), space.int("d")) if many else (1, 0)
    total = before + own + after if many else own
    largest = space.int("largest") if many else own
    formed, divide = space.bool("formed"), space.bool("divide")
    sizes = [space.int(name) for name in ("sizes_before", "sizes_own", "sizes_total")]
    counted: list[Any] = [n >= 0, own >= 0, t >= 0, t < size, (own <= s * size) & (s * size < own + size)]
    if tp is None:
        counted.append(size >= 1)
    if many:
        counted += [p >= 0, q >= 0, before >= p, after >= q, before <= p * size, after <= q * size]
        counted += [dp > 1, d >= 0, d < dp, largest >= own, largest <= total]
        blocks, earlier = space.name_product(dp, largest, "blocks"), space.name_product(d, largest, "earlier")
        counted += [before <= earlier, after <= blocks - earlier - largest]
        counted.append((earlier == 0) == ((d == 0) | (largest == 0)))
        counted += [(d > 0) | (before == 0), (d + 1 < dp) | (after == 0)]
    if told:
        real = (p * size, s * size, (p + s + q) * size)
        counted += [divide, formed, *(told_size == true for told_size, true in zip(sizes, real, strict=True))]
    else:
        low, middle, whole = sizes
        counted += [(formed ^ True) | divide, (d > 0) | (low == 0)]
        counted.append((formed ^ True) | ((low >= 0) & (middle >= 0) & (whole >= low + middle)))
        if not many:
            counted += [divide, whole == middle]
    figures = Figures(
        n, own, before, total, largest, d, dp, size, space.bool("has_sizes"), divide, formed, *sizes
    )
    axioms = tuple(space.term(term) for term in counted)
    return Scenario(Situation(figures, s, t, members), axioms, p, q, after)


def spread(tokens: int, shards: int, tp: int) -> list[int]:
    """Give the fewest counts that sum to `tokens` and fill `shards` shards of up to tp tokens each."""
    lack = tp * shards - tokens
    ranks = 0 if shards == 0 else max(1, -(-lack // (tp - 1)) if tp > 1 else 1)
    full = [1] * max(0, ranks - 1) + [shards - max(0, ranks - 1)] * min(1, ranks)
    counts = []
    for held in full:
        short = min(lack, tp - 1)
        lack -= short
        counts.append(tp * held - short)
    return counts


def figures_of(
    counts: tuple[int, ...], dp_rank: int, tp: int, n: int, sizes: tuple[int, ...] | None
) -> Figures:
    """Compute the figures of a concrete step, as the reference does from a context."""
    dp, told = len(counts), sizes or ()
    group = len(told) // dp
    divide = sizes is not None and len(told) % dp == 0
    return Figures(
        n=n,
        own=counts[dp_rank],
        before=sum(counts[:dp_rank]),
        total=sum(counts),
        largest=max(counts),
        dp_rank=dp_rank,
        dp=dp,
        tp=tp,
        has_sizes=sizes is not None,
        divide=divide,
        formed=divide and min(told, default=0) >= 0,
        sizes_before=sum(told[: dp_rank * group]),
        sizes_own=sum(told[dp_rank * group : (dp_rank + 1) * group]),
        sizes_total=sum(told),
    )


def situation_of(found: Counterexample, members: Members) -> Situation:
    """Give the concrete situation of a counterexample."""
    figures = figures_of(found.counts, found.dp_rank, found.tp, found.n, found.sizes)
    return Situation(figures, -(-figures.own // found.tp), found.tp_rank, members)


def right_sizes(counts: tuple[int, ...], tp: int) -> tuple[int, ...]:
    """Give the shard sizes of a step: ceil(T / tp), tp times per DP rank."""
    return tuple(-(-count // tp) for count in counts for _ in range(tp))


def concrete(values: dict[str, int], many: bool, tp: int, told: bool) -> Counterexample:
    """Turn the values of a scenario's variables into counts and sizes.

    Args:
        values: by the names of `scenario`; truths are 0 or 1.
        many: DP > 1.
        tp: TP size.
        told: shard sizes are right.

    """
    before = spread(values["before"], values["p"], tp) if many else []
    after = spread(values["after"], values["q"], tp) if many else []
    if many and values["d"] > 0 and not before:
        before = [0]
    if many and not before and not after:
        after = [0]
    if many and not told and values["sizes_total"] != values["sizes_before"] + values["sizes_own"]:
        after = after or [0]
    counts = (*before, values["own"], *after)
    sizes: tuple[int, ...] | None = None
    if values["has_sizes"]:
        sizes = right_sizes(counts, tp) if told else _sizes(values, len(before), len(counts))
    return Counterexample(counts, len(before), tp, values["t"], values["n"], "", sizes, "")


def _sizes(values: dict[str, int], rank: int, dp: int) -> tuple[int, ...]:
    """Realise sums of shard sizes that need not be right, with two sizes a DP rank."""
    low, own, whole = values["sizes_before"], values["sizes_own"], values["sizes_total"]
    if not values["divide"]:
        return (whole, *[0] * dp)
    sums = [0] * dp
    if rank:
        sums[0] = low
    sums[rank] = own
    sums[-1] += whole - sum(sums)
    negative = 0 if values["formed"] or min(sums) < 0 else 1
    return tuple(size for total in sums for size in (total + negative, -negative))
