"""The context builder of vLLM, driven on the CPU out of its own files.

What pads, describes, cuts and announces a batch is vLLM's: the agreement of the DP ranks, the
model runner's statement around the forward pass, the function that records a full graph, the
contexts and offsets of microbatches, the call of a compact replay, and the shards of rows and
mask. Stand-ins: the choice of a graph of the sizes at hand, the all-reduce of the DP group,
streams, and a model that reads the forward context and does nothing else.
"""

import ast
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from routeproof_reference import physical
from routeproof_spec import Batch, BatchPath, Layout, Rank, Topology

from routeproof_conformance.contexts import files, source
from routeproof_conformance.contexts.engine import Mask, Told
from routeproof_conformance.contexts.vllm_files import VllmFiles
from routeproof_conformance.engines.stubs import StubObject

_PATIENCE = 30.0
"""Seconds that the threads of two microbatches may take."""


class _MetError(Exception):
    """A rank has reached the all-reduce; it is run again when all have."""


class _Padded(NamedTuple):
    """A batch as the DP ranks agreed on it."""

    rows: int
    mode: Any
    counts: Any
    """T per DP rank, a tensor; None at DP 1."""
    agreed: Any
    """vLLM's own record of the agreement; None at DP 1."""


class VllmContexts:
    """The files of one vLLM; asked rank by rank."""

    layouts = frozenset({Layout.FULL, Layout.CROSS_DP, Layout.TP_SHARD, Layout.GATHERED_SHARDS})
    takes_mask = True

    def __init__(self, loaded: VllmFiles) -> None:
        """Take loaded files."""
        self._files = loaded
        self._torch = loaded.torch
        self._mode = loaded.mode
        self._forward = loaded.forward
        self.digests = loaded.digests
        without = {BatchPath.PREFILL_GRAPH} | (set() if loaded.replays else {BatchPath.COMPACT_REPLAY})
        self.paths = frozenset(BatchPath) - without

    def tell(self, topology: Topology, batch: Batch, rank: Rank, mask: Mask | None) -> tuple[Told, ...]:
        """Bring the batch to its layers on its path, and read the forward context there."""
        self._files.seat = StubObject("Seat", rank=rank.tp, size=topology.tp)
        config = _config(topology, batch, rank)
        if batch.path is BatchPath.COMPACT_REPLAY:
            return (self._replay(batch, rank, config),)
        padded = self._pad(topology, batch, rank, config)
        if batch.path is BatchPath.MICROBATCHES:
            return self._microbatches(batch, rank, config, padded)
        seen: list[Told] = []

        def model(**_: object) -> None:
            seen.append(self._read(batch, rank, padded.rows, batch.real[rank.dp]))

        given = (False,) * padded.rows if mask is None else mask
        is_padding = self._torch.tensor(given, dtype=self._torch.bool)
        forward = {
            BatchPath.FUNCTION: self._alone,
            BatchPath.FULL_GRAPH: self._recorded,
        }.get(batch.path, self._step)
        forward(config, padded, is_padding, model)
        return tuple(told._replace(rows=padded.rows) for told in seen)

    def _pad(self, topology: Topology, batch: Batch, rank: Rank, config: StubObject) -> _Padded:
        """Choose a graph, and let the DP ranks agree as vLLM does."""
        mode = self._mode.NONE
        if batch.graphs:
            mode = self._mode.PIECEWISE if batch.path is BatchPath.PIECEWISE_GRAPH else self._mode.FULL

        def dispatch(_: int, tokens: int, *__: object, num_ubatches: int = 1, **___: object) -> Any:  # noqa: ANN401
            slots = next(size for size in batch.graphs if size * batch.width >= tokens)
            rows = slots * batch.width
            return self._files.batch_desc(
                cg_mode=mode, num_tokens=rows, num_reqs=slots, num_ubatches=num_ubatches
            )

        manager = StubObject("CudaGraphManager", dispatch=dispatch) if batch.graphs else None
        tokens = batch.real[rank.dp]
        if topology.dp == 1:
            rows = tokens if manager is None else dispatch(1, tokens).num_tokens
            return _Padded(rows, mode, None, None)
        wanted = self._files.batch_desc(cg_mode=mode, num_tokens=tokens, num_reqs=1)
        met: list[Any] = []
        for dp in (*range(topology.dp), rank.dp):

            def reduce(tensor: Any, last: bool = len(met) == topology.dp, **_: object) -> None:  # noqa: ANN401
                if not last:
                    met.append(tensor.clone())
                    raise _MetError
                tensor.copy_(sum(met))

            agree = self._agreement(reduce)
            try:
                described, agreed = agree(
                    cudagraph_manager=manager,
                    desired_batch_desc=wanted,
                    num_tokens=batch.real[dp],
                    num_reqs=1,
                    uniform_token_count=None,
                    dp_size=topology.dp,
                    dp_rank=dp,
                    parallel_config=config.parallel_config,
                    allow_ubatching=batch.path is BatchPath.MICROBATCHES,
                )
            except _MetError:
                continue
        return _Padded(
            max(tokens, described.num_tokens), described.cg_mode, agreed.num_tokens_across_dp, agreed
        )

    def _agreement(self, reduce: Any) -> Any:  # noqa: ANN401
        path = self._files.root / files.AGREE
        space = {
            "torch": self._torch,
            "dist": StubObject("dist", all_reduce=reduce),
            "dataclass": dataclass,
            "get_dp_group": lambda: StubObject("Group", cpu_group=None, cpu_all_reduce_=reduce),
            "should_skip_dp_coordination": lambda: False,
            "CUDAGraphMode": self._mode,
            "BatchExecutionDescriptor": self._files.batch_desc,
            **self._files.slices,
        }
        names = ("DPSyncState", "sync_cudagraph_and_dp_padding")
        return source.define(path, names, space)[names[1]]

    def _alone(self, config: StubObject, padded: _Padded, is_padding: Any, model: Any) -> None:  # noqa: ANN401
        """Call the builder with the number of rows, and no descriptor."""
        told = {"num_tokens": padded.rows, "num_tokens_across_dp": padded.counts, "is_padding": is_padding}
        with self._forward.set_forward_context(None, config, **told):
            model()

    def _step(self, config: StubObject, padded: _Padded, is_padding: Any, model: Any) -> None:  # noqa: ANN401
        """Run the model runner's statement around a forward pass, and the one before it."""
        path = self._files.root / files.RUNNER
        connector = StubObject("Connector", pre_forward=lambda *_, **__: None)
        graphs = StubObject("CudaGraphManager", run_pw_graph=lambda model, inputs: model(**inputs))
        runner = StubObject(
            "ModelRunner",
            lora_config=None,
            vllm_config=config,
            kv_connector=connector,
            model=model,
            cudagraph_manager=graphs,
        )
        batch = StubObject("InputBatch", num_tokens_after_padding=padded.rows, is_padding=is_padding)
        nothing = (
            "attn_metadata",
            "slot_mappings_by_layer",
            "scheduler_output",
            "ubatch_slices",
            "ubatch_state",
        )
        source.execute(
            path,
            _enters_context,
            1,
            {
                **dict.fromkeys(nothing),
                "set_forward_context": self._forward.set_forward_context,
                "BatchDescriptor": self._forward.BatchDescriptor,
                "CUDAGraphMode": self._mode,
                "self": runner,
                "input_batch": batch,
                "batch_desc": StubObject("BatchDesc", cg_mode=padded.mode, num_active_loras=0),
                "dp_sync_state": padded.agreed,
                "dp_sync": padded.agreed,
                "skip_compiled": False,
                "connector_kwargs": {},
                "model_inputs": {},
            },
        )

    def _recorded(self, config: StubObject, padded: _Padded, is_padding: Any, model: Any) -> None:  # noqa: ANN401
        """Run the statement that records a full graph, and the function that it calls."""
        path = self._files.root / files.GRAPHS
        given = {
            "set_forward_context": self._forward.set_forward_context,
            "BatchDescriptor": self._forward.BatchDescriptor,
            "CUDAGraphMode": self._mode,
            "attn_metadata": None,
            "slot_mappings": None,
            "num_tokens": padded.rows,
            "num_tokens_across_dp": padded.counts,
            "input_buffers": StubObject("InputBuffers", is_padding=is_padding),
            "is_padding": is_padding,
            "model": model,
            "model_inputs": {},
            "store_capture_output": lambda *_: None,
            "graph": None,
            "desc": None,
            "torch": StubObject("torch", cuda=StubObject("cuda", graph=lambda *_, **__: nullcontext())),
            "capture_pool": lambda *_: nullcontext(),
            "get_offloader": lambda: StubObject("Offloader", join_after_forward=lambda: None),
            "self": StubObject(
                "CudaGraphManager", vllm_config=config, pool=None, _capture_stream=lambda _: None
            ),
        }
        made = source.define(path, ("forward_fn",), given)
        source.execute(path, _records_graph, 0, {**given, "forward_fn": made["forward_fn"]})

    def _microbatches(
        self, batch: Batch, rank: Rank, config: StubObject, padded: _Padded
    ) -> tuple[Told, ...]:
        """Cut the batch, build the contexts, and read each on a thread of its own, in vLLM's order."""
        path, count = self._files.root / files.CONTEXTS, batch.microbatches
        names = {
            **self._files.slices,
            **vars(self._forward),
            "torch": self._torch,
            "CUDAGraphMode": self._mode,
        }
        functions = source.define(path, ("create_ubatch_slices", "_make_forward_contexts"), names)
        cut = StubObject(
            "InputBatch",
            num_scheduled_tokens=np.array([batch.real[rank.dp]]),
            num_tokens_after_padding=padded.rows,
            num_reqs_after_padding=1,
            num_reqs=1,
        )
        slices = functions["create_ubatch_slices"](cut, count)
        runner = StubObject(
            "UBatchRunner",
            parallel_config=config.parallel_config,
            vllm_config=config,
            num_ubatches=count,
            comm_stream=None,
            ready_barrier=threading.Barrier(count + 1, timeout=_PATIENCE),
        )
        nothing: list[None] = [None] * count
        made = functions["_make_forward_contexts"](runner, slices, nothing, nothing, nothing)
        contexts = source.evaluate(
            path,
            "make_ubatch_contexts",
            {
                "make_ubatch_contexts": self._files.threads.make_ubatch_contexts,
                "self": runner,
                "compute_stream": None,
                "ubatch_slices": slices,
                "ubatch_state": StubObject("UBatchState", forward_contexts=made),
            },
        )
        told: dict[int, Told] = {}
        errors: list[Exception] = []

        def run(number: int) -> None:
            start, rows = slices[number].token_slice.start, slices[number].num_tokens
            real = min(max(batch.real[rank.dp] - start, 0), rows)
            try:
                with contexts[number]:
                    ask = getattr(self._files.threads, "dbo_current_ubatch_token_offset", lambda: None)
                    told[number] = self._read(batch, rank, rows, real)._replace(offset=ask(), rows=rows)
            except Exception as error:  # noqa: BLE001 - raised again on the calling thread
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        runner.ready_barrier.wait()
        contexts[0].cpu_wait_event.set()
        for thread in threads:
            thread.join(_PATIENCE)
        if errors:
            raise errors[0]
        return tuple(told[number] for number in range(count))

    def _replay(self, batch: Batch, rank: Rank, config: StubObject) -> Told:
        """Evaluate the call that makes the context of a compact replay; its padding is given."""
        path, counts = self._files.root / files.REPLAY, physical(batch)
        rows = counts[rank.dp]
        dp_tokens = self._torch.tensor(counts, dtype=self._torch.int32) if len(counts) > 1 else None
        runner = StubObject("ModelState", vllm_config=config, pcp_size=1)
        names = {**vars(self._forward), "self": runner, "num_padded": rows, "dp_tokens": dp_tokens}
        names = source.execute(path, _makes_metadata, 1, names)
        nothing = ("attn_metadata", "kept_slot_mappings", "kv_cache_config", "kept_batch")
        context = source.evaluate(
            path,
            "create_forward_context",
            {
                **names,
                **dict.fromkeys(nothing),
                "cg_mode": self._mode.PIECEWISE if batch.graphs else self._mode.NONE,
                "build_slot_mappings_by_layer": lambda *_: {},
            },
        )
        with self._forward.override_forward_context(context):
            return self._read(batch, rank, rows, (batch.kept or ())[rank.dp])

    def _read(self, batch: Batch, rank: Rank, rows: int, real: int) -> Told:
        """Read what the capturer reads in a layer, and shard rows and mask as a model does."""
        context = self._forward.get_forward_context()
        descriptor, metadata = context.batch_descriptor, context.dp_metadata
        own = None if descriptor is None else int(descriptor.num_tokens)
        sharded = batch.emitted in (Layout.TP_SHARD, Layout.GATHERED_SHARDS)
        if metadata is None:
            told = Told(None if own is None else (own,))
        else:
            told = Told(tuple(metadata.num_tokens_across_dp_cpu.tolist()), own=own)
            if sharded:
                with metadata.sp_local_sizes(rank.topology.tp, use_ep=True) as sizes:
                    told = told._replace(shard_sizes=tuple(sizes))
        if batch.emitted is Layout.TP_SHARD:
            states = self._torch.zeros(rows, 1)
            mask = self._files.shards.sp_padding_mask(self._torch.arange(rows) >= real, states)
            told = told._replace(
                handed=len(self._files.shards.sp_shard(states)), mask=tuple(bool(item) for item in mask)
            )
        return told


