"""GAT: what must be settled before the first request is served.

Surfaces: the server refuses configurations and keeps its results (GAT-01, GAT-04), the
binder connects layers (GAT-02), the capturer's own checks must last (GAT-03).
"""

from routeproof_spec.rule import Level, Rule, Surface

RULES: tuple[Rule, ...] = (
    Rule(
        id="GAT-01",
        level=Level.MUST,
        title="unsupported configurations",
        statement="A configuration under which capture is not supported MUST be refused before serving.",
        surfaces=(Surface.SERVER,),
        rationale=(
            "Under pipeline parallelism, for instance, each stage captures its own layers only. Where nobody "
            "refuses, the layers of other stages are zeros in every answer."
        ),
        sources=("vLLM #35626", "SGLang #12162"),
    ),
    Rule(
        id="GAT-02",
        level=Level.MUST,
        title="every MoE layer is bound",
        statement="Every MoE layer MUST be bound to the capturer; if one cannot be, start-up MUST fail.",
        surfaces=(Surface.BINDER,),
        rationale=(
            "Fused kernels route inside and offer nothing to bind. If some layers bind, a check for at least "
            "one passes, and the others stay at the fill for ever."
        ),
        sources=("vLLM #44116", "vLLM #44214", "vLLM #54730", "vllm-ascend #16314"),
    ),
    Rule(
        id="GAT-03",
        level=Level.MUST,
        title="checks survive python -O",
        statement=(
            "The checks that these rules ask of a capturer MUST work with assertions disabled (python -O): "
            "none of them is a bare assert statement."
        ),
        surfaces=(Surface.CAPTURER,),
        rationale=(
            "Production images disable assertions to save time. What was a rejection then is a silent "
            "acceptance, in just the place that nobody tests."
        ),
        sources=("vllm-ascend: explicit raise AssertionError", "derived: python -O"),
    ),
    Rule(
        id="GAT-04",
        level=Level.MUST,
        title="capture changes nothing",
        statement=(
            "Capture MUST NOT change tokens or log-probabilities. This can be decided on a deterministic "
            "backend only."
        ),
        surfaces=(Surface.SERVER,),
        rationale=(
            "Capture that selects another kernel, or disables a fused one, makes the recorded policy another "
            "one than the policy that is served without it."
        ),
        sources=("derived: capture that turns off specialised decode kernels",),
    ),
)
"""The rules on start-up and side effects, in catalogue order."""
