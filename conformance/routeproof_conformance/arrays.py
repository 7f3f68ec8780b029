"""Arrays as plain data, and what a collective is told of them."""

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from routeproof_spec import ArrayData, Collective

Operation = Literal["all_gather", "gather"]


MOVABLE = frozenset({"uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"})
"""Element types that both NCCL and gloo move (COL-06)."""


@lru_cache(maxsize=64)
def _names(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """Give the name of an element type and its little-endian form."""
    return dtype.name, dtype.newbyteorder("<")


def pack(array: NDArray[Any]) -> ArrayData:
    """Copy an array into plain data."""
    name, little = _names(array.dtype)
    return ArrayData(dtype=name, shape=array.shape, data=array.astype(little, copy=False).tobytes())


def unpack(data: ArrayData) -> NDArray[Any]:
    """Give the array back, read-only."""
    dtype = np.dtype(data.dtype).newbyteorder("<")
    return np.frombuffer(data.data, dtype=dtype).reshape(data.shape)


def describe(op: Operation, rows: Any) -> Collective:  # noqa: ANN401
    """Describe the input of a collective: a numpy array or a torch tensor."""
    if isinstance(rows, np.ndarray):
        dtype, contiguous = rows.dtype.name, bool(rows.flags.c_contiguous)
    else:
        dtype, contiguous = str(rows.dtype).removeprefix("torch."), bool(rows.is_contiguous())
    return Collective(op=op, dtype=dtype, shape=tuple(rows.shape), contiguous=contiguous)


def concatenate(parts: list[Any]) -> Any:  # noqa: ANN401
    """Concatenate along axis 0; the kind of array stays."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    import torch  # noqa: PLC0415 - an engine without torch must be testable without it

    return torch.cat(parts)
