"""The rows of the second microbatch land on those of the first.

Usage: python second_microbatch_overwrites_the_first.py PATH_OF_routed_experts_capturer.py
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

counts = torch.tensor([8, 8], dtype=torch.int32)
context.dp_metadata = NS(num_tokens_across_dp_cpu=counts, local_sizes=None)
ids = torch.tensor([[i, i + 1] for i in range(8)])
capturer.capture(0, ids)  # the accepted twin: one batch of 8
if capturer.device_buffer[:, 0].tolist() != ids.tolist():
    sys.exit(2)

capturer.device_buffer.fill_(9)
counts //= 2
for offset in (0, 4):
    vllm.dbo_current_ubatch_token_offset.return_value = offset
    capturer.capture(0, ids[offset : offset + 4])
got = capturer.device_buffer[:, 0].tolist()
print("handed in:", "two microbatches of 4 tokens, at token offsets 0 and 4")
print("expected: ", ids.tolist())
print("got:      ", got)
sys.exit(got != ids.tolist())
