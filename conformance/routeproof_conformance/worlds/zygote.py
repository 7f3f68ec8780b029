"""A process that rank processes are forked from.

It is started before this process has threads or has made torch compute: a fork after that
can hang. Pools of ranks are forked from it in milliseconds, as often as one is lost.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 5.0
"""How long the zygote may take to end."""

RankMain = Callable[[int, Any, Connection], None]
"""What a forked rank does: its number, what the pool was asked for, and its line to the parent."""


def _die_with_parent() -> None:
    """Ask the kernel (Linux) to kill this process when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Zygote:
    """The parent's handle."""

    def __init__(self, main: RankMain) -> None:
        """Fork it; `main` and all it needs are inherited."""
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _serve(theirs, main)
        theirs.close()
        self._socket = ours
        self._line = Connection(os.dup(ours.fileno()))

    def fork(self, size: int, job: Any) -> tuple[list[int], list[Connection]]:  # noqa: ANN401
        """Fork `size` ranks; give their pids and lines."""
        pairs = [socket.socketpair() for _ in range(size)]
        self._line.send(("fork", size, job))
        socket.send_fds(self._socket, [b"x"], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        pids: list[int] = self._line.recv()
        return pids, [Connection(ours.detach()) for ours, _ in pairs]

    def reap(self, pids: list[int]) -> dict[int, int]:
        """Kill what is left of these processes; give how each ended, as `os.waitstatus_to_exitcode` says."""
        self._line.send(("reap", pids))
        ended: dict[int, int] = self._line.recv()
        return ended

    def close(self) -> None:
        """End the zygote and all that it forked."""
        self._line.close()
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _serve(control: socket.socket, main: RankMain) -> None:
    """Run the zygote; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _die_with_parent()
        code = _loop(control, main)
    finally:
        os._exit(code)


def _loop(control: socket.socket, main: RankMain) -> int:
    line = Connection(os.dup(control.fileno()))
    children: set[int] = set()
    while True:
        try:
            what, *rest = line.recv()
        except (EOFError, OSError):
            _reap(children, children)
            return 0
        if what == "fork":
            size, job = rest
            _, descriptors, _, _ = socket.recv_fds(control, 1, size)
            pids = [_fork(number, job, descriptors, main, (control, line)) for number in range(size)]
            for descriptor in descriptors:
                os.close(descriptor)
            children.update(pids)
            line.send(pids)
        else:
            line.send(_reap(children, set(rest[0])))


def _fork(
    number: int,
    job: Any,  # noqa: ANN401
    descriptors: list[int],
    main: RankMain,
    inherited: tuple[Any, ...],
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _die_with_parent()
        for thing in inherited:
            thing.close()
        for other, descriptor in enumerate(descriptors):
            if other != number:
                os.close(descriptor)
        main(number, job, Connection(descriptors[number]))
        code = 0
    finally:
        os._exit(code)


def _reap(children: set[int], pids: set[int]) -> dict[int, int]:
    """Kill and collect; a process that ended by itself keeps its own exit code."""
    ended = {}
    for pid in sorted(pids & children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done == 0:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        ended[pid] = os.waitstatus_to_exitcode(status)
        children.discard(pid)
    return ended
