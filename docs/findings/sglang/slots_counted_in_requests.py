"""In a graph that verifies drafts, the slot of a DP rank is counted in requests, the rows in tokens.

Usage: python slots_counted_in_requests.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys
from types import SimpleNamespace as NS

from drive import SRT, capturer, extent_handed_over, numbered, stored

if "padded_num_tokens = bs * self.captured_req_width" not in (
    SRT / "model_executor/runner/decode_cuda_graph_runner.py"
).read_text("utf-8"):
    raise SystemExit("the graph runner counts rows in another way than this script knows")


def second_rank(width):
    """Give the rows of DP rank 1 of 2: a graph of 4 requests of `width` tokens; 2 and 3 of them are real."""
    made = capturer(dp=2, rank=1, rows=4 * width)
    made.capture(0, numbered(2 * 4 * width))
    extent = extent_handed_over(NS(bs=4, captured_req_width=width))
    return [row[0][0] for row in stored(made, 3 * width, [2 * width, 3 * width], graph=True, extent=extent)]


if second_rank(1) != [4, 5, 6]:  # the accepted twin: plain decoding, one token a request
    sys.exit(2)

expected, got = list(range(16, 28)), second_rank(4)
print("handed in:", "2 DP ranks, a graph of 4 requests of 4 tokens each, DP rank 1 has 3 requests")
print("expected: ", f"rows {expected} of the batch")
print("got:      ", f"rows {got}")
sys.exit(got != expected)
