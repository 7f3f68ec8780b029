"""Capturers with one fault each: a right toy with one method replaced. The class name says the fault.

`tests.faulty_engines:Truncates` names one on the command line, with the repository on PYTHONPATH.
"""

# ruff: noqa: ARG002 - a fault is often to ignore an argument
import importlib

import numpy as np
from routeproof_spec import Layout, Surface

from tests.toy_engines import ORDER, PerLayerCapturer, ToyEngine


def engine(capturer):
    """Turn a faulty capturer into an engine of the same name."""
    sources = ("tests.faulty_engines", "tests.toy_engines")
    body = {"capturer": capturer, "sources": sources, "__module__": __name__, "__doc__": capturer.__doc__}
    return type(capturer.__name__, (ToyEngine,), body)


# --- layout


@engine
class WritesOnlyItsShard(PerLayerCapturer):
    def gathers(self, name, own):
        return False


@engine
class CopiesWhateverComes(PerLayerCapturer):
    """Takes the rows handed over for the batch: no layout is known at all."""

    def locate(self, n, counts, sizes):
        return 0, False


@engine
class AcceptsAnyCount(PerLayerCapturer):
    def locate(self, n, counts, sizes):
        fits = self.fitting(n, self.options(counts, sizes))
        return super().locate(n, counts, sizes) if fits else (0, False)


@engine
class CountsByTheMask(PerLayerCapturer):
    def parts(self):
        if self.step.padding_mask is None:
            return super().parts()
        counts = list(self.step.counts)
        counts[self.rank.dp] = len(self.step.padding_mask)
        return ((0, tuple(counts), self.step.shard_sizes),)


@engine
class GathersInReverse(PerLayerCapturer):
    def gather(self, ids):
        return np.concatenate(np.split(super().gather(ids), self.comm.size)[::-1])


@engine
class TakesAnotherGroup(PerLayerCapturer):
    """Takes the rows of the DP rank before its own, of the last one at the first."""

    def options(self, counts, sizes):
        found = super().options(counts, sizes)
        dp, tp = (self.rank.dp - 1) % len(counts), self.comm.size
        found["CROSS_DP"] = (sum(counts), sum(counts[:dp]))
        if sizes is not None:
            found["GATHERED_SHARDS"] = (sum(sizes), sum(sizes[: dp * tp]))
        return found


@engine
class CountsTokensWhereShardsArePadded(PerLayerCapturer):
    """Begins at the sum of earlier tokens, not of earlier shards."""

    def options(self, counts, sizes):
        found = super().options(counts, sizes)
        if sizes is not None:
            found["GATHERED_SHARDS"] = (sum(sizes), sum(counts[: self.rank.dp]))
        return found


@engine
class KeepsTheLastRows(PerLayerCapturer):
    """Trims padding in front, where there is none."""

    def check_meaning(self, n, own, starts):
        return None

    def options(self, counts, sizes):
        found = super().options(counts, sizes)
        n = found["PADDED_LOCAL"][0]
        return {**found, "PADDED_LOCAL": (n, n - counts[self.rank.dp])}


@engine
class TakesTheFirstMatch(PerLayerCapturer):
    def check_meaning(self, n, own, starts):
        return None


@engine
class TriesShardsFirst(PerLayerCapturer):
    def fitting(self, n, options):
        return sorted(super().fitting(n, options), key=ORDER.index, reverse=True)

    def gathers(self, name, own):
        return name == Layout.TP_SHARD and self.comm.size > 1


@engine
class IgnoresTheDeclaration(PerLayerCapturer):
    def begin_step(self, step):
        super().begin_step(step.model_copy(update={"declared": None}))


@engine
class ReadsMalformedGroups(PerLayerCapturer):
    def grouped(self, counts, sizes):
        return True


class _RaisesForGroups(PerLayerCapturer):
    error: type[Exception]

    def grouped(self, counts, sizes):
        if not super().grouped(counts, sizes):
            raise self.error(f"shard sizes {sizes}")
        return True


@engine
class RuntimeErrorForGroups(_RaisesForGroups):
    error = RuntimeError


@engine
class TypeErrorForGroups(_RaisesForGroups):
    error = TypeError


@engine
class RejectsUncounted(PerLayerCapturer):
    """Says pass-through and rejects."""

    def check(self, layer, ids, microbatch):
        if self.step.counts is None:
            raise ValueError("no token count is known")
        return super().check(layer, ids, microbatch)


class SaysItRejectsUncounted(ToyEngine):
    capturer = PerLayerCapturer
    uncounted = "reject"


class HonestlyRejectsUncounted(ToyEngine):
    """Right: says that it rejects, and does."""

    capturer = RejectsUncounted.capturer
    uncounted = "reject"


@engine
class RejectsEmptyBatches(PerLayerCapturer):
    def check(self, layer, ids, microbatch):
        if not len(ids):
            raise ValueError("an empty batch")
        return super().check(layer, ids, microbatch)


@engine
class WritesWhereItHasNoToken(PerLayerCapturer):
    def capture(self, layer, ids, microbatch=0):
        super().capture(layer, ids, microbatch)
        if len(ids) and self.step.counts and self.step.counts[self.rank.dp] == 0:
            self.store[0, layer] = ids[0, : self.config.top_k]


# --- collectives


@engine
class LeavesOneRankOut(PerLayerCapturer):
    def gather(self, ids):
        return np.concatenate([ids] * self.comm.size) if self.rank.tp == 1 else super().gather(ids)


