"""A step of one token, which TP rank 0 holds, costs a gather in every layer.

Usage: python gather_of_a_single_token.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

import torch
from drive import capturer, numbered, stored

gathers = []
made = capturer(tp=2, gather=lambda rows: (gathers.append(1), torch.cat([rows, rows + 3]))[1])
made.capture(0, numbered(3))
twin = (numbered(3) + 3)[:, None].tolist()
if len(gathers) != 1 or stored(made, 6)[3:] != twin:  # the accepted twin: six tokens need the gather
    sys.exit(2)

gathers.clear()
made.capture(0, numbered(1))
print("handed in:", "DeepEP, tp 2, a step of 1 token")
print("expected: ", "no gather: the rank that answers holds the row")
print("got:      ", f"{len(gathers)} gather(s)")
sys.exit(len(gathers) > 0)
