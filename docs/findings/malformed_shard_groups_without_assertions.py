"""Compiled without assertions, three shards for two DP ranks are accepted.

Usage: python malformed_shard_groups_without_assertions.py PATH_OF_routed_experts_capturer.py
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
exec(compile(Path(sys.argv[1]).read_text("utf-8"), sys.argv[1], "exec", optimize=1), source)
config = MagicMock()
model, parallel = config.model_config, config.parallel_config
model.get_total_num_hidden_layers.return_value, model.get_num_experts.return_value = 1, 8
model.get_num_experts_per_tok.return_value = 2
parallel.data_parallel_rank, parallel.tensor_parallel_size = 0, 2
create, cache = source["RoutedExpertsCapturer"], MagicMock(kv_cache_groups=[MagicMock()])
capturer = create(*(8, config, cache)[: create.__init__.__code__.co_argcount - 1])
context = vllm.get_forward_context.return_value

counts = torch.tensor([5, 3], dtype=torch.int32)
context.dp_metadata = NS(num_tokens_across_dp_cpu=counts, local_sizes=[3, 3, 2, 2])
ids = torch.tensor([[i, 7] for i in range(10)])
capturer.capture(0, ids)  # the accepted twin: two shards per DP rank
if capturer.device_buffer[:5, 0].tolist() != ids[:5].tolist():
    sys.exit(2)

context.dp_metadata.local_sizes = [4, 3, 3]
try:
    capturer.capture(0, ids)
    got = "accepted"
except Exception as error:
    got = f"{type(error).__name__}: {error}"
print("handed in:", "counts [5, 3], 10 rows, shard sizes [4, 3, 3], python -O")
print("expected: ", "a ValueError")
print("got:      ", got)
sys.exit(not got.startswith("ValueError"))
