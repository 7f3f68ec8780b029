"""Features that an engine claims before certain rules and cases apply to it."""

CAPABILITIES: dict[str, str] = {
    "microbatches": "splits a step into microbatches that write at their own token offset",
    "staged-microbatches": "publishes real rows that are no prefix of the step's rows",
    "declared-layouts": "takes the producer's declaration of a layout",
    "layout-sets": "is configured with the set of layouts that the producers can emit",
    "padded-to-max": "infers PADDED_TO_MAX where the configured set has it",
    "shared-columns": "takes ids with shared-expert columns after the K routed ones",
    "draft-model": "runs a speculative draft model beside the target",
    "graph-replay": "replays a captured graph of device work",
    "compact-replay": "runs a decoder again on fewer rows of the same step",
    "expert-load-balancing": "maps logical experts to physical replicas",
    "shared-experts": "has experts that every token uses, beside the routed ones",
    "zero-experts": "routes to experts that compute nothing, so that ids can repeat in a row",
    "chunked-prefill": "cuts a prompt into several forwards",
    "prefix-cache": "reuses the KV of an earlier request with the same prefix",
    "speculative-decoding": "verifies several draft tokens in one forward and rejects some",
    "preemption": "evicts a request and resumes it later",
    "start-offset": "returns rows from a start position on",
    "streaming": "delivers rows with each streamed chunk",
    "disaggregated-prefill": "computes prompt KV on another server",
    "cache-reset": "drops all cached KV, as after a weight update",
}
