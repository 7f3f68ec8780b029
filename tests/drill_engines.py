"""Engines that go wrong on real ranks, in one case of many: the fault drill.

Each is the reference until TP rank 1 of DP rank 0 begins a step of `TRIGGER` tokens.
"""

import os
import signal
import time

from routeproof_conformance.engines.own import ReferenceEngine
from routeproof_reference import ReferenceCapturer

TRIGGER = 9
"""T of DP rank 0 in the one step that goes wrong."""


class _Capturer(ReferenceCapturer):
    def __init__(self, config, rank, comm, fault):
        super().__init__(config, rank, comm)
        self.fault = fault
        self.comm = comm

    def capture(self, layer, ids, microbatch=0):
        here = (self.rank.dp, self.rank.tp, layer) == (0, 1, 0)
        if here and self._step is not None and self._step.counts and self._step.counts[0] == TRIGGER:
            self.fault(self, ids)
        super().capture(layer, ids, microbatch)


class _Rank:
    def __init__(self, capturer):
        self.capturer = capturer
        for name in ("begin_step", "capture", "end_step", "published"):
            setattr(self, name, getattr(capturer, name))

    def buffer(self):
        return self.capturer.buffer.copy()

    def close(self):
        pass


def _nothing(_capturer, _ids):
    pass


def _sleep(_capturer, _ids):
    time.sleep(3600)


def _die(_capturer, _ids):
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(_capturer, _ids):
    raise ValueError("no gather from me")


def _print(_capturer, _ids):
    os.write(1, b'\x00\xff{"garbage": ]\n')
    os.write(2, b"\x00\xff traceback of nothing\n")


def _gather_alone(capturer, ids):
    for _ in range(3):
        capturer.comm.all_gather(ids)


class _Drill(ReferenceEngine):
    fault = staticmethod(_nothing)

    def create(self, config, rank, comm):
        return _Rank(_Capturer(config, rank, comm, self.fault))


class Sleeps(_Drill):
    """Never comes back."""

    fault = staticmethod(_sleep)


class Killed(_Drill):
    """Its process is ended while the others wait in the gather."""

    fault = staticmethod(_die)


class Raises(_Drill):
    """Raises before its collective."""

    fault = staticmethod(_raise)


class PrintsGarbage(_Drill):
    """Writes to the file descriptors of stdout and stderr."""

    fault = staticmethod(_print)


class NeverAnswered(_Drill):
    """Joins a collective that no other rank ever joins."""

    fault = staticmethod(_gather_alone)


class Slow(_Drill):
    """Takes its time in every case, right all the same."""

    def create(self, config, rank, comm):
        time.sleep(0.2)
        return super().create(config, rank, comm)
