"""Obligations about the layout decision that SMT establishes, over all paths of the code."""

from routeproof_reference.proofs.obligation import Method, Obligation

_TP = "all counts, any DP and TP size; 7 TP sizes singly"
_ALL_TP = "all counts, any DP and TP size; TP 1..64 singly"
_DPS = "all counts, DP 2..8, any TP size; 7 TP sizes singly"


def _smt(name: str, rules: tuple[str, ...], statement: str, *controls: str, scope: str = _TP) -> Obligation:
    return Obligation(name, rules, statement, Method.SMT, scope, controls)


DECISIONS = (
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
        "The other TP ranks get the own rows too, but for the shard of a single token.",
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
        scope="all counts, any DP and TP size",
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
        "A declared layout is obeyed, and rejected where n, or that counts are known, contradicts it.",
        "declaration unchecked",
        "local padding at any DP",
    ),
    _smt(
        "zero-tokens",
        ("LAY-12",),
        "A DP rank without tokens is accepted and writes nothing.",
        "harm without tokens",
    ),
    _smt(
        "uncounted",
        ("LAY-09",),
        "Where no count is known the n rows are the own rows, for every n, or every n is refused; a counted "
        "layout declared is an error.",
        "a row is skipped",
        "a row is left out",
        "a counted layout passes",
        scope="every n; every declaration, where any is taken",
    ),
    _smt(
        "placed",
        ("BUF-05", "LAY-02"),
        "What is written goes to the captured layer, from the microbatch's offset on, and nowhere else.",
        "the layer before",
        "a row lost at later layers",
        "no offset",
        "the first row unpublished",
        scope="of published code: all counts, any DP and TP size, layer and offset",
    ),
    _smt(
        "lockstep",
        ("COL-01", "LAY-07"),
        "A decision is a function of n, the counts and the sizes: total, single-valued, no TP rank, no mask.",
        "n differs by TP rank",
    ),
)

FACTS = (
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
        scope=_DPS,
    ),
    _smt(
        "padded-local-or-max",
        ("LAY-06", "LAY-10"),
        "F5. PADDED_LOCAL and PADDED_TO_MAX differ exactly when T > 0, d > 0 and tp * s = dp * M.",
        "d may be 0",
        scope=_DPS,
    ),
    _smt(
        "no-fourth-pair",
        ("LAY-06",),
        "F6. No other pair of the six differs; at DP = 1 none does.",
        "nor do the three",
        scope="all counts, any TP size, 7 singly; any DP size, with PADDED_TO_MAX DP 1..8",
    ),
)

OUTSIDE = tuple(
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
        _smt(
            "slots-in-requests",
            ("LAY-11",),
            "In a decode graph whose extent is told in requests of w tokens, rows are silently wrong exactly "
            "when T > 0, d > 0 and w > 1.",
            "at w = 1 too",
        ),
    )
)
