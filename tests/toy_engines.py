"""Three small capturers in numpy, each right in its own way; none shares code with the reference.

`PerLayer` gathers in every call, `Deferred` once at the end of the step, and `Unreadable` has no
buffer that anyone could read. `tests.toy_engines:PerLayer` names the first on the command line,
with the repository on PYTHONPATH.
"""

import numpy as np
from routeproof_spec import ElementType, EngineProfile, Layout, Surface

ORDER = ("CROSS_DP", "FULL", "GATHERED_SHARDS", "PADDED_TO_MAX", "TP_SHARD", "PADDED_LOCAL")


class Base:
    """The decision what to do with n rows, and the snapshot; subclasses keep and move rows."""

    def __init__(self, config, rank, comm) -> None:
        self.config, self.rank, self.comm = config, rank, comm
        self.layers: set[int] = set()
        self.snapshot = None

    def begin_step(self, step) -> None:
        self.step, self.layers, self.snapshot = step, set(), None
        for offset, counts, _ in self.parts():
            self.check_room(offset + (counts[self.rank.dp] if counts else 0))

    def parts(self):
        step = self.step
        whole = ((0, step.counts, step.shard_sizes),)
        return tuple((part.offset, part.counts, part.shard_sizes) for part in step.microbatches) or whole

    def check_room(self, rows) -> None:
        if rows > self.config.max_tokens:
            raise ValueError(f"{rows} rows, {self.config.max_tokens} in the buffer")

    def check_layer(self, layer) -> None:
        if not 0 <= layer < self.config.layers:
            raise IndexError(f"layer {layer} of {self.config.layers}")

    def check_width(self, width) -> None:
        if width != self.config.top_k + self.config.shared_columns:
            raise ValueError(f"{width} columns, not {self.config.top_k} + {self.config.shared_columns}")

    def options(self, counts, sizes):
        """Give (rows handed over, first own row) of each layout that can be meant."""
        dp, tp, own = self.rank.dp, self.comm.size, counts[self.rank.dp]
        s = -(-own // tp)
        found = {
            "CROSS_DP": (sum(counts), sum(counts[:dp])),
            "FULL": (own, 0),
            "PADDED_TO_MAX": (len(counts) * max(counts), dp * max(counts)),
            "TP_SHARD": (s, 0),
            "PADDED_LOCAL": (s * tp, 0),
        }
        if sizes is not None:
            found["GATHERED_SHARDS"] = (sum(sizes), sum(sizes[: dp * (len(sizes) // len(counts))]))
        return found

    def fitting(self, n, options):
        """List the layouts of the set that have n rows, by precedence."""
        allowed = {self.step.declared} if self.step.declared else self.config.layouts_at(len(self.step.real))
        return [name for name in ORDER if name in allowed and options.get(name, (None, 0))[0] == n]

    def grouped(self, counts, sizes) -> bool:
        """Say whether the shard sizes form groups that hold this DP rank's rows."""
        per = len(sizes) // len(counts)
        mine = sizes[self.rank.dp * per : (self.rank.dp + 1) * per]
        return len(sizes) % len(counts) == 0 and min(sizes) >= 0 and sum(mine) >= counts[self.rank.dp]

    def locate(self, n, counts, sizes):
        """Give the first own row and whether the group must gather first."""
        options = self.options(counts, sizes)
        names = self.fitting(n, options)
        if not names:
            raise ValueError(f"{n} rows fit nothing: {options}")
        if Layout.GATHERED_SHARDS in names and not self.grouped(counts, sizes):
            if names[0] == Layout.GATHERED_SHARDS:
                raise ValueError(f"shard sizes {sizes} form no groups for {len(counts)} DP ranks")
            names.remove(Layout.GATHERED_SHARDS)
        self.check_meaning(n, counts[self.rank.dp], {options[name][1] for name in names})
        return options[names[0]][1], self.gathers(names[0], counts[self.rank.dp])

    def check_meaning(self, n, own, starts) -> None:
        if own and len(starts) > 1:
            raise ValueError(f"{n} rows can begin at any of {sorted(starts)}")

    def gathers(self, name, own) -> bool:
        return name == Layout.TP_SHARD and own > 1 and self.comm.size > 1

    def check(self, layer, ids, microbatch):
        """Judge a call before anything moves; give (offset, first own row, rows, gather)."""
        self.check_layer(layer)
        self.check_width(ids.shape[1])
        offset, counts, sizes = self.parts()[microbatch]
        if counts is None:
            start, rows, gather = 0, len(ids), False
        else:
            rows = counts[self.rank.dp]
            start, gather = self.locate(len(ids), counts, sizes)
        self.check_room(offset + rows)
        return offset, start, rows, gather

    def element(self):
        return np.uint8 if self.config.experts <= 256 else np.uint16

    def publish(self, rows) -> None:
        """Keep the real rows [tokens, L, K] at the publisher; an id out of range is an error."""
        if self.rank.tp == 0:
            taken = np.concatenate([rows[a:b] for a, b in self.step.spans(self.rank.dp)])
            self.check_ids(taken)
            self.snapshot = taken.astype(self.element())

    def check_ids(self, rows) -> None:
        if rows.size and not 0 <= rows.min() <= rows.max() < self.config.experts:
            raise ValueError(f"ids reach from {rows.min()} to {rows.max()}, not in 0..E-1")

    def published(self):
        return self.snapshot

    def buffer(self):
        return None

    def close(self) -> None:
        self.comm = None


class PerLayerCapturer(Base):
    """One gather for every call that needs one; one buffer for ever."""

    def __init__(self, config, rank, comm) -> None:
        super().__init__(config, rank, comm)
        self.store = np.zeros((config.max_tokens, config.layers, config.top_k), np.int64)

    def capture(self, layer, ids, microbatch=0) -> None:
        offset, start, rows, gather = self.check(layer, ids, microbatch)
        whole = self.gather(ids) if gather else ids
        self.write(layer, offset, whole[start : start + rows])

    def gather(self, ids):
        return self.comm.all_gather(np.ascontiguousarray(ids))

    def write(self, layer, offset, rows) -> None:
        self.store[offset : offset + len(rows), layer] = rows[:, : self.config.top_k]
        self.layers.add(layer)

    def end_step(self) -> None:
        rows = self.store.copy()
        rows[:, [layer for layer in range(self.config.layers) if layer not in self.layers]] = 0
        self.publish(rows)

    def buffer(self):
        return self.store.copy()


class DeferredCapturer(PerLayerCapturer):
    """Keeps what calls hand over and moves all shards of the step at once, to the publisher alone."""

    def begin_step(self, step) -> None:
        self.pending: list[tuple] = []
        super().begin_step(step)

    def capture(self, layer, ids, microbatch=0) -> None:
        self.pending.append((layer, ids.astype(np.int64), *self.check(layer, ids, microbatch)))

    def end_step(self) -> None:
        shards = [ids for _, ids, *_, gather in self.pending if gather]
        moved = self.comm.gather(np.concatenate(shards)) if shards else None
        blocks = np.split(moved, self.comm.size) if moved is not None else []
        done = 0
        for layer, ids, offset, start, rows, gather in self.pending:
            whole = ids
            if gather:
                if blocks:
                    whole = np.concatenate([block[done : done + len(ids)] for block in blocks])
                done += len(ids)
            self.write(layer, offset, whole[start : start + rows])
        super().end_step()


class UnreadableCapturer(Base):
    """Keeps the rows of a step in a list, layer by layer, and nothing between steps."""

    def begin_step(self, step) -> None:
        self.calls: list[tuple] = []
        super().begin_step(step)

    def capture(self, layer, ids, microbatch=0) -> None:
        offset, start, rows, gather = self.check(layer, ids, microbatch)
        parts = [self.comm.all_gather(np.ascontiguousarray(ids))] if gather else [ids]
        self.calls.append((layer, offset, np.concatenate(parts)[start : start + rows, : self.config.top_k]))

    def end_step(self) -> None:
        extent = max((offset + len(rows) for _, offset, rows in self.calls), default=0)
        whole = np.zeros((extent, self.config.layers, self.config.top_k), np.int64)
        for layer, offset, rows in self.calls:
            whole[offset : offset + len(rows), layer] = rows
        self.publish(whole)


class ToyEngine:
    """The adapter: one class for all."""

    capturer = PerLayerCapturer
    sources: tuple[str, ...] = ("tests.toy_engines",)
    surfaces = frozenset({Surface.CAPTURER})
    uncounted = "pass-through"
    capabilities = frozenset(
        {
            "microbatches",
            "staged-microbatches",
            "declared-layouts",
            "layout-sets",
            "padded-to-max",
            "shared-columns",
        }
    )

    def __init__(self) -> None:
        self.profile = EngineProfile(
            name=type(self).__name__,
            version="1",
            digest="0" * 64,
            surfaces=self.surfaces,
            capabilities=self.capabilities,
            uncounted=self.uncounted,
            element_types=(
                ElementType(dtype="uint8", experts=256),
                ElementType(dtype="uint16", experts=65_536),
            ),
            sources=self.sources,
        )

    def create(self, config, rank, comm):
        if config.experts > 65_536:
            raise ValueError(f"E = {config.experts} does not fit two bytes")
        return self.capturer(config, rank, comm)


class PerLayer(ToyEngine):
    capturer = PerLayerCapturer


class Deferred(ToyEngine):
    capturer = DeferredCapturer


class Unreadable(ToyEngine):
    capturer = UnreadableCapturer
    capabilities = frozenset({"microbatches"})
