"""Shards with gaps, such as the routed columns of a wider tensor, are gathered as they are.

Usage: python gather_input_not_contiguous.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

import torch
from drive import capturer, numbered

seen = []
made = capturer(tp=2, gather=lambda rows: (seen.append(rows.is_contiguous()), torch.cat([rows, rows]))[1])
made.capture(0, numbered(3))
if seen != [True]:  # the accepted twin: the same ids, contiguous
    sys.exit(2)

made.capture(0, torch.cat([numbered(3), numbered(3)], dim=1)[:, :2])
print("handed in:", "DeepEP, tp 2, the first 2 columns of ids of width 4")
print("expected: ", "a gather of contiguous rows")
print(
    "got:      ", "contiguous" if seen[1] else "a gather of rows with gaps, which torch.distributed refuses"
)
sys.exit(not seen[1])
