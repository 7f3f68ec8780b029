"""The rows of the second half of a two-batch overlap land on those of the first.

Usage: python second_child_at_row_zero.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

from drive import attempt, capturer, numbered, stored

made = capturer()
made.capture(0, numbered(8))
expected = numbered(8)[:, None].tolist()
if stored(made, 8) != expected:  # the accepted twin: one batch of 8
    sys.exit(2)

made.capture(0, numbered(8) + 50)
stored(made, 8)
for half in numbered(8).split(4):
    made.capture(0, half)  # as a layer's router does for each child
got = attempt(lambda: stored(made, 8))
print("handed in:", "two children of 4 tokens of a batch of 8")
print("expected: ", expected)
print("got:      ", got)
sys.exit(got != expected)
