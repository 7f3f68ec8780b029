#!/usr/bin/env bash
# What only a machine with a GPU can show, in a few minutes: NCCL ranks, CUDA graphs, no synchronisation.
# NCCL and CUDA graphs: not yet executed. Run it there, in a checkout:  benchmarks/gpu_check.sh [python]
# The python has routeproof[torch] with a CUDA build of torch. With one GPU the ranks share it (NCCL 2.30).
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
failed=0

step() {
    echo "== $*"
    "$@" || { failed=1; echo "== failed: $*"; }
}

"$python" - <<'PY' || exit 2
import sys

import torch

if not torch.cuda.is_available():
    sys.exit("no GPU is visible to torch")
print(f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
print(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
PY

# Graph capture and replay, eager steps between them, and the sync-debug mode: any wait is an error.
step "$python" -m pytest -q -rs tests/test_impl_hotpath.py tests/test_impl_snapshots.py tests/test_impl_gather.py
step "$python" benchmarks/gpu_graphs.py
for engine in routeproof routeproof-per-layer; do
    step "$python" -m routeproof_conformance run --engine "$engine" --world nccl --topology tp2,tp4,tp2dp2,dp2
done
exit $failed
