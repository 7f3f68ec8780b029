"""Files of published engines that make contexts and route, by their path inside the wheel."""

FORWARD = "vllm/forward_context.py"
MODES = "vllm/config/compilation.py"
SHARDS = "vllm/models/common/ops/sequence_parallel.py"
REPLAY = "vllm/models/deepseek_v41/nvidia/model_state.py"
GRAPHS = "vllm/v1/worker/gpu/cudagraph_utils.py"
AGREE = "vllm/v1/worker/gpu/dp_utils.py"
RUNNER = "vllm/v1/worker/gpu/model_runner.py"
CONTEXTS = "vllm/v1/worker/gpu/ubatch_utils.py"
SLICES = "vllm/v1/worker/ubatch_utils.py"
THREADS = "vllm/v1/worker/ubatching.py"
VLLM_CONTEXT = (FORWARD, MODES, SHARDS, REPLAY, GRAPHS, AGREE, RUNNER, CONTEXTS, SLICES, THREADS)
"""What drives the context builder of vLLM."""

ROUTER = "vllm/model_executor/layers/fused_moe/router"
VLLM_ROUTER = tuple(f"{ROUTER}/{name}.py" for name in ("fused_moe_router", "base_router", "cpu_router"))
"""What drives its router, each file after those that it imports."""

SGLANG_SLICES = "sglang/srt/layers/dp_attention.py"
SGLANG_RUNNER = "sglang/srt/model_executor/model_runner.py"
SGLANG_BUCKETS = "sglang/srt/model_executor/runner/base_cuda_graph_runner.py"
SGLANG_GRAPHS = "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py"

VLLM_FILES = (*VLLM_CONTEXT, *VLLM_ROUTER)
SGLANG_FILES = (SGLANG_SLICES, SGLANG_RUNNER, SGLANG_BUCKETS, SGLANG_GRAPHS)
"""What `engines fetch` keeps of a wheel for these surfaces, where the version has it."""
