"""WIR: what a server sends to a client.

Engines differ in names and containers, which is a matter of profile; what a client
decodes is not. Surface of all: the server.
"""

from routeproof_spec.rule import Level, Rule, Surface

SERVER = (Surface.SERVER,)

RULES: tuple[Rule, ...] = (
    Rule(
        id="WIR-01",
        level=Level.MUST,
        title="shape and byte count",
        statement=(
            "The decoded array MUST have the shape [rows, L, K], and its bytes MUST number rows * L * K * "
            "itemsize. L counts the layers of the declared layer axis (WIR-06)."
        ),
        surfaces=SERVER,
        rationale=(
            "Containers without a shape are cut by the client's own idea of L and K. A wrong number of "
            "layers still divides the bytes, and every row comes out as a blend of two."
        ),
        sources=("SGLang 0.5.23: bytes without shape or type", "miles: K inferred from the length"),
    ),
    Rule(
        id="WIR-02",
        level=Level.MUST,
        title="encoded once",
        statement="The array MUST be encoded exactly once, on every path from the engine to the client.",
        surfaces=SERVER,
        rationale=(
            "Paths that skip a stage (no detokenizer, a proxy, another endpoint) encode twice or not at all; "
            "clients written for the one path then break, or decode base64 text as ids."
        ),
        sources=("derived: paths with and without a detokenizer, and proxies between them",),
    ),
    Rule(
        id="WIR-03",
        level=Level.MUST,
        title="one array per choice",
        statement="A response with several choices MUST carry one array for each of them.",
        surfaces=SERVER,
        rationale=(
            "One field for the whole response holds the rows of the first choice; the others are lost, or "
            "are replayed with rows of other tokens."
        ),
        sources=("SGLang 0.5.23: response-level field of its OpenAI endpoints", "derived: parallel sampling"),
    ),
    Rule(
        id="WIR-04",
        level=Level.MUST,
        title="unavailable is an error",
        statement=(
            "Rows that a request asked for and that are not available MUST lead to an error. Leaving the "
            "field out in silence is not allowed."
        ),
        surfaces=SERVER,
        rationale=(
            "A trainer that finds no field falls back to its own routing for that sample, and the run goes "
            "on with the very mismatch that capture was to remove."
        ),
        sources=("TensorRT-LLM #18397", "derived: a missing field reads like one not asked for"),
    ),
    Rule(
        id="WIR-05",
        level=Level.PROFILE,
        title="field and container",
        statement=(
            "The engine declares the name and place of the field, the container (base64 of an npy file, "
            "base64 of raw bytes, or an object with shape and type), the element type, and whether and how "
            "the field is streamed. Responses keep to it."
        ),
        surfaces=SERVER,
        rationale=(
            "Each choice is in use somewhere. A client can be written for a declared one; with undeclared "
            "ones it has to guess, and a guess of the type still decodes."
        ),
        sources=("vLLM 0.33.0", "SGLang 0.5.23", "LMDeploy 0.18.0", "megatron-core 0.19.2"),
    ),
    Rule(
        id="WIR-06",
        level=Level.PROFILE,
        title="layer axis",
        statement=(
            "The engine declares what the layer axis counts: all decoder layers, or the MoE layers only, in "
            "which case it also declares the map from axis index to decoder layer."
        ),
        surfaces=SERVER,
        rationale=(
            "With dense layers in front, layer 0 of the one axis is layer 3 of the other. Mistaken for each "
            "other, each layer replays the routing of another one."
        ),
        sources=("vLLM 0.33.0: all layers", "megatron-core 0.19.2: MoE layers", "ROLL: layer offset"),
    ),
)
"""The rules on the wire format, in catalogue order."""
