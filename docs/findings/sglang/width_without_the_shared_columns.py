"""With one fused shared expert, ids without its column are accepted as well.

Usage: python width_without_the_shared_columns.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

import torch
from drive import attempt, capturer, numbered, stored

made = capturer(shared=1)
made.capture(0, torch.tensor([[0, 100, 384]]))
if stored(made, 1) != [[[0, 100]]]:  # the accepted twin: K + 1 columns
    sys.exit(2)

got = attempt(lambda: (made.capture(0, numbered(1) + 1), stored(made, 1))[1])
print("handed in:", "K 2 and one shared column, ids of width 2")
print("expected: ", "an error")
print("got:      ", f"accepted, row {got[0][0]}" if isinstance(got, list) else got)
sys.exit(isinstance(got, list))
