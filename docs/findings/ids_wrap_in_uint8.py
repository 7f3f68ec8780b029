"""Ids outside [0, E) become valid ids in the uint8 snapshot.

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
for name in ("config", "platforms", "forward_context", "distributed.parallel_state", "v1.worker.ubatching"):
    sys.modules["vllm." + name] = sys.modules["vllm.model_executor.layers.fused_moe.config"] = vllm
source = {"__name__": "capturer"}
exec(compile(Path(sys.argv[1]).read_text("utf-8"), sys.argv[1], "exec", optimize=0), source)
config = MagicMock()
model, parallel = config.model_config, config.parallel_config
model.get_total_num_hidden_layers.return_value, model.get_num_experts.return_value = 1, 256
model.get_num_experts_per_tok.return_value = 2
parallel.data_parallel_rank, parallel.tensor_parallel_size = 0, 2
capturer = source["RoutedExpertsCapturer"](8, config)
context = vllm.get_forward_context.return_value

context.dp_metadata, context.batch_descriptor.num_tokens = None, 1
capturer.capture(0, torch.tensor([[255, 0]]))  # the accepted twin: both ids are in [0, 256)
if capturer.snapshot_routing_data(1).tolist() != [[[255, 0]]]:
    sys.exit(2)

try:
    capturer.capture(0, torch.tensor([[300, -1]]))
    got = f"accepted, row {capturer.snapshot_routing_data(1)[0, 0].tolist()}"
except Exception as error:
    got = f"{type(error).__name__}: {error}"
print("handed in:", "E 256, ids [[300, -1]]")
print("expected: ", "an error, or a marker that is no expert")
print("got:      ", got)
sys.exit(got.startswith("accepted"))
