"""Damaged headers of Parquet files, which make Polars abort the process, are refused before it reads."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hdccf
from hdccf.data.parquet import check_headers, read_parquet
from hdccf.errors import SourceError

ROWS = 25


def written(path: Path, compression: str = "uncompressed") -> bytearray:
    numbers = np.arange(ROWS) % 7
    pl.DataFrame({"user": numbers, "item": numbers}).write_parquet(path, compression=compression)  # type: ignore[arg-type]
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_a_negative_number_of_values_is_refused(compression: str, tmp_path: Path) -> None:
    """One bit of the first data page's header; Polars alone asks for 2·10¹⁸ bytes and ends the process."""
    path = tmp_path / "log.parquet"
    data = written(path, compression)
    data[data.index(2 * ROWS)] ^= 1  # zigzag: 25 becomes −26
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"log\.parquet is truncated or damaged .*claims -26 values"):
        hdccf.read(path)
    with pytest.raises(pl.exceptions.ComputeError, match="claims -26 values"):
        read_parquet(path)


def test_every_changed_byte_of_a_header_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    data = written(path)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in [*range(4, 120), *range(footer, len(data), 3)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :])
        with suppress(pl.exceptions.PolarsError):
            read_parquet(path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_whole_files_of_other_writers_pass(version: str, dictionary: bool, tmp_path: Path) -> None:
    """Nested columns, missing values, several pages and row groups, a dictionary of unused values."""
    categories = pa.array([f"v{n}" for n in range(900)])
    table = pa.table(
        {
            "user": ["a", None, "c"] * 200,
            "liked": [True, False, None] * 200,
            "tags": [[1, 2], [], None] * 200,
            "kind": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2] * 200, pa.int32()), categories),
        }
    )
    path = tmp_path / "log.parquet"
    for rows in (table, table.slice(0, 0)):
        pq.write_table(
            rows,
            path,
            data_page_version=version,
            use_dictionary=dictionary,
            data_page_size=64,
            row_group_size=250,
            write_page_index=True,
        )
        check_headers(path)
