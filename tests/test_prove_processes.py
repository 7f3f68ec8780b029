"""No process of `routeproof prove` outlives it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROC = Path("/proc")
pytestmark = pytest.mark.skipif(not PROC.is_dir(), reason="processes are looked up in /proc")

START_SECONDS = 60.0
END_SECONDS = 5.0
WITHOUT_ASSERTIONS = "-O"


def parent_and_age(pid):
    """Give the parent and the start time of a process; None where it is gone, a zombie too."""
    try:
        state, parent, *rest = (PROC / str(pid) / "stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else (int(parent), rest[17])


def descendants(pid):
    """Give the processes below one, each with its start time: a pid may be used again."""
    alive = {int(path.name): parent_and_age(path.name) for path in PROC.iterdir() if path.name.isdigit()}
    below, found = [pid], {}
    while below:
        parent = below.pop()
        children = {child: seen[1] for child, seen in alive.items() if seen and seen[0] == parent}
        found |= children
        below += children
    return found


def words(pid):
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def left(found):
    return {pid: words(pid) for pid, age in found.items() if (parent_and_age(pid) or (0, ""))[1] == age}


@pytest.fixture
def start():
    """Start `routeproof prove`, and give it with all its processes once they work."""
    pytest.importorskip("torch")
    started = []

    def begin(jobs):
        names = "differential-optimised,differential" if jobs > 1 else "differential-optimised"
        command = [sys.executable, "-m", "routeproof_conformance", "prove", "--only", names]
        process = subprocess.Popen(
            [*command, "--jobs", str(jobs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        found = {}
        while time.monotonic() < deadline and process.poll() is None:
            found = descendants(process.pid)
            if any(WITHOUT_ASSERTIONS in words(pid) for pid in found) and len(found) >= jobs + 2 * (jobs > 1):
                break
            time.sleep(0.05)
        started.append((process, found))
        assert any(WITHOUT_ASSERTIONS in words(pid) for pid in found), found
        return process, found

    yield begin
    for process, found in started:
        process.kill()
        for pid in left(found):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def assert_gone(found):
    deadline = time.monotonic() + END_SECONDS
    while left(found) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(found)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_alone_it_leaves_no_process(start, jobs, how):
    process, found = start(jobs)
    os.kill(process.pid, how)
    assert process.wait(END_SECONDS) == -how
    assert_gone(found)


def test_a_worker_that_is_killed_leaves_no_process_of_its_own(start):
    _, found = start(2)
    child = next(pid for pid in found if WITHOUT_ASSERTIONS in words(pid))
    worker, _ = parent_and_age(child)
    assert worker in found
    os.kill(worker, signal.SIGKILL)
    assert_gone({worker: found[worker], child: found[child]})


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_it_says_so_in_one_line(start, jobs):
    process, found = start(jobs)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
    out, err = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, out) == (3, "")
    assert err.splitlines() == [f"routeproof: interrupted after 0 of {jobs} obligations"]
    assert_gone(found)
