"""What SGLang's functions touch: ids, the gather buffer, the device buffer, counts, published objects."""

from collections.abc import Callable
from functools import partial
from typing import Any

from routeproof_reference.proofs.target import Figures, Number

from routeproof_conformance.prove.fakes import Rows, layer_of, same
from routeproof_conformance.prove.shape import unknown

WIDTH = 8
"""Columns of all ids: widths are no matter of layouts."""


class Ids(Rows):
    """An ids tensor of known width."""

    @property
    def shape(self) -> tuple[Number, ...]:
        """Rows and columns."""
        return (self.length(), WIDTH)

    def size(self, dim: int) -> Number:
        """Give one of them."""
        return self.shape[dim]

    def clone(self) -> "Ids":
        """Give the rows as they are now."""
        return Ids(self.start, self.stop, self.gathered)

    def cpu(self) -> "Ids":
        """Give them on the host."""
        return self.clone()

    def __getitem__(self, key: object) -> "Ids":
        rows = super().__getitem__(key)
        return Ids(rows.start, rows.stop, rows.gathered)


class Place(Ids):
    """The first rows of the gather buffer: stale, as rows behind those handed over, until filled."""

    def __init__(self, f: Figures, length: Number) -> None:
        """Hold nothing of this step."""
        super().__init__(f.n, f.n + length, gathered=False)

    def fill(self) -> None:
        """Hold what the TP group handed over."""
        self.start, self.stop, self.gathered = 0, self.length(), True


class GatherBuffer:
    """The gather buffer: gives places at its beginning."""

    def __init__(self, f: Figures) -> None:
        """Serve one step."""
        self.f = f

    def __getitem__(self, key: object) -> Place:
        if not isinstance(key, slice) or key.start is not None or key.step is not None:
            unknown(f"the gather buffer is indexed with {key!r}")
        return Place(self.f, key.stop)


class Buffer:
    """The device buffer: takes one write of rows at a layer, then gives rows of all layers."""

    def __init__(self, layers: Number) -> None:
        """Start with nothing written."""
        self.shape = (object(), layers, WIDTH)
        self.written: tuple[Number, Rows] | None = None
        self.layer: Number = 0

    def __setitem__(self, key: object, rows: object) -> None:
        if not isinstance(key, tuple) or len(key) != 3 or key[2] != slice(None):  # noqa: PLR2004
            unknown(f"the buffer is written at {key!r}")
        if not isinstance(key[0], slice) or isinstance(key[1], (slice, bool)) or key[0].step is not None:
            unknown(f"the buffer is written at {key!r}")
        if not isinstance(rows, Rows):
            unknown(f"a {type(rows).__name__} is written to the buffer")
        if self.written is not None:
            unknown("the buffer is written twice in one call")
        start = 0 if key[0].start is None else key[0].start
        if not same(key[0].stop - start, rows.length()):
            unknown("the rows written are not as many as the place for them")
        self.layer = layer_of(key[1], self.shape[1])
        self.written = (start, Rows(rows.start, rows.stop, rows.gathered))

    def __getitem__(self, key: object) -> Ids:
        whole = (slice(None), slice(None, WIDTH))
        if not isinstance(key, tuple) or not isinstance(key[0], slice) or key[1:] != whole:
            unknown(f"the buffer is read at {key!r}")
        if self.written is None:
            unknown("the buffer is read before it is written")
        first, last = 0 if key[0].start is None else key[0].start, key[0].stop
        if first < 0:
            unknown("the buffer is read from its end")
        last = max(last, first)
        place, rows = self.written
        return Ids(rows.start + first - place, rows.start + last - place, rows.gathered)


class Slots:
    """Where the host cache keeps the tokens of a step."""

    def __init__(self, what: str, tokens: Number) -> None:
        """Name them; one slot a token."""
        self.what, self.shape = what, (tokens,)

    def clone(self) -> "Slots":
        """Give the same slots."""
        return self

    cpu = clone


class HostBuffer:
    """The host cache's buffer: takes one write of rows."""

    def __init__(self, slots: Slots) -> None:
        """Expect them at these slots."""
        self.slots = slots
        self.rows: Rows | None = None

    def __setitem__(self, key: object, rows: object) -> None:
        if not isinstance(rows, Rows) or key is not self.slots:
            named = key.what if isinstance(key, Slots) else type(key).__name__
            unknown(f"a {type(rows).__name__} is kept at {named}, expected rows at {self.slots.what}")
        if self.rows is not None:
            unknown("the host cache is written twice in one step")
        self.rows = rows


class PerRank:
    """Token counts per DP rank, a list: how many, the own one, and the sum of those before."""

    def __init__(self, f: Figures, own: Number, before: Number) -> None:
        """Stand for the list."""
        self.f, self.own, self.before = f, own, before

    def length(self) -> Number:
        """Give the DP size."""
        return self.f.dp

    def __getitem__(self, key: object) -> Any:  # noqa: ANN401 - a number, or a part of the list
        if not isinstance(key, slice):
            if not same(key, self.f.dp_rank):
                unknown("the token count of another DP rank is read")
            return self.own
        if key.start is not None or key.step is not None or not same(key.stop, self.f.dp_rank):
            unknown("token counts are sliced elsewhere than before this DP rank")
        return Before(self.before)


class Before:
    """The counts of the DP ranks before."""

    def __init__(self, tokens: Number) -> None:
        """Keep their sum."""
        self.tokens = tokens

    def total(self) -> Number:
        """Add them up."""
        return self.tokens


class Published:
    """An object of a published class: attributes, and methods that are compiled as they are called."""

    def __init__(
        self, what: str, method: Callable[[str], Callable[..., Any] | None], **state: object
    ) -> None:
        """Name it, for messages."""
        self.__dict__.update(state, _what=what, _method=method)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        made = self.__dict__["_method"](name)
        if made is None:
            unknown(f"the code reads {name!r} of the {self.__dict__['_what']}")
        return partial(made, self.__dict__.get("_self", self))
