"""Nothing tells the second microbatch of a step where in the batch its rows begin.

Usage: python microbatch_offset_is_not_told.py FOLDER_OF_the_package_vllm
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import ast
import sys
import threading
from pathlib import Path
from types import SimpleNamespace as NS
from unittest.mock import MagicMock

FOLDER = Path(sys.argv[1]) / "vllm" / "v1" / "worker"
vllm = MagicMock()  # stands in for all that ubatching.py imports
vllm.current_stream.return_value = None
sys.modules["vllm"] = vllm
for name in ("forward_context", "logger", "utils.torch_utils"):
    sys.modules["vllm." + name] = vllm
threads = {"__name__": "threads"}
path = FOLDER / "ubatching.py"
exec(compile(path.read_text("utf-8"), str(path), "exec", optimize=0), threads)

(call,) = (
    node
    for node in ast.walk(ast.parse((FOLDER / "gpu/ubatch_utils.py").read_bytes()))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "make_ubatch_contexts"
)
barrier = threading.Barrier(1)
slices = [NS(token_slice=slice(0, 4)), NS(token_slice=slice(4, 7))]
known = {
    "make_ubatch_contexts": threads["make_ubatch_contexts"],
    "self": NS(num_ubatches=2, comm_stream=None, ready_barrier=barrier),
    "compute_stream": None,
    "ubatch_state": NS(forward_contexts=["of the first", "of the second"]),
    "ubatch_slices": slices,
}
contexts = eval(compile(ast.Expression(call), "ubatch_utils", "eval"), known)


def told(number):
    """Enter a microbatch's context, and ask there for its offset; None: there is nothing to ask."""
    contexts[number].cpu_wait_event.set()
    with contexts[number]:
        ask = threads.get("dbo_current_ubatch_token_offset")
        return threads["dbo_current_ubatch_id"](), ask and ask()


first, (number, got), expected = told(0), told(1), 4
if first not in ((0, 0), (0, None)) or number != 1:  # the accepted twin: the first microbatch needs no offset
    sys.exit(2)

print("handed in:", "7 tokens in two microbatches, of rows [0, 4) and [4, 7)")
print("expected: ", expected)
print("got:      ", got)
sys.exit(got != expected)
