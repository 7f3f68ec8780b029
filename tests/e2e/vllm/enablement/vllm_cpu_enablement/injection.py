"""Changes what the layers hand to the capturer, whichever capturer it is.

ROUTEPROOF_E2E_INJECT=shards: each TP rank hands over its shard of the rows, ceil(T / tp) of them and
the tail padded, as models with sequence parallelism do, none of which runs on a CPU.
ROUTEPROOF_E2E_INJECT=bad-id: one id of layer 1 is outside the range of experts.
"""

import os


def register() -> None:
    """Entry point of the group vllm.general_plugins; idempotent."""
    inject = {"": None, "shards": _shard, "bad-id": _bad_id}[os.environ.get("ROUTEPROOF_E2E_INJECT", "")]
    if inject is None:
        return
    from vllm.distributed.aux_output_connector import worker

    if getattr(worker, "_injects", False):
        return
    worker._injects = True
    bind = worker.bind_routed_experts_capturer

    def bind_injected(model, capturer):
        bind(model, _Injected(capturer, inject))

    worker.bind_routed_experts_capturer = bind_injected


class _Injected:
    def __init__(self, capturer, inject):
        self._capturer, self._inject = capturer, inject

    def capture(self, layer_id, topk_ids):
        self._capturer.capture(layer_id, self._inject(layer_id, topk_ids))


def _shard(layer_id, ids):
    del layer_id
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    size = -(-ids.shape[0] // group.world_size)
    padded = ids.new_zeros((size * group.world_size, ids.shape[1]))
    padded[: ids.shape[0]] = ids
    return padded[group.rank_in_group * size :][:size].contiguous()


def _bad_id(layer_id, ids):
    changed = ids.clone()
    if layer_id == 1:
        changed[0, 0] = 300
    return changed
