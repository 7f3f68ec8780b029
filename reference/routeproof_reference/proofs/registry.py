"""All obligations. Statements only: no tool is needed to read them."""

from routeproof_reference.proofs.obligation import Method, Obligation

_TP = "all counts, any DP and TP size; 2 to 7 TP sizes singly"
_ALL_TP = "all counts, any DP and TP size; 1..64 singly (of the capturer: 7)"
_FEW = "all counts, DP 2..8, any TP size; TP 2, 3, 8 singly"
_BOX = "counts <= 4, DP <= 3, tp 1..4, every n, every rank, shard sizes right, unknown and malformed"


def _smt(name: str, rules: tuple[str, ...], statement: str, *controls: str, scope: str = _TP) -> Obligation:
    return Obligation(name, rules, statement, Method.SMT, scope, controls)


_DECISIONS = (
    _smt(
        "own-rows",
        ("LAY-02", "LAY-03", "LAY-04", "LAY-05"),
        "Every layout of the set is accepted, and gives the publisher the own rows in token order.",
        "shards rounded down",
        "start of all ranks",
        "tokens for shards",
        "no gather",
        scope=_ALL_TP,
    ),
    _smt(
        "other-ranks",
        ("LAY-02", "LAY-03"),
        "The other TP ranks get the own rows too; the one exception is the shard of a single token.",
        "no gather",
    ),
    _smt(
        "fail-closed",
        ("LAY-01",),
        "An n that no layout of the set has is a layout error.",
        "unfit passes",
        "groups judged early",
    ),
    _smt(
        "order",
        ("LAY-06", "LAY-01", "LAY-02"),
        "With all six layouts in the set the first that fits decides, unless two that fit differ: an error.",
        "order swapped",
        "harm ignored",
    ),
    _smt(
        "order-any-set",
        ("LAY-06", "LAY-01", "LAY-02"),
        "The same for every one of the 64 sets.",
        "always gather",
        scope="all counts, any DP size, TP 2; --deep: any",
    ),
    _smt(
        "malformed-groups",
        ("LAY-08",),
        "Shard sizes that form no groups are an error where n is read by them, and harmless where not.",
        "groups unchecked",
        "groups judged early",
    ),
    _smt(
        "needless-gather",
        ("COL-02", "COL-03", "COL-05"),
        "One gather at most, only for shards of several tokens, and none where the layout is rejected.",
        "gather of whole rows",
    ),
    _smt(
        "declared",
        ("LAY-10",),
        "A declared layout is obeyed, and rejected where n contradicts it.",
        "declaration unchecked",
        "local padding at any DP",
    ),
    _smt(
        "zero-tokens",
        ("LAY-12",),
        "A DP rank without tokens is accepted, writes nothing and gathers nothing.",
        "harm without tokens",
    ),
    _smt(
        "lockstep",
        ("COL-01", "LAY-07"),
        "A decision is a function of n, the counts and the sizes: total, single-valued, no TP rank, no mask.",
        "n differs by TP rank",
    ),
)

_FACTS = (
    _smt(
        "base-set-harmless",
        ("LAY-06",),
        "F1. No two of CROSS_DP, FULL, GATHERED_SHARDS, TP_SHARD differ at the publisher.",
        "PADDED_LOCAL is one of them",
    ),
    _smt(
        "other-ranks-harmless",
        ("LAY-06",),
        "F2. Nor at other TP ranks, but for T = 1.",
        "no exception",
    ),
    _smt(
        "padded-local-or-cross-dp",
        ("LAY-06", "LAY-10"),
        "F3. PADDED_LOCAL and CROSS_DP differ exactly when T > 0, earlier DP ranks have tokens, and all "
        "other DP ranks have tp * s - T.",
        "earlier tokens do not matter",
    ),
    _smt(
        "shards-or-max",
        ("LAY-06", "LAY-10"),
        "F4. GATHERED_SHARDS and PADDED_TO_MAX differ exactly when T > 0, the shards sum to dp * M, and "
        "those of earlier DP ranks do not sum to d * M.",
        "where the group begins does not matter",
        scope=_FEW,
    ),
    _smt(
        "padded-local-or-max",
        ("LAY-06", "LAY-10"),
        "F5. PADDED_LOCAL and PADDED_TO_MAX differ exactly when T > 0, d > 0 and tp * s = dp * M.",
        "d may be 0",
        scope=_FEW,
    ),
    _smt(
        "no-fourth-pair",
        ("LAY-06",),
        "F6. No other pair of the six differs; at DP = 1 none does.",
        "nor do the three",
        scope="all counts, DP 1..8, any TP size; TP 2 singly",
    ),
)

_OUTSIDE = tuple(
    item._replace(must=False)
    for item in (
        _smt(
            "padded-local-misread",
            ("LAY-10",),
            "F3. Out of the set and undeclared, PADDED_LOCAL at DP > 1 is silently read as CROSS_DP, exactly "
            "when T > 0, earlier DP ranks have tokens and tp * s is the sum of all counts.",
            "never misread",
        ),
        _smt(
            "uneven-shards",
            ("COL-01",),
            "F7. Unpadded shards are never silently wrong; lockstep is lost exactly when T > 1 and tp does "
            "not divide T.",
            "at T = 1 too",
        ),
        _smt(
            "physical-counts",
            ("LAY-11",),
            "F8. With real counts over padded tensors nothing is silently wrong at DP = 1; at DP > 1 it can "
            "be: real (1, 3), padded (1, 4), DP rank 1.",
            "nor at DP > 1",
            scope="DP = 1: unbounded counts, any tp; DP > 1: the example",
        ),
    )
)

