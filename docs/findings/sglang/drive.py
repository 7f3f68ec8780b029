"""SGLang's real capturer on the CPU: what its files import is stood in for, they themselves are run as they are.

The scripts beside this file use it; they are given the folder that holds the package `sglang`.
"""

import __future__

import ast
import sys
from pathlib import Path
from types import SimpleNamespace as NS
from unittest.mock import MagicMock

import torch

LAZY = __future__.annotations.compiler_flag  # the functions' annotations name types of the rest of SGLang
SRT = Path(sys.argv[1]) / "sglang" / "srt"


def _run(tree, name, known, flags=0):
    exec(compile(tree, name, "exec", flags, dont_inherit=True, optimize=0), known)
    return known


def capturer(dp=1, rank=0, tp=1, gather=None, rows=8, layers=1, shared=0):
    """Make the capturer of one rank; K is 2.

    DP attention is on where `dp` is more than 1, DeepEP where `gather` says what the other TP ranks hold.
    """
    stub = MagicMock()
    names = (
        "configs.model_config layers.dp_attention layers.moe mem_cache.memory_pool mem_cache.pool_host.common"
    )
    names += " model_executor.forward_batch_info runtime_context state_capturer.base utils"
    for name in (*(f"sglang.srt.{name}" for name in names.split()), "pybase64"):
        sys.modules[name] = stub
    stub.is_cuda.return_value = stub.is_hip.return_value = False
    stub.ALLOC_MEMORY_FUNCS = {"cpu": lambda dims, dtype, **_: torch.empty(dims, dtype=dtype)}
    stub.get_parallel.return_value = NS(num_dp_ranks=dp, attn_tp_size=tp)
    stub.get_schedule.return_value = NS(chunked_prefill_size=rows)
    stub.is_dp_attention_enabled.return_value = dp > 1
    deepep = gather is not None
    stub.get_moe_a2a_backend.return_value = NS(is_deepep=lambda: deepep, is_deepep_v2=lambda: False)
    stub.attn_tp_all_gather_into_tensor = lambda output, rows: output.copy_(gather(rows))
    tree = ast.parse((SRT / "layers/dp_attention.py").read_bytes())
    wanted = ("dp_slot_in", "get_dp_local_slice_cpu")
    tree.body = [node for node in tree.body if getattr(node, "name", "") in wanted]
    known = {"dp_gather_width": lambda: dp, "dp_gather_slot": lambda: rank}
    stub.get_dp_local_slice_cpu = _run(tree, "dp_attention", known, LAZY)["get_dp_local_slice_cpu"]
    base = _run(ast.parse((SRT / "state_capturer/base.py").read_bytes()), "base", {"__name__": "base"})
    stub.BaseTopkCapturer = base["BaseTopkCapturer"]
    source = ast.parse((SRT / "state_capturer/routed_experts.py").read_bytes())
    return _run(source, "capturer", {"__name__": "capturer"})["RoutedExpertsCapturer"].create(
        model=NS(shared_experts_config=NS(num_fused_shared_experts=shared)),
        model_config=NS(hf_text_config=NS(num_experts_per_tok=2, num_hidden_layers=layers)),
        num_tokens=64,
        max_running_requests=rows,
        device="cpu",
    )


def stored(made, rows, counts=None, graph=False, extent=None):
    """End a forward pass of `rows` own tokens in the slots 1, 2, ...; give what is read back for them."""
    slots = torch.arange(1, rows + 1)
    batch = NS(out_cache_loc=slots, out_cache_loc_virtual=None, global_num_tokens_cpu=counts)
    made.on_forward_end(batch, graph, extent)
    return made.get_topk(0, rows + 1, NS(req_to_token=slots[None])).tolist()


def numbered(rows):
    """Give rows that tell their position."""
    return torch.tensor([[row, row + 100] for row in range(rows)], dtype=torch.int32).reshape(rows, 2)


def extent_handed_over(decode_runner):
    """Evaluate what the model runner hands over as `cuda_graph_batch`, as its source spells it."""
    tree = ast.parse((SRT / "model_executor/model_runner.py").read_bytes())
    (argument,) = (
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "experts_capturer.on_forward_end"
        for keyword in node.keywords
        if keyword.arg == "cuda_graph_batch"
    )
    return eval(
        compile(ast.Expression(argument), "argument", "eval"),
        {"self": NS(decode_cuda_graph_runner=decode_runner)},
    )


def attempt(call):
    """Give what a call returns, or its error as text."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
