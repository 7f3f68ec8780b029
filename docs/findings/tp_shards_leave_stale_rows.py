"""At DP 1 the rows of the other TP ranks' shards stay those of an earlier step.

Usage: python tp_shards_leave_stale_rows.py PATH_OF_routed_experts_capturer.py
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

context.dp_metadata, context.batch_descriptor.num_tokens = None, 6
shards = torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([[6, 7], [1, 0], [3, 2]])
vllm.get_tp_group.return_value.all_gather.side_effect = lambda ids, dim: torch.cat(shards)
capturer.capture(0, torch.full((6, 2), 5))  # the accepted twin: an earlier step, all six rows
if not capturer.device_buffer[:6].eq(5).all():
    sys.exit(2)

capturer.capture(0, shards[0])
expected, got = torch.cat(shards).tolist(), capturer.device_buffer[:6][:, 0].tolist()
print("handed in:", "6 tokens, tp 2, TP rank 0 of two shards", shards[0].tolist())
print("expected: ", expected)
print("got:      ", got)
sys.exit(got != expected)
