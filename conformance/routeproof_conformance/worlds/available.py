"""Which worlds can run here."""

import importlib.util
import sys
from typing import NamedTuple

WORLDS = ("simulated", "gloo", "nccl")
SHARED_GPU = (2, 30)
"""NCCL that lets several ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)."""


class Availability(NamedTuple):
    """Whether a world can run."""

    reason: str
    """Why not; empty if it can."""
    note: str = ""
    """What a report has to say of it."""


def availability(world: str, ranks: int) -> Availability:
    """Say whether a world can run `ranks` ranks on this machine.

    Asks CUDA nothing that would keep this process from forking.
    """
    if world == "simulated":
        return Availability("")
    if sys.platform != "linux":
        return Availability(f"ranks are forked, which needs Linux, not {sys.platform}")
    if importlib.util.find_spec("torch") is None:
        return Availability("torch is not installed (`pip install 'routeproof[torch]'`)")
    if world == "gloo":
        return Availability("")
    return _nccl(ranks)


def _nccl(ranks: int) -> Availability:
    import torch  # noqa: PLC0415 - optional

    if not torch.distributed.is_nccl_available():
        return Availability("this torch is built without NCCL")
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return Availability("no GPU is visible")
    if gpus >= ranks:
        return Availability("", f"{ranks} ranks on {gpus} GPUs")
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    if tuple(version[:2]) < SHARED_GPU:
        found = ".".join(str(part) for part in version)
        return Availability(f"{ranks} ranks need {ranks} GPUs or NCCL 2.30, found {gpus} and NCCL {found}")
    return Availability("", f"{ranks} ranks share {gpus} GPU(s), NCCL_MULTI_RANK_GPU_ENABLE=1")
