"""Obligations that enumeration, CrossHair, Hypothesis, state search and execution establish."""

from routeproof_reference.proofs.obligation import Method, Obligation

_BOX = "counts <= 4, DP <= 3, tp 1..4, every n and rank; shard sizes, if told any: right, unknown, malformed"

SEARCHES = (
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
        ("COL-01",),
        "No interleaving of ranks, layers and steps deadlocks, pairs different collectives, publishes rows "
        "of another step, or copies without a fence; gathers per layer and per step.",
        Method.PROTOCOL,
        "tp <= 4, DP <= 2, 2..3 layers, 2 steps, up to 30 settings, all interleavings; the rank is a model",
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

CAPTURER = (
    Obligation(
        "same-decision",
        ("LAY-02", "LAY-03", "LAY-04", "LAY-06"),
        "The capturer decides as the reference.",
        Method.CROSSHAIR,
        "diffbehavior: all counts, DP 1 and rank 1 of DP 2, TP 2, every layout of the default set",
        ("planted_full",),
    ),
    Obligation(
        "layouts-drawn",
        ("LAY-01", "LAY-02", "LAY-06", "LAY-08", "LAY-10", "COL-02", "COL-05", "COL-06"),
        "Steps drawn layout first, malformed shard sizes among them: the capturer gives the rows or the "
        "error of the reference, and issues the same collectives.",
        Method.HYPOTHESIS,
        "counts <= 40, DP <= 4, tp <= 8, both modes, default and drawn sets, int32 and int64, 400 examples",
        ("a row too early", "malformed sizes pass", "per layer, shards in another order"),
    ),
    Obligation(
        "state-machine",
        ("LAY-02", "BUF-01", "BUF-02", "BUF-05", "SNP-01", "SNP-03", "COL-01", "COL-05"),
        "Steps, microbatches, layers in different layouts, rejected calls, abandoned steps and reused "
        "buffers in any order: what is published is what the reference publishes, snapshots stay, a "
        "rejected call issues no collective, and its step publishes nothing.",
        Method.HYPOTHESIS,
        "tp <= 3, DP <= 2, both modes, 60 and 40 runs of up to 10 rules after 4 steps, a fixed seed",
        (
            "a snapshot's memory is used again",
            "a collective before a rejection",
            "a microbatch at the offset of another",
        ),
    ),
    Obligation(
        "differential",
        ("LAY-01", "LAY-02", "LAY-05", "LAY-06", "LAY-08", "LAY-10", "BUF-02", "COL-02", "COL-05", "COL-06"),
        "On tensors: rows, error, number of collectives and the rest of the buffer are the reference's; "
        "what is gathered and published is contiguous.",
        Method.DIFFERENTIAL,
        "mode deferred, counts <= 12, 7, 6 at DP 1, 2, 3 (gathers at DP 3: <= 3), tp 1, 2, 3, 4, 8, every n; "
        "declared and malformed: counts <= 4, 3, 1, n of the layouts; 200,000 calls",
        ("a row too many", "shards in another order", "malformed sizes pass"),
    ),
    Obligation(
        "differential-per-layer",
        ("LAY-01", "LAY-02", "LAY-03", "LAY-05", "LAY-08", "BUF-02", "COL-02", "COL-03", "COL-05", "COL-06"),
        "The same of the capturer that gathers at each layer's call.",
        Method.DIFFERENTIAL,
        "mode per-layer, counts <= 12, 4, 1 at DP 1, 2, 3, declared and malformed ones as above, "
        "tp 1, 2, 3, 4, 8, every n, 20,000 calls",
        ("a row too many", "shards in another order"),
    ),
    Obligation(
        "differential-optimised",
        ("GAT-03",),
        "The capturer in mode deferred in optimised Python, without assertions.",
        Method.DIFFERENTIAL,
        "the calls of `differential` under python -O",
        ("a row too many",),
    ),
    Obligation(
        "no-host-sync",
        ("COL-07",),
        "The capture path runs on tensors that hold no data: nothing reads ids or buffer from the host.",
        Method.EXECUTION,
        "meta tensors, all seven layouts, declared or not, and microbatches, int32 and int64, both modes, "
        "tp 1, 2, 3, DP 1, 2",
        ("a maximum is read", "ids of 64 bits are read"),
    ),
)