@engine
class RaisesOnOneRank(PerLayerCapturer):
    def gather(self, ids):
        if self.rank.tp == 1:
            raise ValueError("a fault of this rank alone")
        return super().gather(ids)


@engine
class NarrowsOnOneRank(PerLayerCapturer):
    def gather(self, ids):
        return super().gather(ids.astype(np.uint8) if self.rank.tp == 0 else ids)


@engine
class GathersWholeRows(PerLayerCapturer):
    def gathers(self, name, own):
        return self.comm.size > 1 and name in (Layout.FULL, Layout.TP_SHARD)


@engine
class GathersTwiceACall(PerLayerCapturer):
    def gather(self, ids):
        super().gather(np.array([len(ids)], np.int64))
        return super().gather(ids)


@engine
class GathersBeforeItChecks(PerLayerCapturer):
    def capture(self, layer, ids, microbatch=0):
        _, _, _, gather = self.check(0, ids[:, :1].repeat(self.config.width, axis=1), microbatch)
        self.gathered = super().gather(ids) if gather else None
        super().capture(layer, ids, microbatch)

    def gather(self, ids):
        return self.gathered


@engine
class GathersAView(PerLayerCapturer):
    def gather(self, ids):
        return self.comm.all_gather(ids)


@engine
class GathersHalfWords(PerLayerCapturer):
    def gather(self, ids):
        return super().gather(ids.astype(np.uint16))


@engine
class ReadsIdsOnTheHost(PerLayerCapturer):
    """Asks torch for the largest id before it captures."""

    def capture(self, layer, ids, microbatch=0):
        torch = importlib.import_module("torch")
        torch.from_numpy(ids).to(self.comm.device).max().item()
        super().capture(layer, ids, microbatch)


ReadsIdsOnTheHost.capabilities = ToyEngine.capabilities | {"device-tensors"}


# --- buffer


@engine
class WritesBeforeItChecks(PerLayerCapturer):
    def capture(self, layer, ids, microbatch=0):
        if ids.shape[1] == self.config.top_k and 0 <= layer < self.config.layers:
            self.store[: len(ids), layer] = ids[: len(self.store)]
        super().capture(layer, ids, microbatch)


@engine
class TakesNegativeLayers(PerLayerCapturer):
    def check_layer(self, layer):
        super().check_layer(max(layer, 0))


@engine
class IgnoresLayersBeyond(PerLayerCapturer):
    def capture(self, layer, ids, microbatch=0):
        if layer < self.config.layers:
            super().capture(layer, ids, microbatch)


@engine
class Truncates(PerLayerCapturer):
    def check_room(self, rows):
        return None

    def write(self, layer, offset, rows):
        super().write(layer, offset, rows[: max(0, self.config.max_tokens - offset)])


@engine
class IgnoresOffsets(PerLayerCapturer):
    def write(self, layer, offset, rows):
        super().write(layer, 0, rows)


@engine
class FillsWithOnes(PerLayerCapturer):
    def end_step(self):
        rows = self.store.copy()
        rows[:, [layer for layer in range(self.config.layers) if layer not in self.layers]] = 1
        self.publish(rows)


@engine
class BroadcastsWidthOne(PerLayerCapturer):
    def check_width(self, width):
        if width != 1:
            super().check_width(width)


@engine
class KeepsSharedColumns(PerLayerCapturer):
    def write(self, layer, offset, rows):
        super().write(layer, offset, rows[:, -self.config.top_k :])


KeepsSharedColumns.surfaces = frozenset({Surface.CAPTURER, Surface.ROUTER})
KeepsSharedColumns.capabilities = ToyEngine.capabilities | {"shared-experts"}


# --- snapshots and ids


@engine
class PublishesAView(PerLayerCapturer):
    def __init__(self, config, rank, comm):
        super().__init__(config, rank, comm)
        self.store = self.store.astype(self.element())

    def end_step(self):
        if self.rank.tp == 0:
            self.snapshot = self.store[: self.step.real[self.rank.dp]]


@engine
class PublishesGraphPadding(PerLayerCapturer):
    def end_step(self):
        step = self.step
        self.step = step.model_copy(update={"real": step.counts or step.real, "microbatches": ()})
        super().end_step()


@engine
class DropsTheLastRow(PerLayerCapturer):
    def publish(self, rows):
        super().publish(rows)
        self.snapshot = None if self.snapshot is None else self.snapshot[:-1]


@engine
class PublishesOnEveryRank(PerLayerCapturer):
    def publish(self, rows):
        taken = np.concatenate([rows[a:b] for a, b in self.step.spans(self.rank.dp)])
        self.snapshot = taken.astype(self.element())


@engine
class PublishesWords(PerLayerCapturer):
    def element(self):
        return np.int32


@engine
class NarrowsByTheLargestId(PerLayerCapturer):
    def element(self):
        return np.uint8 if self.store.max(initial=0) < 256 else np.uint16


class TakesAnyNumberOfExperts(ToyEngine):
    capturer = PerLayerCapturer

    def create(self, config, rank, comm):
        return self.capturer(config, rank, comm)


@engine
class WrapsIds(PerLayerCapturer):
    def check_ids(self, rows):
        return None


@engine
class SortsColumns(PerLayerCapturer):
    def write(self, layer, offset, rows):
        super().write(layer, offset, np.sort(rows, axis=1))


# --- gate


@engine
class AssertsInPlaceOfChecks(PerLayerCapturer):
    def check_layer(self, layer):
        assert 0 <= layer < self.config.layers, layer

    def check_width(self, width):
        assert width == self.config.width, width
