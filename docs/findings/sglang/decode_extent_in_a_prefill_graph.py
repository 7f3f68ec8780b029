"""At the end of a prefill graph the extent of the last decode graph is handed over, or none.

Usage: python decode_extent_in_a_prefill_graph.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import ast
import sys
from types import SimpleNamespace as NS

from drive import SRT, attempt, capturer, extent_handed_over, numbered, stored

runner = ast.parse((SRT / "model_executor/model_runner.py").read_bytes())
(forward,) = (node for node in ast.walk(runner) if getattr(node, "name", "") == "_forward_raw")
told = [ast.unparse(node) for node in ast.walk(forward) if isinstance(node, ast.Assign)]
graph = "can_run_graph = True" in told  # where prefill_cuda_graph_runner has run


def second_rank(decode_runner):
    """Give the rows of DP rank 1 of 2: a prefill graph of 8 rows a rank, as both batches are padded to."""
    made = capturer(dp=2, rank=1)
    made.capture(0, numbered(16))
    extent = extent_handed_over(decode_runner)
    return attempt(lambda: [row[0][0] for row in stored(made, 8, [8, 8], graph=graph, extent=extent)])


expected = list(range(8, 16))
if second_rank(NS(bs=8)) != expected:  # the accepted twin: the last decode graph has 8 rows as well
    sys.exit(2)

got = [second_rank(NS(bs=2)), second_rank(NS())]
print("handed in:", "2 DP ranks, a prefill graph of 8 rows a rank, after a decode graph of 2; before any")
print("expected: ", f"rows {expected} of DP rank 1 both times")
print("got:      ", f"rows {got[0]}; {got[1]}")
sys.exit(got != [expected, expected])
