"""SNP: what a step publishes, as an array.

A snapshot is the copy of the published rows that leaves the capturer, [R_d, L, K].
Surface of all: the capturer.
"""

from routeproof_spec.rule import Level, Rule, Surface

CAPTURER = (Surface.CAPTURER,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="SNP-01",
        level=Level.MUST,
        title="isolation",
        statement=(
            "A snapshot MUST NOT change once it is taken: later steps leave it as it is, on whichever stream "
            "it is copied."
        ),
        surfaces=CAPTURER,
        rationale=(
            "A view of the buffer, or a copy on a side stream that nothing orders before the next forward "
            "pass, delivers some rows of the next step, and only under load."
        ),
        sources=("SGLang 0.5.23: clones before the next forward pass", "derived: overlap scheduling"),
    ),
    Rule(
        id="SNP-02",
        level=Level.MUST,
        title="lossless element type",
        statement=(
            "The element type of published ids MUST follow from E alone, never from the ids seen, and MUST "
            "represent all of 0 to E - 1. The profile lists the type for each E. (The capturer of this "
            "project: uint8 up to E = 256, uint16 up to E = 65,536; it refuses more.)"
        ),
        surfaces=CAPTURER,
        rationale=(
            "A type that is too narrow turns id 300 into 44. A type that follows the largest id seen changes "
            "from one request to the next, and a batch of both does not concatenate."
        ),
        sources=("prime-rl #3051", "ms-swift #9981", "vLLM 0.33.0: uint8 up to 256 experts, else uint16"),
    ),
    Rule(
        id="SNP-03",
        level=Level.MUST,
        title="number of rows of a step",
        statement="A DP rank MUST publish exactly R_d rows for a step.",
        surfaces=CAPTURER,
        rationale=(
            "Rows are dealt out to requests by position. One too many or too few shifts every request behind "
            "it in the batch, or shows padding as tokens."
        ),
        sources=("vLLM 0.33.0: its snapshot is cut to the real tokens", "derived: LAY-05"),
    ),
    Rule(
        id="SNP-04",
        level=Level.MUST,
        title="only the publisher publishes",
        statement="The publisher of each DP rank (its TP rank 0) MUST publish; the other ranks MUST NOT.",
        surfaces=CAPTURER,
        rationale=(
            "Other ranks need not hold the own rows: at T_d = 1 a shard of theirs is padding. Rows published "
            "twice are counted twice."
        ),
        sources=("vLLM 0.33.0: output of TP rank 0 alone", "derived: layouts that coincide at T_d = 1"),
    ),
)
"""The rules on snapshots, in catalogue order."""
