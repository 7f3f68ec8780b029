"""Running code on arrays of cases: every path of it, each on the cases that take it.

Where the code asks for a truth that holds for some cases only, the cases are split and each
part runs from the start. Nothing in the code is rewritten, and millions of cases take seconds.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class _Split(BaseException):
    """No error, a fork; code under examination must not catch it."""

    def __init__(self, truth: NDArray[np.bool_]) -> None:
        super().__init__()
        self.truth = truth


class Batch(np.ndarray[Any, Any]):
    """Numbers or truths, one per case."""

    def __bool__(self) -> bool:
        truth = np.asarray(self) != 0
        if truth.all():
            return True
        if not truth.any():
            return False
        raise _Split(truth)

    def __format__(self, spec: str) -> str:
        return "?"

    def __str__(self) -> str:
        """Stand for itself in an error message."""
        return "?"

    @classmethod
    def of(cls, values: Any) -> Self:  # noqa: ANN401
        """View an array as a batch."""
        return np.asarray(values).view(cls)


class Ran(NamedTuple):
    """The cases of one path, and what the code gave for them."""

    cases: NDArray[np.int64]
    """Which of the cases."""
    columns: tuple[Any, ...]
    """Their columns."""
    result: Any


def explore(code: Callable[..., Any], columns: tuple[Any, ...]) -> Iterator[Ran]:
    """Run `code(*columns)`; a column is an array [cases] or a value that all cases share."""
    size = max(len(column) for column in columns if isinstance(column, np.ndarray))
    waiting = [np.arange(size)]
    while waiting:
        index = waiting.pop()
        if not len(index):
            continue
        chosen = tuple(_of(column, index) for column in columns)
        try:
            result = code(*chosen)
        except _Split as split:
            waiting += [index[~split.truth], index[split.truth]]
            continue
        yield Ran(index, chosen, result)


def merge(ran: Iterable[Ran], columns: tuple[Any, ...]) -> Iterator[Ran]:
    """Put paths together whose results, named tuples of numbers, have the same first field."""
    found: dict[Any, list[Ran]] = {}
    for one in ran:
        found.setdefault(one.result[0], []).append(one)
    for first, parts in found.items():
        cases = np.concatenate([part.cases for part in parts])
        chosen = tuple(_of(column, cases) for column in columns)
        sizes = [len(part.cases) for part in parts]
        fields = (
            np.concatenate([np.broadcast_to(value, size) for value, size in zip(values, sizes, strict=True)])
            for values in zip(*(part.result[1:] for part in parts), strict=True)
        )
        yield Ran(cases, chosen, type(parts[0].result)(first, *(Batch.of(field) for field in fields)))


def _of(column: Any, cases: NDArray[np.int64]) -> Any:  # noqa: ANN401
    return Batch.of(column[cases]) if isinstance(column, np.ndarray) else column
