"""DEL: the rows that a request gets back.

A request has P prompt tokens and G generated ones. Its rows lie in the order of
positions, one for each token that went through a forward pass; the last generated
token has none. Surface of all: delivery.
"""

from routeproof_spec.rule import Level, Rule, Surface

DELIVERY = (Surface.DELIVERY,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="DEL-01",
        level=Level.MUST,
        title="number of rows of a request",
        statement=(
            "A finished request MUST deliver P + max(G - 1, 0) - start rows, where start is the position "
            "asked for, 0 by default."
        ),
        surfaces=DELIVERY,
        rationale=(
            "The last generated token was sampled but never fed back, so it has no row; without generation "
            "all P prompt tokens have one. An error of one shifts each token against its experts."
        ),
        sources=("SGLang #20964",),
    ),
    Rule(
        id="DEL-02",
        level=Level.MUST,
        title="chunk invariance",
        statement=(
            "The rows delivered MUST be those that the forward passes of the request captured, however its "
            "prompt was cut into chunks. On a deterministic backend the cut MUST NOT change them."
        ),
        surfaces=DELIVERY,
        capability="chunked-prefill",
        rationale=(
            "The cut depends on the load. Rows that depend on it too (lost at a border, or taken from a "
            "store for one chunk and fresh for the next) cannot be reproduced."
        ),
        sources=("derived: chunking is a matter of scheduling, not of the request",),
    ),
    Rule(
        id="DEL-03",
        level=Level.MUST,
        title="prefix hits",
        statement=(
            "For tokens served from cached KV, the rows MUST be those of the computation that made "
            "that KV, as first published and under unchanged weights; this holds while the store keeps "
            "them. They MUST NOT be the rows of another request that did not make it."
        ),
        surfaces=DELIVERY,
        capability="prefix-cache",
        rationale=(
            "Cached tokens run no forward pass, so their rows come from a store. When KV moves or is "
            "replaced and the rows do not follow, the slot still holds the rows of whoever used it before."
        ),
        sources=("vLLM #56402", "vLLM #57966", "SGLang #26975", "SGLang #39027"),
    ),
    Rule(
        id="DEL-04",
        level=Level.MUST,
        title="rejected speculative tokens",
        statement="Speculative tokens that verification rejected MUST NOT leave rows in what is delivered.",
        surfaces=DELIVERY,
        capability="speculative-decoding",
        rationale=(
            "Verification captures rows for all drafted tokens. Those of rejected ones stand where the "
            "accepted continuation belongs, and the number of rows grows with the rejections."
        ),
        sources=("derived: verification runs tokens that the sequence does not keep",),
    ),
    Rule(
        id="DEL-05",
        level=Level.PROFILE,
        title="preemption",
        statement=(
            "For a request that was preempted and resumed, the engine delivers what its profile declares: "
            "the rows of the time of sampling, or the rows of the recomputation. One request MUST NOT get a "
            "mix."
        ),
        surfaces=DELIVERY,
        capability="preemption",
        rationale=(
            "Recomputation can route differently. Either set is of use to a trainer that knows which it has; "
            "a mix corresponds to no forward pass at all."
        ),
        sources=("derived: both variants occur", "SGLang 0.5.23: drops collected rows on retraction"),
    ),
    Rule(
        id="DEL-06",
        level=Level.MUST,
        title="isolation of requests",
        statement="A request MUST NOT receive rows of another request that was in the same batch.",
        surfaces=DELIVERY,
        rationale=(
            "The rows of a batch lie one behind another and are dealt out by offset. One wrong offset gives "
            "each request its neighbour's rows, in the right number."
        ),
        sources=("derived: batched rows are split by position",),
    ),
    Rule(
        id="DEL-07",
        level=Level.MUST,
        title="rows never captured",
        statement=(
            "A row that was never captured MUST be an error, absent, or the marker that the profile "
            "declares. It MUST NOT be delivered as a row that could be a routing."
        ),
        surfaces=DELIVERY,
        rationale=(
            "Buffers start as zeros, and 0 is an expert. A missing row then replays expert 0, K times, and "
            "only a check for repeated ids can find it."
        ),
        sources=("vLLM #44116", "vLLM #44214", "vLLM #54730"),
    ),
    Rule(
        id="DEL-08",
        level=Level.MUST,
        title="slots",
        statement=(
            "Where rows are stored by KV slot, writer and reader MUST use the same KV-cache group, the same "
            "block size and absolute token positions."
        ),
        surfaces=DELIVERY,
        rationale=(
            "Hybrid models have several groups with different block sizes; a slot of one, read by the table "
            "of another, is the slot of other tokens. Positions counted from a moving cursor do the same."
        ),
        sources=("vLLM #35744", "tpu-inference #2965"),
    ),
    Rule(
        id="DEL-09",
        level=Level.MUST,
        title="start offsets tile",
        statement=(
            "A request with start a MUST get rows [a, end) of the whole: put behind the rows [0, a), they "
            "give exactly what a request without a start gets."
        ),
        surfaces=DELIVERY,
        capability="start-offset",
        rationale=(
            "A client that continues a conversation asks for the rest only. A gap or an overlap at the joint "
            "shifts all the turns that follow."
        ),
        sources=("miles: requires deltas that tile exactly", "vLLM 0.33.0: start position of a request"),
    ),
    Rule(
        id="DEL-10",
        level=Level.MUST,
        title="streamed deltas",
        statement=(
            "Deltas delivered with a stream MUST concatenate to the whole, each row exactly once, also where "
            "a slow reader gets several at a time."
        ),
        surfaces=DELIVERY,
        capability="streaming",
        rationale=(
            "Cumulative arrays sent as deltas repeat the prefix with each chunk; merging two chunks by "
            "keeping the last one loses rows."
        ),
        sources=("vLLM #37094",),
    ),
    Rule(
        id="DEL-11",
        level=Level.PROFILE,
        title="prefill and decode on different servers",
        statement=(
            "Where prefill and decode run on different servers, the rows of prompt tokens come from the "
            "server that computed their KV. The profile declares which part of the system joins them to the "
            "rows of the decoder, and the engine is held to it."
        ),
        surfaces=DELIVERY,
        capability="disaggregated-prefill",
        rationale=(
            "The decoder ran no forward pass for the prompt: what it holds for these positions is a fill or "
            "a leftover, of the right shape."
        ),
        sources=("llm-d-router #1473",),
    ),
    Rule(
        id="DEL-12",
        level=Level.MUST,
        title="cache reset",
        statement=(
            "A reset of the cache, as after a weight update, MUST drop all earlier rows: none of them may "
            "reach a request that starts after it."
        ),
        surfaces=DELIVERY,
        capability="cache-reset",
        rationale=(
            "Reinforcement learning updates weights every few minutes. Rows from before the update, found "
            "again by the content of a prompt, are routings of another model."
        ),
        sources=("derived: stored rows are found by prefix content, which a weight update does not change",),
    ),
)
"""The rules on delivery, in catalogue order."""
