"""16-byte keys of ids: fifteen bytes of a short text, and its length in the last."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data import compiled


def texts(keys: NDArray[np.uint64]) -> pl.Series:
    """The texts that keys hold; a ValueError where one of them is not UTF-8."""
    import pyarrow as pa

    sizes = (keys[:, 1] >> np.uint64(56)).astype(np.int64)
    letters = keys.view(np.uint8).reshape(-1, 16)[np.arange(16) < sizes[:, None]]
    starts = compiled.starts_of(sizes)
    array = pa.LargeStringArray.from_buffers(len(keys), pa.py_buffer(starts), pa.py_buffer(letters))
    if len(letters) and letters.max() > 127:
        array.validate(full=True)
    return pl.Series(array)
