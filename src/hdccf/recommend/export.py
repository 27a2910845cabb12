"""What a run has learned and what it recommends, as files that anything can read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.files import atomic_directory, atomic_file, write_json
from hdccf.models.base import Model, Scorer, VectorScorer
from hdccf.similarity import SIMILARITIES

FORMATS = ("parquet", "numpy")
ROWS_IN_A_GROUP = 1 << 17


def export_vectors(
    path: Path,
    model: Model,
    scorer: Scorer,
    train: Interactions,
    about: dict[str, Any],
    *,
    file_format: str = "parquet",
    overwrite: bool = False,
) -> None:
    """Vectors and vocabularies into a folder, all or nothing, with a meta.json that says what they are."""
    if file_format not in FORMATS:
        raise ConfigError(f"format={file_format!r} is unknown; choose one of {list(FORMATS)}")
    tables = model.export_tables(scorer)
    with atomic_directory(path, overwrite=overwrite) as folder:
        for kind, ids in (("users", train.user_ids), ("items", train.item_ids)):
            columns = {"id": ids}
            if kind == "items" and train.titles is not None:
                columns["title"] = train.titles
            write = _write_parquet if file_format == "parquet" else _write_numpy
            write(folder, kind, columns, tables.get(kind, {}))
        contents = {
            kind: {name: list(tensor.shape) for name, tensor in found.items()}
            for kind, found in tables.items()
        }
        write_json(folder / "meta.json", {**about, "format": file_format, "contents": contents})


def similarity_name(scorer: Scorer) -> str | None:
    """The name of the similarity between a user's and an item's vector; None where there are no vectors."""
    if not isinstance(scorer, VectorScorer):
        return None
    return next(name for name, kind in SIMILARITIES.items() if type(scorer.similarity) is kind)


_SINKS: dict[str, Callable[[pl.LazyFrame, Path], Any]] = {
    ".parquet": lambda lists, path: lists.sink_parquet(path, row_group_size=ROWS_IN_A_GROUP),
    ".csv": lambda lists, path: lists.sink_csv(path),
    ".jsonl": lambda lists, path: lists.sink_ndjson(path),
    ".ndjson": lambda lists, path: lists.sink_ndjson(path),
}


def check_ending(path: Path) -> None:
    """Refuses a file of lists whose ending names no format."""
    if path.suffix.lower() not in _SINKS:
        raise ConfigError(
            f"{path} is no Parquet, CSV or JSON Lines file; give a name that ends in {', '.join(_SINKS)}"
        )


def write_frames(
    path: Path, frames: Iterator[pl.DataFrame], schema: pl.Schema, *, overwrite: bool = False
) -> None:
    """One file of many frames, by its ending; only a few of them are in memory at any time."""
    from polars.io.plugins import register_io_source

    failed: list[BaseException] = []

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        try:
            yield from frames
        except BaseException as cause:
            failed.append(cause)
            raise

    with atomic_file(path, overwrite=overwrite) as temporary:
        try:
            _SINKS[path.suffix.lower()](register_io_source(source, schema=schema), temporary)
        except pl.exceptions.PolarsError:
            # Polars puts a wrapping around what went wrong in a frame: here it comes as it was.
            if failed:
                raise failed[0] from None
            raise


def _write_parquet(
    folder: Path, kind: str, columns: dict[str, pl.Series], vectors: dict[str, Tensor]
) -> None:
    arrays = {
        name: pl.Series(name, tensor.numpy(), dtype=pl.Array(pl.Float32, tensor.shape[1]))
        for name, tensor in vectors.items()
    }
    pl.DataFrame({**columns, **arrays}).write_parquet(folder / f"{kind}.parquet")


def _write_numpy(folder: Path, kind: str, columns: dict[str, pl.Series], vectors: dict[str, Tensor]) -> None:
    """Texts as NumPy's own string type, which needs no pickle."""
    for name, column in columns.items():
        texts = column.dtype == pl.String
        values = np.array(column.fill_null("").to_list(), dtype=np.str_) if texts else column.to_numpy()
        np.save(folder / f"{kind}_{name}.npy", values, allow_pickle=False)
    for name, tensor in vectors.items():
        np.save(folder / f"{kind}_{name}.npy", tensor.to(torch.float32).numpy(), allow_pickle=False)
