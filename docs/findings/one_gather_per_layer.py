"""TP shards cost one collective per layer, not one per step.

Usage: python one_gather_per_layer.py PATH_OF_routed_experts_capturer.py
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
model.get_total_num_hidden_layers.return_value, model.get_num_experts.return_value = 3, 8
model.get_num_experts_per_tok.return_value = 2
parallel.data_parallel_rank, parallel.tensor_parallel_size = 0, 2
create, cache = source["RoutedExpertsCapturer"], MagicMock(kv_cache_groups=[MagicMock()])
capturer = create(*(8, config, cache)[: create.__init__.__code__.co_argcount - 1])
context = vllm.get_forward_context.return_value

counts = torch.tensor([6, 6], dtype=torch.int32)
context.dp_metadata = NS(num_tokens_across_dp_cpu=counts, local_sizes=None)
gather = vllm.get_tp_group.return_value.all_gather
gather.side_effect = lambda ids, dim: torch.cat([ids, ids])  # both TP ranks hand over the same
capturer.capture(0, torch.ones((3, 2), dtype=torch.int64))  # the accepted twin: a step of one layer
if gather.call_count != 1:
    sys.exit(2)

gather.reset_mock()
for layer in range(3):
    capturer.capture(layer, torch.ones((3, 2), dtype=torch.int64))
print("handed in:", "counts [6, 6], tp 2, shards of 3 rows, 3 layers")
print("expected: ", "1 gather in the step")
print("got:      ", gather.call_count, "gathers in the step")
sys.exit(gather.call_count > 1)
