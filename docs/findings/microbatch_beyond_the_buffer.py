"""A microbatch of one token behind the last row of the buffer raises nothing.

Usage: python microbatch_beyond_the_buffer.py PATH_OF_routed_experts_capturer.py
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys
from pathlib import Path
from types import SimpleNamespace as NS
from unittest.mock import MagicMock

import torch

vllm = MagicMock()  # stands in for all that the file imports
vllm.current_platform.device_type, vllm.dbo_current_ubatch_token_offset.return_value = "cpu", 0
vllm.FullAttentionSpec = MagicMock  # up to 0.30.0, as are the last two names and `cache`
names = "config platforms forward_context distributed.parallel_state v1.worker.ubatching"
for name in (*names.split(), "v1.kv_cache_interface", "v1.outputs"):
    sys.modules["vllm." + name] = sys.modules["vllm.model_executor.layers.fused_moe.config"] = vllm
source = {"__name__": "capturer"}
exec(compile(Path(sys.argv[1]).read_text("utf-8"), sys.argv[1], "exec", optimize=0), source)
config = MagicMock()
model, parallel = config.model_config, config.parallel_config
model.get_total_num_hidden_layers.return_value, model.get_num_experts.return_value = 1, 8
model.get_num_experts_per_tok.return_value = 2
parallel.data_parallel_rank, parallel.tensor_parallel_size = 0, 2
create, cache = source["RoutedExpertsCapturer"], MagicMock(kv_cache_groups=[MagicMock()])
capturer = create(*(8, config, cache)[: create.__init__.__code__.co_argcount - 1])
context = vllm.get_forward_context.return_value

counts = torch.tensor([1, 1], dtype=torch.int32)
context.dp_metadata = NS(num_tokens_across_dp_cpu=counts, local_sizes=None)
vllm.dbo_current_ubatch_token_offset.return_value = 0
capturer.capture(0, torch.tensor([[1, 2]]))  # the accepted twin: offset 0
if capturer.device_buffer[0, 0].tolist() != [1, 2]:
    sys.exit(2)

vllm.dbo_current_ubatch_token_offset.return_value = 8
try:
    capturer.capture(0, torch.tensor([[3, 4]]))
    got = f"accepted, first row {capturer.device_buffer[0, 0].tolist()}, last row {capturer.device_buffer[7, 0].tolist()}"
except Exception as error:
    got = f"{type(error).__name__}: {error}"
print("handed in:", "a buffer of 8 rows, a microbatch of 1 token at token offset 8")
print("expected: ", "an error")
print("got:      ", got)
sys.exit(got.startswith("accepted"))
