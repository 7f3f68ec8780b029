"""The pass that records a full graph has no token count in its context at DP 1, so neither has any replay.

Usage: python count_left_out_of_a_full_graph.py FOLDER_OF_the_package_vllm
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import ast
import sys
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from types import SimpleNamespace as NS
from unittest.mock import MagicMock

import torch

FOLDER = Path(sys.argv[1]) / "vllm"
vllm = MagicMock()  # stands in for all that forward_context.py imports
vllm.envs.VLLM_LOG_BATCHSIZE_INTERVAL = -1
vllm.CUDAGraphMode = Enum("CUDAGraphMode", {"NONE": 0, "PIECEWISE": 1, "FULL": 2})
vllm.CUDAGraphMode.is_valid_runtime_mode = lambda mode: True
for name in ("config", "envs", "logger", "platforms", "v1.attention.backend", "v1.worker.dp_utils"):
    sys.modules["vllm." + name] = vllm
sys.modules["vllm"] = sys.modules["vllm.v1.worker.ubatch_utils"] = sys.modules["context"] = vllm
known = {"__name__": "context"}
path = FOLDER / "forward_context.py"
exec(compile(path.read_text("utf-8"), str(path), "exec", optimize=0), known)

graphs = ast.parse((FOLDER / "v1/worker/gpu/cudagraph_utils.py").read_bytes())
nodes = list(ast.walk(graphs))
(function,) = (node for node in nodes if getattr(node, "name", "") == "forward_fn")
(recording,) = (
    node
    for node in nodes
    if isinstance(node, ast.With) and "torch.cuda.graph(" in ast.unparse(node.items[-1])
)
config, mask, seen = MagicMock(), torch.zeros(8, dtype=torch.bool), []
config.parallel_config.data_parallel_size, config.parallel_config.use_sequence_parallel_moe = 1, False
names = "attn_metadata slot_mappings num_tokens_across_dp graph desc has_lora".split()
known |= dict.fromkeys(names) | {
    "self": NS(vllm_config=config, pool=None, _capture_stream=lambda desc: None),
    "num_tokens": 8,
    "is_padding": mask,
    "input_buffers": NS(is_padding=mask),
    "model": lambda: seen.append(known["get_forward_context"]().batch_descriptor),
    "model_inputs": {},
    "store_capture_output": lambda rows, output: None,
    "capture_pool": lambda pool, config: nullcontext(),
    "torch": NS(cuda=NS(graph=lambda *_, **__: nullcontext())),
    "get_offloader": MagicMock(),
}
exec(compile(ast.Module([function], []), "cudagraph_utils", "exec", optimize=0), known)
known["desc"] = NS(num_active_loras=0)
known["self"].run_pw_graph = lambda model, inputs: model(**inputs)
known["forward_fn"](vllm.CUDAGraphMode.PIECEWISE)  # the accepted twin: a graph in pieces
if seen.pop().num_tokens != 8:
    sys.exit(2)

exec(compile(ast.Module([recording], []), "cudagraph_utils", "exec", optimize=0), known)
expected, got = 8, seen[0] and seen[0].num_tokens
print("handed in:", "a full graph of 8 tokens, recorded at DP 1 as the graph manager does")
print("expected: ", expected)
print("got:      ", got)
sys.exit(got != expected)
