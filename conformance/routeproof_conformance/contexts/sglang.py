"""The context builder of SGLang, driven on the CPU out of its own files: DP attention.

There the capturer is told, at the end of a forward pass, whether a graph ran and the extent of
a DP rank's rows in it. What tells it is SGLang's: the replay preparation of the decode graph
runner, which chooses and remembers a graph, and the model runner's statement that calls the
capturer. Where the own rows then begin is worked out by SGLang's own function too. Stand-ins:
the buffers that the graph runner fills, and a capturer that notes what it is told.
"""

import ast
import bisect
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from routeproof_reference import physical
from routeproof_spec import Batch, BatchPath, Layout, Rank, Topology

from routeproof_conformance.contexts import files, source
from routeproof_conformance.contexts.engine import Mask, Told
from routeproof_conformance.engines.stubs import StubObject


class SglangContexts:
    """The files of one SGLang; asked rank by rank."""

    paths = frozenset({BatchPath.EAGER, BatchPath.FULL_GRAPH, BatchPath.PREFILL_GRAPH})
    layouts = frozenset({Layout.CROSS_DP})
    takes_mask = False

    def __init__(self, root: Path) -> None:
        """Take the files below `root`, which holds the package `sglang`."""
        self._root = root
        self.digests = {file: sha256((root / file).read_bytes()).hexdigest() for file in files.SGLANG_FILES}

    def tell(self, topology: Topology, batch: Batch, rank: Rank, mask: Mask | None) -> tuple[Told, ...]:
        """Run the end of a forward pass, and note what the capturer is told."""
        del mask
        rows: int | None = None
        runner = self._graph_runner(batch, topology)
        graph = batch.path is BatchPath.FULL_GRAPH
        if batch.path is BatchPath.PREFILL_GRAPH:
            graph = source.execute(self._root / files.SGLANG_RUNNER, _says_graph, 0, {})["can_run_graph"]
        if batch.path is BatchPath.FULL_GRAPH:
            rows = self._replay(runner, batch, batch.real, rank)
        elif batch.earlier is not None:
            self._replay(runner, batch, (batch.earlier * batch.width,) * topology.dp, rank)
        # A prefill graph pads every DP rank to its bucket before it runs, and the batch says so.
        counts = physical(batch) if batch.path is BatchPath.PREFILL_GRAPH else batch.real
        forward_batch = StubObject("ForwardBatch", global_num_tokens_cpu=list(counts))
        told = self._forward_end(runner, forward_batch, graph=graph)
        extent = told["cuda_graph_batch"] if told["can_run_graph"] else None
        if told["can_run_graph"] and extent is None:
            return (Told(None, rows=rows),)
        start, _ = self._local_slice(topology, rank)(**told)
        spread = tuple(counts) if extent is None else (extent,) * topology.dp
        return (Told(spread, start=start, rows=rows),)

    def _graph_runner(self, batch: Batch, topology: Topology) -> SimpleNamespace:
        """Give a decode graph runner that has replayed nothing yet; attributes are settable, as there."""
        path = self._root / files.SGLANG_GRAPHS
        most = source.define(path, ("_max_dp_batch_size",), {})["_max_dp_batch_size"]
        buckets = self._root / files.SGLANG_BUCKETS
        bucket = source.define(buckets, ("_pad_to_bucket",), {"bisect": bisect})["_pad_to_bucket"]
        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        no_draft = StubObject("SpecAlgorithm", is_dflash_family=lambda: False)
        return SimpleNamespace(
            capture_bs=list(batch.graphs),
            captured_req_width=batch.width,
            require_mlp_tp_gather=topology.dp > 1,
            dllm_uses_input_embeds=False,
            dllm_input_preparation=None,
            ragged_verify_mode=False,
            enable_two_batch_overlap=False,
            enable_pdmux=False,
            _skips_prefilled_inputs=False,
            _draft_metadata_glue=False,
            _target_metadata_glue=False,
            _early_verify_metadata=None,
            buffers=StubObject("DecodeInputBuffers"),
            deepep_adapter=StubObject("DeepEPAdapter", replay=nothing),
            model_runner=StubObject(
                "ModelRunner", spec_algorithm=no_draft, is_draft_worker=False, hisparse_coordinator=None
            ),
            _max_dp_batch_size=most,
            _pad_to_bucket=bucket,
            _capture_graph_size=lambda *, bs, num_tokens: bs,  # noqa: ARG005 - as in SGLang, not ragged
            _resolve_attention_variant=nothing,
            _resolve_lora_variant=nothing,
            _glue_key=nothing,
            _take_early_verify_metadata=nothing,
            _validate_capture_hidden_mode=nothing,
            _set_dp_real_num_tokens=nothing,
            _init_replay_attn_metadata=nothing,
            _make_graph_key=nothing,
        )

    def _replay(self, runner: SimpleNamespace, batch: Batch, rows: tuple[int, ...], rank: Rank) -> int:
        """Prepare the replay of a decode graph; give the rows that the runner pads its buffers to."""
        filled: dict[str, int] = {}
        runner.buffer_registry = StubObject(
            "BufferRegistry", fill_from=lambda _, **sizes: filled.update(sizes)
        )
        requests = [count // batch.width for count in rows]
        forward_batch = StubObject(
            "ForwardBatch",
            batch_size=requests[rank.dp],
            original_global_num_tokens_cpu=requests,
            needs_forward_metadata_init=lambda: True,
            forward_mode=StubObject("ForwardMode", is_idle=lambda: False),
            input_embeds=None,
            spec_info=None,
        )
        source.define(self._root / files.SGLANG_GRAPHS, ("load_batch",), {})["load_batch"](
            runner, forward_batch
        )
        return filled["padded_num_tokens"]

    def _forward_end(
        self, runner: SimpleNamespace, forward_batch: StubObject, *, graph: bool
    ) -> dict[str, Any]:
        """Run the model runner's statement that calls the capturer after a forward pass."""
        path = self._root / files.SGLANG_RUNNER
        noted: dict[str, Any] = {}
        capturer = StubObject("Capturer", on_forward_end=lambda **told: noted.update(told))
        source.execute(
            path,
            _calls_capturer,
            0,
            {
                "self": StubObject("ModelRunner", is_draft_worker=False, decode_cuda_graph_runner=runner),
                "get_global_experts_capturer": lambda: capturer,
                "output": SimpleNamespace(can_run_graph=graph),
                "forward_batch": forward_batch,
                "no_copy_to_cpu": True,
            },
        )
        return {name: noted[name] for name in ("forward_batch", "can_run_graph", "cuda_graph_batch")}

    def _local_slice(self, topology: Topology, rank: Rank) -> Any:  # noqa: ANN401 - SGLang's function
        """Give the function with which the capturer finds the own rows."""
        path = self._root / files.SGLANG_SLICES
        wanted = ("world_dp_gather_enabled", "dp_gather_slot", "dp_gather_width", "dp_slot_in")
        last = "get_dp_local_slice_cpu"
        dp_flags = StubObject("DpFlags", scoped_gather_slot=None, use_world_group_for_gather=False)
        parallel = StubObject("Parallel", attn_dp_size=topology.dp, attn_dp_rank=rank.dp)
        names = {
            "get_flags": lambda: StubObject("Flags", dp=dp_flags),
            "get_parallel": lambda: parallel,
        }
        return source.define(path, (*wanted, last), names)[last]


def _calls_capturer(node: ast.stmt) -> bool:
    """Whether it is the `if` around the call of the routed-experts capturer."""
    return isinstance(node, ast.If) and any(
        source.calls(inner, "get_global_experts_capturer") for inner in ast.walk(node.test)
    )


def _says_graph(node: ast.stmt) -> bool:
    """Whether it sets what is said of a forward pass whose prefill graph has run."""
    return isinstance(node, ast.Assign) and ast.unparse(node) == "can_run_graph = True"


@lru_cache(maxsize=8)
def contexts(root: Path) -> SglangContexts:
    """Give the builder of the files below `root`."""
    return SglangContexts(root)
