"""The shards of a layer that does not exist are gathered before they are rejected.

Usage: python layer_judged_after_the_gather.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

import torch
from drive import attempt, capturer, numbered

gathers = []
made = capturer(tp=2, gather=lambda rows: (gathers.append(1), torch.cat([rows, rows]))[1])
made.capture(0, numbered(3))
if len(gathers) != 1:  # the accepted twin: layer 0, one gather
    sys.exit(2)

gathers.clear()
got = attempt(lambda: made.capture(1, numbered(3)) or "accepted")
print("handed in:", "DeepEP, tp 2, a shard of 3 rows, layer 1 of 1 layer")
print("expected: ", "an error before any collective")
print("got:      ", f"{len(gathers)} gather(s), then {got}")
sys.exit(len(gathers) > 0 or got == "accepted")
