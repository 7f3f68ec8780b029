"""The router of vLLM, driven on the CPU out of its own files (IDS-01).

Real: the base class that routes, hands the ids to the capturer, applies the map of the
expert-load balancing, and converts; and the CPU router, whose choice is given by a routing
function as a model may bring one. Stand-in: the device kernel that maps logical ids to physical
replicas, which on the CPU maps nothing.
"""

from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from routeproof_spec import Routing

from routeproof_conformance.contexts import files
from routeproof_conformance.contexts.engine import Ids, Routed
from routeproof_conformance.engines.stubs import StubModule, StubObject, load_source

_PACKAGE = files.ROUTER.replace("/", ".")


class VllmRouter:
    """The files of one vLLM."""

    def __init__(self, root: Path, torch: Any) -> None:  # noqa: ANN401 - torch is optional
        """Load the files below `root`, which holds the package `vllm`."""
        self._torch = torch
        self._modules: dict[str, ModuleType] = {}
        self.digests = {}
        for file in files.VLLM_ROUTER:
            self.digests[file] = sha256((root / file).read_bytes()).hexdigest()
            name = Path(file).stem
            stubs = {**_stubs(), **{f"{_PACKAGE}.{key}": made for key, made in self._modules.items()}}
            module = load_source(root / file, f"routeproof_router_{name}", stubs, optimize=False)
            self._modules[name] = module

    def route(self, routing: Routing, logical: Ids) -> Routed:
        """Route through the engine's `select_experts`."""
        torch = self._torch
        chosen = torch.tensor(logical, dtype=torch.int32)
        kernel = torch.tensor(routing.kernel, dtype=torch.int32)
        captured: list[Any] = []

        def mapped(topk_ids: Any, **_: object) -> Any:  # noqa: ANN401
            """Stand in for the device kernel: the replicas that the scenario names."""
            return torch.where(topk_ids == chosen, kernel, topk_ids)

        self._modules["base_router"].__dict__["eplb_map_to_physical_and_record"] = mapped
        balanced = ("expert_load_view", "logical_to_physical_map", "logical_replica_count")
        state = StubObject(
            "EplbLayerState",
            **dict.fromkeys((*balanced, "should_record_tensor"), torch.zeros(1)),
            num_unpadded_tokens_tensors=[None],
        )
        router = self._modules["cpu_router"].CPURouter(
            top_k=len(logical[0]),
            global_num_experts=len(routing.physical_to_logical),
            custom_routing_function=lambda **_: (torch.ones(chosen.shape), chosen),
            eplb_state=state,
        )
        router.set_capture_fn(lambda ids: captured.append(ids.clone()))
        rows = torch.zeros(len(logical), 1)
        _, given = router.select_experts(rows, rows)
        return Routed(_rows(captured[0]) if captured else (), _rows(given))


def _rows(ids: Any) -> Ids:  # noqa: ANN401
    return tuple(tuple(int(item) for item in row) for row in ids.tolist())


def _stubs() -> dict[str, ModuleType]:
    """Give what the three files import, beside each other."""
    platform = StubObject("Platform", is_cuda_alike=lambda: False, is_xpu=lambda: False)
    given: dict[str, dict[str, Any]] = {
        "vllm._custom_ops": dict.fromkeys(("biased_topk_cpu", "hash_topk_cpu")),
        "vllm.distributed.eplb.eplb_state": {"EplbLayerState": type("EplbLayerState", (), {})},
        "vllm.model_executor.layers.fused_moe.config": {
            "RoutingMethodType": type("RoutingMethodType", (), {}),
            "get_routing_method_type": None,
        },
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": dict.fromkeys(("tl", "triton")),
        "vllm.v1.worker.ubatching": {"dbo_current_ubatch_id": lambda: 0},
    }
    return {name: StubModule(name, **attributes) for name, attributes in given.items()}


@lru_cache(maxsize=8)
def router(root: Path, torch: Any) -> VllmRouter:  # noqa: ANN401
    """Give the router of the files below `root`."""
    return VllmRouter(root, torch)
