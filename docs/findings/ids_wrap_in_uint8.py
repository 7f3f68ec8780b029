"""Ids outside [0, E) become valid ids in the uint8 array.

Usage: python ids_wrap_in_uint8.py PATH_OF_routed_experts_capturer.py
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
model.get_total_num_hidden_layers.return_value, model.get_num_experts.return_value = 1, 256
model.get_num_experts_per_tok.return_value = 2
parallel.data_parallel_rank, parallel.tensor_parallel_size = 0, 2
create, cache = source["RoutedExpertsCapturer"], MagicMock(kv_cache_groups=[MagicMock()])
capturer = create(*(8, config, cache)[: create.__init__.__code__.co_argcount - 1])
context = vllm.get_forward_context.return_value


def published():
    if hasattr(capturer, "snapshot_routing_data"):
        return capturer.snapshot_routing_data(1)
    cache.num_blocks = cache.kv_cache_groups[0].kv_cache_spec.block_size = 1
    store = source["RoutedExpertsManager"](config, cache)  # up to 0.30.0: the scheduler's, of the same file
    store.store_batch(capturer.get_device_buffer()[:1].numpy(), [0])
    return store.get([0], 1)


context.dp_metadata, context.batch_descriptor.num_tokens = None, 1
capturer.capture(0, torch.tensor([[255, 0]]))  # the accepted twin: both ids are in [0, 256)
if published().tolist() != [[[255, 0]]]:
    sys.exit(2)

try:
    capturer.capture(0, torch.tensor([[300, -1]]))
    got = f"accepted, row {published()[0, 0].tolist()}"
except Exception as error:
    got = f"{type(error).__name__}: {error}"
print("handed in:", "E 256, ids [[300, -1]]")
print("expected: ", "an error, or a marker that is no expert")
print("got:      ", got)
sys.exit(got.startswith("accepted"))
