"""LAY: what a row count means, and where the own rows lie.

Surfaces: the capturer shows all of these but LAY-11, which is the context builder's;
LAY-07 binds both, since the count must be right where it is made and where it is used.
"""

from routeproof_spec.rule import Level, Rule, Surface

CAPTURER = (Surface.CAPTURER,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="LAY-01",
        level=Level.MUST,
        title="closed set of layouts",
        statement=(
            "Each call hands over n rows. The capturer MUST match n against the layouts of the step, "
            "computed from the counts it was given, and MUST reject with a layout error an n that none of "
            "them has. Where no count is known, LAY-09 holds instead."
        ),
        surfaces=CAPTURER,
        rationale=(
            "A capturer that copies whatever it gets takes one shard for the whole batch: the first rows "
            "look right and the rest are those of an earlier forward pass, with no error anywhere."
        ),
        sources=("vLLM #61388", "vLLM #43737", "vllm-ascend #15451"),
    ),
    Rule(
        id="LAY-02",
        level=Level.MUST,
        title="own rows, in token order",
        statement=(
            "When a step has ended, row i at the publisher of DP rank d MUST be the ids of token i of that "
            "DP rank, for every captured layer and every i < T_d. Of these rows, those with i < R_d are "
            "published."
        ),
        surfaces=CAPTURER,
        rationale=(
            "A row at the wrong position replays the experts of another token. Shapes, ranges and byte "
            "counts all stay right, so a trainer has no means to notice."
        ),
        sources=("vLLM #61388", "vLLM #37879", "vLLM #50874", "vllm-ascend #15451", "SGLang #30712"),
    ),
    Rule(
        id="LAY-03",
        level=Level.MUST,
        title="shards in TP-rank order",
        statement="Shards gathered over a TP group MUST be concatenated in ascending TP-rank order.",
        surfaces=CAPTURER,
        rationale=(
            "Shard t holds tokens [t * s, (t + 1) * s). Any other order permutes tokens in blocks of s, and "
            "padding from the last shard moves into the middle."
        ),
        sources=("vLLM #61388", "torchtitan #3622"),
    ),
    Rule(
        id="LAY-04",
        level=Level.MUST,
        title="shard groups: DP-major, TP-minor",
        statement=(
            "Gathered shards are ordered by DP rank and, within one, by TP rank. A DP rank MUST take its "
            "rows from its own group of shards: T_d rows from the sum of all shard sizes of earlier DP ranks "
            "on."
        ),
        surfaces=CAPTURER,
        rationale=(
            "With counts [5, 3] and tp 2, DP rank 1 begins at row 6 of the gathered rows. Starting at row 5, "
            "the sum of earlier tokens, gives it a padding row of its neighbour and drops its last token."
        ),
        sources=("vLLM #50874",),
    ),
    Rule(
        id="LAY-05",
        level=Level.MUST,
        title="padding is trimmed",
        statement=(
            "Rows that pad a shard or a DP block beyond T_d MUST NOT be among the own rows. Rows from R_d "
            "on, which pad the batch, MUST NOT be published."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Padding rows carry valid ids that no token was routed to. Kept between two blocks, they also "
            "shift every later row by their number."
        ),
        sources=("vLLM #61388", "vLLM #50874"),
    ),
    Rule(
        id="LAY-06",
        level=Level.MUST,
        title="precedence, and harmful ambiguity",
        statement=(
            "n is inferred within the configured set of layouts, in the order CROSS_DP, FULL, "
            "GATHERED_SHARDS, PADDED_TO_MAX, TP_SHARD, PADDED_LOCAL: the first member that has n rows MUST "
            "decide. Where two members have n rows and would give the publisher different own rows, the "
            "ambiguity is harmful and an undeclared n MUST be rejected with a layout error, whatever the "
            "order says."
        ),
        surfaces=CAPTURER,
        rationale=(
            "With counts [5, 3] and tp 2, ten rows are gathered shards or blocks padded to the largest; DP "
            "rank 1 owns [6, 9) in the one and [5, 8) in the other. A guess is wrong without a sign of it. "
            "Without a common order, two ranks can choose differently and one waits for the other."
        ),
        sources=(
            "vLLM 0.33.0: order of the branches of its capturer",
            "derived: all pairs",
        ),
    ),
    Rule(
        id="LAY-07",
        level=Level.MUST,
        title="source of the count",
        statement=(
            "The context's batch descriptor or DP metadata MUST be the source of T_d. A padding mask MUST "
            "NOT be: neither its length nor its content is a count, and neither is the number of rows handed "
            "over."
        ),
        surfaces=(Surface.CAPTURER, Surface.CONTEXT_BUILDER),
        rationale=(
            "Under sequence parallelism the mask is sharded as the rows are, so its length is s. A capturer "
            "that reads it believes that one shard is the batch, and accepts it as complete."
        ),
        sources=("vLLM #61388", "vllm-ascend #15451"),
    ),
    Rule(
        id="LAY-08",
        level=Level.MUST,
        title="malformed shard groups",
        statement=(
            "Shard sizes are malformed if the DP size does not divide how many there are, or if any of them "
            "is below zero. A call whose n such sizes would read (n is their sum, and either no earlier "
            "layout of the set fits or GATHERED_SHARDS is declared) MUST be rejected with a value error; "
            "this MUST hold with assertions disabled. Where another layout reads n, the sizes are no reason "
            "to reject it."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Groups are found by dividing the number of shards by the DP size. A remainder moves every group "
            "border, and a negative size moves the slices back into a neighbour's rows."
        ),
        sources=("vLLM 0.33.0: value error of its capturer for ungrouped shards", "derived: LAY-04"),
    ),
    Rule(
        id="LAY-09",
        level=Level.PROFILE,
        title="no count known",
        statement=(
            "Where a step has no token counts (UNCOUNTED), the engine keeps the variant that its profile "
            "declares: pass-through takes the rows as they are, in the order handed over; reject raises a "
            "layout error."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Both are in use, and pass-through is only right if the producer emits the own rows. A reader "
            "must know which one it is looking at."
        ),
        sources=("vLLM 0.33.0: passes rows through without metadata and descriptor",),
    ),
    Rule(
        id="LAY-10",
        level=Level.SHOULD,
        title="declared layout",
        statement=(
            "A layout that the producer declares SHOULD be used to read n in place of inference, even if it "
            "is outside the configured set. An n that contradicts the declaration SHOULD be rejected with a "
            "layout error, even if another layout has that many rows."
        ),
        surfaces=CAPTURER,
        capability="declared-layouts",
        rationale=(
            "Only the producer knows what it emitted. PADDED_LOCAL at DP > 1 and PADDED_TO_MAX share row "
            "counts with other layouts and cannot be told apart from outside."
        ),
        sources=("derived: harmful collisions of layouts", "vLLM #43737"),
    ),
    Rule(
        id="LAY-11",
        level=Level.MUST,
        title="counts are physical",
        statement=(
            "The context builder MUST hand over the true sizes of the tensors: T of each DP rank in rows "
            "(not requests), after graph and DP padding and before sequence-parallel sharding. For a "
            "microbatch these are its own T, and its token offset: the rows of the microbatches before it. A "
            "count MUST NOT be left out where the own rows are found only by it."
        ),
        surfaces=(Surface.CONTEXT_BUILDER,),
        rationale=(
            "With real counts over padded tensors, slices start at the wrong row: four own rows at DP rank 1 "
            "and counts that say (1, 3) look like CROSS_DP, and [1, 4) is taken for [0, 3). No capturer can "
            "see it."
        ),
        sources=("SGLang #30712", "derived: enumeration of real and padded counts"),
    ),
    Rule(
        id="LAY-12",
        level=Level.MUST,
        title="zero tokens",
        statement=(
            "A step without tokens, and a DP rank without tokens (T_d = 0) beside busy ones, MUST raise "
            "nothing and MUST leave the buffer unchanged."
        ),
        surfaces=CAPTURER,
        rationale=(
            "DP ranks run empty steps to keep up with their peers. One that raises stops a healthy server; "
            "one that writes overwrites rows that are still to be read."
        ),
        sources=("derived: idle DP ranks take part in each forward pass",),
    ),
)
"""The layout rules, in catalogue order."""
