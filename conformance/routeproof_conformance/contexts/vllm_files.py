"""The files of a vLLM that make the context of a step, loaded with stand-ins."""

import ast
import enum
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from routeproof_conformance.contexts import files, source
from routeproof_conformance.engines.stubs import StubModule, StubObject, load_source


class VllmFiles:
    """What is loaded once; `seat` is whoever asks."""

    def __init__(self, root: Path, torch: Any) -> None:  # noqa: ANN401 - torch is optional
        """Load the files below `root`, which holds the package `vllm`."""
        self.root = root
        self.torch = torch
        self.digests = {file: sha256((root / file).read_bytes()).hexdigest() for file in files.VLLM_CONTEXT}
        self.mode = source.define(root / files.MODES, ("CUDAGraphMode",), {"enum": enum})["CUDAGraphMode"]
        shared = {"dataclass": dataclass, "CUDAGraphMode": self.mode, "np": np}
        described = "BatchExecutionDescriptor"
        self.batch_desc = source.define(root / files.GRAPHS, (described,), shared)[described]
        self.slices = _functions(root / files.SLICES, shared)
        self.seat = StubObject("Seat", rank=0, size=1)
        self.forward = self._load(files.FORWARD, self._forward_stubs())
        self.shards = self._load(files.SHARDS, self._shard_stubs())
        self.threads = self._load(
            files.THREADS,
            {
                "vllm.forward_context": self.forward,
                "vllm.logger": {"init_logger": lambda _: None},
                "vllm.utils.torch_utils": {"current_stream": lambda: None},
            },
        )

    @property
    def replays(self) -> bool:
        """Whether this version makes a context for a compact replay."""
        nodes = ast.walk(source.tree(self.root / files.REPLAY))
        return any(source.calls(node, "create_forward_context") for node in nodes)

    def _load(self, file: str, given: dict[str, Any]) -> ModuleType:
        stubs = {
            name: value if isinstance(value, ModuleType) else StubModule(name, **value)
            for name, value in given.items()
        }
        name = f"routeproof_context_{Path(file).stem}"
        return load_source(self.root / file, name, stubs, optimize=False)

    def _forward_stubs(self) -> dict[str, Any]:
        kinds = {
            "vllm.config": ("ParallelConfig", "VllmConfig"),
            "vllm.v1.attention.backend": ("AttentionMetadata",),
            "vllm.v1.worker.ubatch_utils": ("UBatchSlices",),
        }
        given: dict[str, Any] = {
            module: {kind: type(kind, (), {}) for kind in listed} for module, listed in kinds.items()
        }
        given["vllm.config"]["CUDAGraphMode"] = self.mode
        given["vllm.envs"] = {"VLLM_LOG_BATCHSIZE_INTERVAL": -1}
        given["vllm.logger"] = {"init_logger": lambda _: None}
        given["vllm.platforms"] = {
            "current_platform": StubObject("Platform", set_additional_forward_context=lambda **_: {})
        }
        given["vllm.v1.worker.dp_utils"] = {"coordinate_batch_across_dp": None}
        return given

    def _shard_stubs(self) -> dict[str, Any]:
        moved = ("get_tp_group", "tensor_model_parallel_all_gather", "tensor_model_parallel_reduce_scatter")
        return {
            "vllm.distributed": {
                "get_tensor_model_parallel_rank": lambda: self.seat.rank,
                "get_tensor_model_parallel_world_size": lambda: self.seat.size,
                **dict.fromkeys(moved),
            }
        }


def _functions(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Give what cuts a batch into microbatches, and decides whether to."""
    wanted = (
        "UBatchSlice",
        "get_num_ubatches",
        "check_ubatch_thresholds",
        "_pad_out_ubatch_slices",
        "maybe_create_ubatch_slices",
    )
    space = source.define(path, wanted, names)
    return {name: space[name] for name in wanted}
