"""Shards cost one collective per layer, not one per step.

Usage: python one_gather_per_layer.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

import torch
from drive import capturer, numbered

gathers = []
made = capturer(tp=2, layers=3, gather=lambda rows: (gathers.append(1), torch.cat([rows, rows]))[1])
made.capture(0, numbered(3))
if len(gathers) != 1:  # the accepted twin: a step of one layer
    sys.exit(2)

gathers.clear()
for layer in range(3):
    made.capture(layer, numbered(3))
print("handed in:", "DeepEP, tp 2, shards of 3 rows, 3 layers")
print("expected: ", "1 gather in the step")
print("got:      ", f"{len(gathers)} gathers in the step")
sys.exit(len(gathers) > 1)
