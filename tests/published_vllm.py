"""Files of a published vLLM as importable modules: from the forward context to the rows of a request."""

import enum
import sys

import numpy as np
import torch
from routeproof_conformance.engines import VLLM_DELIVERY
from routeproof_conformance.engines.stubs import StubModule, StubObject, load_source
from routeproof_conformance.engines.vllm import FILE

FORWARD = "vllm/forward_context.py"
FILES = (FILE, FORWARD, *VLLM_DELIVERY)
_KINDS = {
    "vllm.v1.attention.backend": ("AttentionMetadata",),
    "vllm.v1.worker.ubatch_utils": ("UBatchSlices",),
    "vllm.model_executor.layers.fused_moe.config": ("FusedMoEConfig",),
}


class Group:
    """One rank's TP group, as vLLM's GroupCoordinator shows it; `member` does the work."""

    def __init__(self, member):
        self.rank_in_group, self.world_size, self.device_group = member.rank, member.size, member
        self.is_first_rank = member.rank == 0

    def all_gather(self, rows, dim=-1):
        assert dim == 0
        return self.device_group.all_gather(rows)


class Mode(enum.Enum):
    """vLLM's graph modes, of which none is used here."""

    NONE, PIECEWISE, FULL = range(3)

    def is_valid_runtime_mode(self):
        return True


class Alone:
    """A group of one."""

    rank, size = 0, 1

    def all_gather(self, rows):
        return rows

    def gather(self, rows, dst=0):
        return rows if dst == 0 else None


class PublishedVllm:
    """The modules of one process of vLLM, in `sys.modules` as long as the test runs."""

    def __init__(self, monkeypatch, root, version, member=None):
        self.monkeypatch, self.root = monkeypatch, root
        self.modules = {"vllm": StubModule("vllm", __version__=version)}
        group = Group(member or Alone())
        self._stub("vllm.config", ParallelConfig=object, VllmConfig=object, CUDAGraphMode=Mode)
        self._stub("vllm.envs", VLLM_LOG_BATCHSIZE_INTERVAL=-1)
        self._stub("vllm.logger", init_logger=lambda _: None)
        platform = {"device_type": "cpu", "set_additional_forward_context": lambda **_: {}}
        self._stub("vllm.platforms", current_platform=StubObject("Platform", **platform))
        self._stub("vllm.v1.worker.dp_utils", coordinate_batch_across_dp=None)
        self._stub("vllm.v1.worker.ubatching", dbo_current_ubatch_token_offset=lambda: 0)
        self._stub("vllm.distributed.parallel_state", get_tp_group=lambda: group)
        sizes = {"resolve_kv_cache_block_sizes": lambda *_: (4, 4), "maybe_convert_block_hash": None}
        self._stub("vllm.v1.core.kv_cache_utils", **sizes)
        for module, kinds in _KINDS.items():
            self._stub(module, **{kind: type(kind, (), {}) for kind in kinds})
        self.forward = self._load(FORWARD)
        self.capturer_file = self._load(FILE)
        for file in VLLM_DELIVERY:
            self._load(file)
        self.worker = self.modules["vllm.distributed.aux_output_connector.worker"]
        self.metadata = self.modules["vllm.distributed.aux_output_connector.connector"]
        self.worker.bind_routed_experts_capturer = lambda *_: None
        self.runner = self._stub(  # imports by name, as vLLM's model runner does
            "vllm.v1.worker.gpu.model_runner", set_forward_context=self.forward.set_forward_context
        )

    def _stub(self, name, **attributes):
        return self._add(name, StubModule(name, **attributes))

    def _load(self, file):
        name = file.removesuffix(".py").replace("/", ".")
        return self._add(name, load_source(self.root / file, name, dict(self.modules), optimize=False))

    def _add(self, name, module):
        self.modules[name] = module
        for each, value in self.modules.items():
            self.monkeypatch.setitem(sys.modules, each, value)
        return module

    def connector(self, tokens=16, layers=2, top_k=2, experts=8, tp=1, dp=1, dp_rank=0, **parallel):
        """Build the connector of a worker, with whatever capturer it now finds."""
        model = StubObject(
            "ModelConfig",
            get_total_num_hidden_layers=lambda: layers,
            get_num_experts=lambda: experts,
            get_num_experts_per_tok=lambda: top_k,
            hf_text_config=StubObject("PretrainedConfig", model_type="toy"),
        )
        ranks = {"data_parallel_rank": dp_rank, "data_parallel_size": dp, "tensor_parallel_size": tp}
        flags = {"use_sequence_parallel_moe": False, "is_moe_model": True, "use_ubatching": False}
        compilation = {"fast_moe_cold_start": False, "static_forward_context": {}}
        self.config = StubObject(
            "VllmConfig",
            model_config=model,
            parallel_config=StubObject("ParallelConfig", **{**ranks, **flags, **parallel}),
            scheduler_config=StubObject("Scheduler", max_num_batched_tokens=tokens, max_num_seqs=4),
            compilation_config=StubObject("Compilation", max_cudagraph_capture_size=None, **compilation),
            aux_output_config=StubObject("AuxOutput", max_bytes=None),
            max_concurrent_batches=2,
        )
        cache = StubObject("KVCacheConfig", num_blocks=16)
        return self.worker.get_aux_output_connector(None, self.config, cache)

    def forward_pass(self, connector, count, layers, counts=None, described=True):
        """Run one forward pass, in which layer l hands over `layers[l]`."""
        given = {"num_tokens": count}
        if described:
            given["batch_descriptor"] = self.forward.BatchDescriptor(num_tokens=count)
        if counts is not None:
            given["num_tokens_across_dp"] = torch.tensor(counts, dtype=torch.int32)
        with self.runner.set_forward_context(None, self.config, **given):
            for layer, ids in enumerate(layers):
                connector._capturer.capture(layer, ids)

    def begin(self, connector, finished=(), **requests):
        """Announce a scheduled step: per request, the token from which rows are to be delivered."""
        connector.begin_step(self.metadata.AuxOutputConnectorMetadata(0, requests, {}, finished))

    def prepare(self, connector, padded=None, **lengths):
        """Prepare the output of a step: per request, its first token and its tokens in this step."""
        ends = np.cumsum([0, *(length for _, length in lengths.values())])
        batch = StubObject(
            "InputBatch",
            req_ids=list(lengths),
            query_start_loc_np=np.concatenate([ends, ends[-1:], ends[-1:]]),
            num_computed_tokens_np=np.array([start for start, _ in lengths.values()]),
            num_tokens_after_padding=int(ends[-1]) if padded is None else padded,
        )
        pending = connector.prepare_output(batch)
        if pending is not None:
            count = len(lengths)
            pending.enqueue_cpu_copy(np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.int32))
        return pending

    def step(self, connector, layers, padded=None, **lengths):
        """Run a whole step of requests, and give their rows."""
        self.begin(connector, **{name: start for name, (start, _) in lengths.items()})
        total = sum(length for _, length in lengths.values())
        self.forward_pass(connector, padded or total, layers)
        outputs = self.prepare(connector, padded, **lengths).process_output()
        return {name: output.rows for name, output in outputs.items()}
