"""Layer -1 is the last layer.

Usage: python negative_layer_is_accepted.py FOLDER_OF_the_package_sglang
Exit code 1: the deviation is there, 0: it is not, 2: the accepted twin fails too.
"""

import sys

from drive import attempt, capturer, numbered, stored

made = capturer()
made.capture(0, numbered(1))
if stored(made, 1) != [[[0, 100]]]:  # the accepted twin: layer 0 of one
    sys.exit(2)

got = attempt(lambda: (made.capture(-1, numbered(1) + 7), stored(made, 1))[1])
print("handed in:", "1 layer, ids [[7, 107]] of layer -1")
print("expected: ", "an error, and layer 0 as it was")
print("got:      ", f"accepted, layer 0 holds {got[0][0]}" if isinstance(got, list) else got)
sys.exit(isinstance(got, list))
