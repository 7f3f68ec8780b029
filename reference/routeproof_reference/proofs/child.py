"""Running a module in a Python process of its own that ends with this one, however this one ends.

The child's standard input is a pipe of which this process holds the other end: when that
closes, by `kill -9` too, the child exits.
"""

import os
import runpy
import subprocess
import sys
import threading


def run(
    module: str, *arguments: str, optimised: bool = False, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` and wait for it; raise subprocess.TimeoutExpired.

    Args:
        module: with a `__main__` part.
        arguments: for it.
        optimised: without assertions (`python -O`).
        timeout: in seconds.

    """
    start = ["-O"] if optimised else []
    command = [sys.executable, *start, "-c", f"from {__name__} import main; main()", module, *arguments]
    theirs, ours = os.pipe()
    try:
        return subprocess.run(  # noqa: S603 - own interpreter, own arguments
            command, stdin=theirs, capture_output=True, text=True, check=False, timeout=timeout
        )
    finally:
        os.close(theirs)
        os.close(ours)


def main() -> None:
    """In the child: run the module that the command line names."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
