"""The forward context of an eager step names no token count, though the caller gave it.

Usage: python count_left_out_of_the_context.py FOLDER_OF_the_package_vllm
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys
from enum import Enum
from pathlib import Path
from unittest.mock import MagicMock

vllm = MagicMock()  # stands in for all that the file imports
vllm.envs.VLLM_LOG_BATCHSIZE_INTERVAL = -1
vllm.CUDAGraphMode = Enum("CUDAGraphMode", {"NONE": 0, "PIECEWISE": 1, "FULL": 2})
vllm.CUDAGraphMode.is_valid_runtime_mode = lambda mode: True
for name in ("config", "envs", "logger", "platforms", "v1.attention.backend", "v1.worker.dp_utils"):
    sys.modules["vllm." + name] = vllm
sys.modules["vllm"] = sys.modules["vllm.v1.worker.ubatch_utils"] = vllm
path = Path(sys.argv[1]) / "vllm" / "forward_context.py"
sys.modules["context"] = vllm
source = {"__name__": "context"}
exec(compile(path.read_text("utf-8"), str(path), "exec", optimize=0), source)
config = MagicMock()
config.parallel_config.data_parallel_size, config.parallel_config.use_sequence_parallel_moe = 1, False


def told(mode):
    """Give the count that a layer finds in the context of a step of 7 tokens at DP 1."""
    with source["set_forward_context"](None, config, num_tokens=7, cudagraph_runtime_mode=mode):
        context = source["get_forward_context"]()
        return context.dp_metadata or (context.batch_descriptor and context.batch_descriptor.num_tokens)


if told(vllm.CUDAGraphMode.PIECEWISE) != 7:  # the accepted twin: the same step in a graph
    sys.exit(2)

expected, got = 7, told(vllm.CUDAGraphMode.NONE)
print("handed in:", "num_tokens 7, DP 1, no graph, no batch descriptor of the caller's own")
print("expected: ", expected)
print("got:      ", got)
sys.exit(got != expected)