_SEARCHES = (
    Obligation(
        "box",
        ("LAY-01", "LAY-02", "LAY-03", "LAY-04", "LAY-05", "LAY-06", "LAY-08", "LAY-10", "LAY-12", "COL-02"),
        "All of the above hold of every step within bounds.",
        Method.BOX,
        _BOX,
        (
            "shards rounded down",
            "local padding at any DP",
            "groups unchecked",
            "harm ignored",
            "unfit passes",
        ),
    ),
    Obligation(
        "box-every-set",
        ("LAY-06",),
        "For each of the 64 sets the order is kept, and no accepted step is wrong.",
        Method.BOX,
        "counts <= 2, DP <= 2, tp 1..3, every n, 64 sets",
        ("always gather", "harm ignored"),
    ),
    Obligation(
        "box-deep",
        ("LAY-01", "LAY-02", "LAY-03", "LAY-04", "LAY-05", "COL-02"),
        "Own rows, other ranks, fail closed and gathers, in a wider box.",
        Method.BOX,
        "counts <= 12, DP <= 4, tp 1, 2, 3, 4, 8, n at each layout's and beside",
        ("shards rounded down", "unfit passes"),
        deep=True,
    ),
    Obligation(
        "producers",
        ("LAY-02", "LAY-03", "LAY-04", "LAY-05"),
        "What producers hand over has the n and the place of the own rows that the proofs assume, and "
        "`plan` restores it from the step's context.",
        Method.BOX,
        "counts <= 2, DP <= 2 (and 3 with counts <= 1), tp 1, 2, 3, every rank and layout",
        ("shards in another order", "padding in front"),
    ),
    Obligation(
        "protocol",
        ("COL-01", "BUF-01", "SNP-01"),
        "No interleaving of ranks, layers and steps deadlocks, pairs different collectives, publishes rows "
        "of another step, or copies without a fence; gathers per layer and per step.",
        Method.PROTOCOL,
        "tp <= 4, DP <= 2, 2..3 layers, 2 steps, 30 settings, all interleavings",
        (
            "a rank is handed one row less",
            "a rank skips the gather",
            "layers in another order on one rank",
            "a layer is not written",
            "no fence before the next step",
        ),
    ),
    Obligation(
        "contracts",
        ("LAY-02", "LAY-03", "LAY-04"),
        "Contracts of the flat decision: each layout starts where it must.",
        Method.CROSSHAIR,
        "unbounded counts, any DP size, tp 2, 3, 4",
        ("planted_tokens_for_shards",),
    ),
    Obligation(
        "arrays",
        ("LAY-02", "LAY-04"),
        "Arrays cut and put together by the decision hold the own rows.",
        Method.HYPOTHESIS,
        "three layouts, CrossHair as Hypothesis's backend, 40 examples",
        ("tokens for shards",),
    ),
)

_CAPTURER = (
    Obligation(
        "same-decision",
        ("LAY-01", "LAY-02", "LAY-06"),
        "The capturer decides as the reference.",
        Method.CROSSHAIR,
        "diffbehavior: all counts, DP rank 1, TP 2, three layouts",
        ("planted_decision",),
    ),
    Obligation(
        "layouts-drawn",
        ("LAY-01", "LAY-02", "LAY-06", "LAY-08", "LAY-10"),
        "Steps drawn layout first: the capturer gives the rows or the error of the reference.",
        Method.HYPOTHESIS,
        "counts <= 40, DP <= 4, tp <= 8, 400 examples",
        ("a row too early",),
    ),
    Obligation(
        "state-machine",
        ("BUF-01", "BUF-02", "BUF-05", "SNP-01", "SNP-03", "COL-01", "COL-05"),
        "Steps, microbatches, rejected calls, abandoned steps and reused buffers in any order: what is "
        "published is what the reference publishes, and snapshots stay.",
        Method.HYPOTHESIS,
        "tp <= 3, DP <= 2, 40 runs of up to 20 rules",
        ("a snapshot shares the buffer", "an abandoned step is published"),
    ),
    Obligation(
        "differential",
        ("LAY-01", "LAY-02", "LAY-05", "LAY-06", "BUF-02", "COL-02", "COL-05", "COL-06"),
        "On tensors: rows, error, number of collectives and the rest of the buffer are the reference's; "
        "what is gathered and published is contiguous.",
        Method.DIFFERENTIAL,
        "counts <= 6, DP <= 3, tp 1, 2, 3, 4, 8, every n, at least 200,000 calls",
        ("a row too many", "shards in another order"),
    ),
    Obligation(
        "differential-optimised",
        ("GAT-03",),
        "The same in optimised Python, without assertions.",
        Method.DIFFERENTIAL,
        "the same calls under python -O",
        ("a row too many",),
    ),
    Obligation(
        "no-host-sync",
        ("COL-07",),
        "The capture path runs on tensors that hold no data: nothing reads ids or buffer from the host.",
        Method.EXECUTION,
        "meta tensors, every layout, tp 1, 2, 3, DP 1, 2",
        ("a maximum is read",),
    ),
)

OBLIGATIONS: tuple[Obligation, ...] = (*_DECISIONS, *_FACTS, *_OUTSIDE, *_SEARCHES, *_CAPTURER)
"""In the order of the table."""

BY_ID: dict[str, Obligation] = {item.id: item for item in OBLIGATIONS}

DECISIONS = tuple(item.id for item in _DECISIONS)
FACTS = tuple(item.id for item in (*_FACTS, *_OUTSIDE))
TARGET_FACTS = ("lockstep", *(item.id for item in _OUTSIDE))
"""Facts of the code examined; the others are about layouts alone."""
CAPTURER = tuple(item.id for item in _CAPTURER)


def established_by(rule: str) -> tuple[str, ...]:
    """Give the ids of the MUST obligations that establish a rule, in the order of the table."""
    return tuple(item.id for item in OBLIGATIONS if rule in item.rules and item.must)
