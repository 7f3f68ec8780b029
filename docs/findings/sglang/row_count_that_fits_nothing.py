"""A number of rows that fits no layout of the step is accepted; what is missing is an earlier step's.

Usage: python row_count_that_fits_nothing.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

from drive import attempt, capturer, numbered, stored

made = capturer()
made.capture(0, numbered(6) + 50)
if stored(made, 6) != (numbered(6) + 50)[:, None].tolist():  # the accepted twin: six rows of six tokens
    sys.exit(2)

got = attempt(lambda: (made.capture(0, numbered(1)), stored(made, 6))[1])
print("handed in:", "6 tokens, 1 row")
print("expected: ", "an error")
print("got:      ", f"accepted, rows {got}" if isinstance(got, list) else got)
sys.exit(isinstance(got, list))
