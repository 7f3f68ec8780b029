"""At DP 1 a number of rows that fits no layout of the step is accepted.

Usage: python row_count_that_fits_nothing.py PATH_OF_routed_experts_capturer.py
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
capturer.capture(0, torch.full((6, 2), 5))  # the accepted twin: six rows
if not capturer.device_buffer[:6].eq(5).all():
    sys.exit(2)

try:
    capturer.capture(0, torch.tensor([[1, 2]]))
    got = f"accepted, rows {capturer.device_buffer[:6][:, 0].tolist()}"
except Exception as error:
    got = f"{type(error).__name__}: {error}"
print("handed in:", "6 tokens, tp 2, 1 row: no full batch, no shard of 3, no padded batch")
print("expected: ", "an error, and the buffer as it was")
print("got:      ", got)
sys.exit(got.startswith("accepted"))
