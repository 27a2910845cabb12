"""16-byte keys of ids: fifteen bytes of a short text, and its length in the last."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data import compiled

_INLINE = 12  # Arrow keeps texts of up to so many bytes within the 16 of their view
_BEYOND_ASCII = np.uint64(0x8080808080808080)


def texts(keys: NDArray[np.uint64]) -> pl.Series:
    """The texts that keys hold; a ValueError where one of them is not UTF-8."""
    sizes = keys[:, 1] >> np.uint64(56)
    array = _views(keys, sizes) if not len(keys) or sizes.max() <= _INLINE else _letters(keys, sizes)
    if any(np.bitwise_or.reduce(half) & _BEYOND_ASCII for half in keys.T):
        array.validate(full=True)
    return pl.Series(array)


def _views(keys: NDArray[np.uint64], sizes: NDArray[np.uint64]) -> Any:
    """Short texts as Arrow's views: the length in four bytes, then the text."""
    import pyarrow as pa

    half = np.uint64(32)
    views = np.empty_like(keys)
    views[:, 0] = sizes | (keys[:, 0] << half)
    views[:, 1] = (keys[:, 0] >> half) | (keys[:, 1] << half)
    return pa.Array.from_buffers(pa.string_view(), len(keys), [None, pa.py_buffer(views)])


def _letters(keys: NDArray[np.uint64], sizes: NDArray[np.uint64]) -> Any:
    """Texts of any length, one after another."""
    import pyarrow as pa

    letters = keys.view(np.uint8).reshape(-1, 16)[np.arange(16) < sizes[:, None]]
    starts = compiled.starts_of(sizes.astype(np.int64))
    return pa.LargeStringArray.from_buffers(len(keys), pa.py_buffer(starts), pa.py_buffer(letters))