def _config(topology: Topology, batch: Batch, rank: Rank) -> StubObject:
    sharded = batch.emitted in (Layout.TP_SHARD, Layout.GATHERED_SHARDS)
    parallel = StubObject(
        "ParallelConfig",
        data_parallel_size=topology.dp,
        data_parallel_rank=rank.dp,
        use_sequence_parallel_moe=sharded and topology.tp > 1 and topology.dp > 1,
        is_moe_model=True,
        use_ubatching=batch.microbatches > 1,
        num_ubatches=batch.microbatches,
        dbo_decode_token_threshold=1,
        dbo_prefill_token_threshold=1,
    )
    compilation = StubObject("CompilationConfig", fast_moe_cold_start=False, static_forward_context={})
    return StubObject("VllmConfig", parallel_config=parallel, compilation_config=compilation)


def _enters_context(node: ast.stmt) -> bool:
    """Whether it is a `with set_forward_context(...)`."""
    return isinstance(node, ast.With) and source.calls(node.items[0].context_expr, "set_forward_context")


def _records_graph(node: ast.stmt) -> bool:
    """Whether it is the `with torch.cuda.graph(...)` around a recording."""
    return isinstance(node, ast.With) and any(source.calls(i.context_expr, "graph") for i in node.items)


def _makes_metadata(node: ast.stmt) -> bool:
    """Whether it is an `if` that makes the DP metadata."""
    return isinstance(node, ast.If) and any(
        source.calls(inner, "make") for item in node.body for inner in ast.walk(item)
    )


@lru_cache(maxsize=8)
def contexts(root: Path, torch: Any) -> VllmContexts:  # noqa: ANN401
    """Give the builder of the files below `root`; loading them takes a while, so it is kept."""
    return VllmContexts(VllmFiles(root, torch))
