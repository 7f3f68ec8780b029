"""Ids outside [0, E) are passed on like any other.

Usage: python ids_of_no_expert_are_published.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

import torch
from drive import attempt, capturer, stored

made = capturer()
made.capture(0, torch.tensor([[255, 0]]))
if stored(made, 1) != [[[255, 0]]]:  # the accepted twin: both ids are in [0, 256)
    sys.exit(2)

got = attempt(lambda: (made.capture(0, torch.tensor([[300, 2**32 + 5]])), stored(made, 1))[1])
print("handed in:", "E 256, int64 ids [[300, 4294967301]]")
print("expected: ", "an error, or a marker that is no expert")
print("got:      ", f"accepted, row {got[0][0]}" if isinstance(got, list) else got)
sys.exit(isinstance(got, list))
