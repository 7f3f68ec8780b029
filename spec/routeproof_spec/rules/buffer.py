"""BUF: what is written to the capture buffer, where, and what must stay.

The buffer holds rows [tokens, L, K] of one step. BUF-06 is the binder's, because a
capturer cannot tell a draft layer from a target layer with the same index.
"""

from routeproof_spec.rule import Level, Rule, Surface

CAPTURER = (Surface.CAPTURER,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="BUF-01",
        level=Level.MUST,
        title="freshness",
        statement=(
            "Whatever a step publishes for a captured layer, row by row, MUST have been written by that same "
            "step. What an earlier step left in the buffer MUST NOT be published."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Stale rows are the commonest failure and the hardest to see: each is a valid routing, of "
            "another token of another request."
        ),
        sources=("vLLM #61388", "vLLM #57184", "vllm-ascend #15451"),
    ),
    Rule(
        id="BUF-02",
        level=Level.MUST,
        title="a rejected call writes nothing",
        statement="A call that is rejected MUST leave the buffer as it was before the call.",
        surfaces=CAPTURER,
        rationale=(
            "A server that logs the error and goes on would publish the rows of the rejected call, or rows "
            "of two calls mixed."
        ),
        sources=("vLLM #61388",),
    ),
    Rule(
        id="BUF-03",
        level=Level.MUST,
        title="layer index",
        statement=(
            "A layer index outside [0, L) MUST be rejected. A negative index is outside: it MUST NOT count "
            "from the end."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Array indexing takes -1 as the last layer and overwrites it. Ignoring an index that is too "
            "large loses a layer in silence."
        ),
        sources=("vLLM up to 0.26: an index >= L is ignored", "derived: negative indexing of arrays"),
    ),
    Rule(
        id="BUF-04",
        level=Level.MUST,
        title="capacity",
        statement=(
            "No step that the configuration can produce may be too large for the buffer, given DP size, "
            "graph extent, microbatches and unchunked prefill: its size MUST be chosen accordingly. A step "
            "with more rows than the buffer MUST be an error; it MUST NOT be cut to fit."
        ),
        surfaces=CAPTURER,
        rationale=(
            "A buffer sized by one limit meets a step sized by another: a graph batch on two DP ranks is "
            "twice the running requests. Cut rows turn up as missing or stale ones at the end of the batch."
        ),
        sources=("SGLang #23999", "SGLang #26860"),
    ),
    Rule(
        id="BUF-05",
        level=Level.MUST,
        title="microbatches",
        statement=(
            "The microbatches of a step MUST write disjoint ranges, each from its own token offset on. The "
            "published rows MUST be in token order: the real tokens of the first microbatch, from its offset "
            "on, then those of the next."
        ),
        surfaces=CAPTURER,
        capability="microbatches",
        rationale=(
            "A second microbatch that writes from row 0 replaces the first one's tokens, and the second half "
            "of the batch keeps what an earlier step left there."
        ),
        sources=("vLLM #57184",),
    ),
    Rule(
        id="BUF-06",
        level=Level.MUST,
        title="draft layers stay out",
        statement="A layer of a draft (speculative) model MUST NOT write the target's buffer.",
        surfaces=(Surface.BINDER,),
        capability="draft-model",
        rationale=(
            "Draft layers are often numbered from 0 too. Bound by mistake, they overwrite the first layers "
            "of the target after it has written them."
        ),
        sources=("vLLM #48622",),
    ),
    Rule(
        id="BUF-07",
        level=Level.MUST,
        title="graph replay equals eager",
        statement="A graph replay MUST leave the same rows as eager execution of the same inputs.",
        surfaces=CAPTURER,
        capability="graph-replay",
        rationale=(
            "A replay runs no host code: counts, offsets and destinations decided on the host are those of "
            "the recording, and layers captured by host code alone are not captured at all."
        ),
        sources=("SGLang #30712", "derived: a replayed graph is device work alone"),
    ),
    Rule(
        id="BUF-08",
        level=Level.PROFILE,
        title="fill of layers never captured",
        statement=(
            "Layers that are not captured, such as dense ones, hold the fill that the profile declares, or "
            "an unspecified value if the profile says so."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Engines fill with 0, with -1 or not at all. A reader that takes a fill of 0 for expert 0 "
            "replays a routing where there is none."
        ),
        sources=("vLLM 0.33.0: zeros", "sglang-jax: -1", "LMDeploy 0.18.0: differs by model"),
    ),
    Rule(
        id="BUF-09",
        level=Level.MUST,
        title="width",
        statement=(
            "An ids tensor has K columns, plus the declared number of shared-expert columns. Another width "
            "MUST be rejected; in particular a width of 1 MUST NOT be broadcast. Declared shared-expert "
            "columns MUST be dropped, so that K columns are kept."
        ),
        surfaces=CAPTURER,
        rationale=(
            "Assignment broadcasts one column over K without complaint, and a row then names one expert K "
            "times. A shared column that is kept displaces a routed id or changes the width on the wire."
        ),
        sources=("SGLang #9499", "SGLang #38963", "derived: broadcasting of array assignment"),
    ),
    Rule(
        id="BUF-10",
        level=Level.MUST,
        title="compact replay batch",
        statement=(
            "Where a decoder is run again on fewer rows of the same step, rows MUST NOT be dropped or "
            "renumbered, and the count that applies MUST be the one of that replay."
        ),
        surfaces=CAPTURER,
        capability="compact-replay",
        rationale=(
            "Rows of the compact batch written from row 0 on land at the positions of other tokens, and a "
            "count of the whole batch makes their number fit no layout."
        ),
        sources=("vLLM #61643",),
    ),
)
"""The rules on the buffer, in catalogue order."""
