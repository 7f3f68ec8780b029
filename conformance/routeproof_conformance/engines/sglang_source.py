"""SGLang's capturer as modules: its two files, and seven functions of a third, with stand-ins.

The third file, `dp_attention.py`, imports most of SGLang; the functions that the capturer
calls need two getters alone, so they are taken out of its syntax tree as they stand.
"""

import __future__

import ast
from collections import defaultdict
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.stubs import StubModule, StubObject, load_source

BASE = "sglang/srt/state_capturer/base.py"
CAPTURER = "sglang/srt/state_capturer/routed_experts.py"
DP_ATTENTION = "sglang/srt/layers/dp_attention.py"
FILES = (BASE, CAPTURER, DP_ATTENTION)
"""What the adapter runs."""

CALLERS = (
    "sglang/srt/model_executor/model_runner.py",
    "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py",
)
"""What calls the capturer; read by the scripts in docs/findings alone."""

_FUNCTIONS = (
    "attn_tp_all_gather_into_tensor",
    "dp_gather_slot",
    "dp_gather_width",
    "dp_slot_in",
    "get_dp_local_slice_cpu",
    "is_dp_attention_enabled",
    "world_dp_gather_enabled",
)
_ANNOTATIONS = (
    ("sglang.srt.configs.model_config", "ModelConfig"),
    ("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool"),
    ("sglang.srt.model_executor.forward_batch_info", "ForwardBatch"),
)
_codes: dict[tuple[str, int, int, bool], CodeType] = {}


class Seat:
    """One rank's modules, and what their stand-ins give."""

    def __init__(
        self,
        root: Path,
        name: str,
        optimize: bool,
        parallel: StubObject,
        dp_attention: bool,
        deepep: bool,
        chunked_prefill_size: int,
    ) -> None:
        """Load the files below `root` as modules of their own, called after `name`.

        Args:
            root: folder that holds the package `sglang`.
            name: of the modules, for messages.
            optimize: drop assertions.
            parallel: what `get_parallel()` gives.
            dp_attention: whether the server was started with DP attention.
            deepep: whether its all-to-all backend is DeepEP.
            chunked_prefill_size: as in the server's arguments.

        """
        scaled_up = {"use_world_group_for_gather": False, "joiner_skip_all_gather": False}
        flags = StubObject("DpFlags", enabled=dp_attention, scoped_gather_slot=None, **scaled_up)
        given: dict[str, dict[str, object]] = {
            "pybase64": {},
            "sglang.srt.layers.moe": {"get_moe_a2a_backend": lambda: _backend(deepep)},
            "sglang.srt.mem_cache.pool_host.common": _host_memory(),
            "sglang.srt.runtime_context": {
                "get_exec": lambda: StubObject(
                    "Exec", features=StubObject("Features", enable_return_routed_experts=True)
                ),
                "get_flags": lambda: StubObject("Flags", dp=flags),
                "get_parallel": lambda: parallel,
                "get_resources": lambda: StubObject("Resources"),
                "get_schedule": lambda: StubObject("Schedule", chunked_prefill_size=chunked_prefill_size),
            },
            "sglang.srt.utils": {"is_cuda": lambda: False, "is_hip": lambda: False},
        }
        for module, kind in _ANNOTATIONS:
            given.setdefault(module, {})[kind] = type(kind, (), {})
        stubs: dict[str, ModuleType] = {
            module: StubModule(module, **attributes) for module, attributes in given.items()
        }
        context = given["sglang.srt.runtime_context"]
        stubs["sglang.srt.layers.dp_attention"] = _functions(root / DP_ATTENTION, optimize, context)
        base = load_source(root / BASE, f"{name}_base", stubs, optimize)
        stubs["sglang.srt.state_capturer.base"] = base
        self.module = load_source(root / CAPTURER, name, stubs, optimize)


def _backend(deepep: bool) -> StubObject:
    return StubObject("MoeA2ABackend", is_deepep=lambda: deepep, is_deepep_v2=lambda: False)


def _host_memory() -> dict[str, object]:
    """Give host memory as it is, neither pinned nor registered with a GPU."""

    def allocate(
        dims: tuple[int, ...],
        dtype: Any,  # noqa: ANN401 - torch is optional
        device: str,
        pin_memory: bool,  # noqa: ARG001 - as SGLang calls it
        allocator: object,  # noqa: ARG001
    ) -> Any:  # noqa: ANN401
        import torch  # noqa: PLC0415

        return torch.empty(dims, dtype=dtype, device=device)

    return {
        "ALLOC_MEMORY_FUNCS": defaultdict(lambda: allocate),
        "HostTensorAllocator": type("HostTensorAllocator", (), {}),
        "_cuda_host_unregister": lambda _: None,
    }


def _functions(path: Path, optimize: bool, context: dict[str, object]) -> ModuleType:
    """Give the functions of `dp_attention.py` that the capturer calls, and those that they call."""
    module = StubModule(
        "sglang.srt.layers.dp_attention",
        **{name: context[name] for name in ("get_flags", "get_parallel")},
    )
    exec(_code(path, optimize), module.__dict__)  # noqa: S102 (the engine under test)
    return module


def _code(path: Path, optimize: bool) -> CodeType:
    try:
        stat = path.stat()
        key = (str(path), stat.st_mtime_ns, stat.st_size, optimize)
        if key not in _codes:
            _codes[key] = _compile(path, optimize)
    except OSError as error:
        raise EngineError(f"the engine's file {path} cannot be read: {error}") from error
    except (SyntaxError, ValueError) as error:
        raise EngineError(f"the engine's file {path} does not compile here: {error}") from error
    return _codes[key]


def _compile(path: Path, optimize: bool) -> CodeType:
    tree = ast.parse(path.read_bytes(), str(path))
    kept = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS]
    missing = sorted(set(_FUNCTIONS) - {node.name for node in kept})
    if missing:
        raise EngineError(f"the engine's file {path} has no function {', '.join(missing)}")
    tree.body = list(kept)
    flags = __future__.annotations.compiler_flag  # annotations name types of the rest of SGLang
    code: CodeType = compile(tree, str(path), "exec", flags, dont_inherit=True, optimize=1 if optimize else 0)
    return code
