"""Where reports go: stdout is theirs alone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import UnsupportedOperation
from typing import TextIO


@contextmanager
def report_stream() -> Iterator[TextIO]:
    """Give stdout to the report; whatever an engine prints meanwhile goes to stderr.

    That holds for what Python prints and for what is written to the file descriptor, here and
    in processes forked inside the block.
    """
    original = sys.stdout
    try:
        owned = original.fileno() == 1
    except (UnsupportedOperation, ValueError):
        owned = False
    if not owned:
        with redirect_stdout(sys.stderr):
            yield original
        return
    original.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(
            kept, "w", encoding=original.encoding, errors=original.errors, closefd=False
        ) as stream:
            with redirect_stdout(sys.stderr):
                yield stream
            stream.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
