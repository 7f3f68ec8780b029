"""Running code on arrays of cases: every path of it, each on the cases that take it.

Where the code asks for a truth that holds for some cases only, the cases are split and each
part runs from the start. Nothing in the code is rewritten, and millions of cases take seconds.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class _Split(Exception):  # noqa: N818 - no error, a fork
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
        chosen = tuple(
            Batch.of(column[index]) if isinstance(column, np.ndarray) else column for column in columns
        )
        try:
            result = code(*chosen)
        except _Split as split:
            waiting += [index[~split.truth], index[split.truth]]
            continue
        yield Ran(index, chosen, result)
