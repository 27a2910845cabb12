"""What a run has learned and what it recommends, as files that anything can read: Parquet, NumPy and ONNX."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from hdccf.console import note
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.files import atomic_directory, atomic_file, write_json
from hdccf.models.base import Model, Scorer, VectorScorer
from hdccf.models.calibration import CalibratedScorer
from hdccf.similarity import SIMILARITIES

FORMATS = ("parquet", "numpy", "onnx")
ROWS_IN_A_GROUP = 1 << 17
_LARGEST_ONNX = 2_000_000_000


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
    """Vectors and vocabularies into a folder, all or nothing, with a meta.json that says what they are.

    `scorer` has the answers. Where their scores are products the tables have `point`: the product of a
    user's and an item's point is the score, as an index of inner products takes it.
    """
    if file_format not in FORMATS:
        raise ConfigError(f"format={file_format!r} is unknown; choose one of {list(FORMATS)}")
    inner = scorer.inner if isinstance(scorer, CalibratedScorer) else scorer
    points = points_of(scorer)
    if file_format == "onnx":
        if points is None:
            raise ConfigError(
                f"the scores of {model.settings.model} with these settings are no products of two vectors, "
                "which an ONNX graph of tables needs; export --format parquet, or serve the run"
            )
        tables: dict[str, dict[str, Tensor]] = {"users": {}, "items": {}}
    else:
        tables = model.export_tables(inner)
        for kind, each in points.items() if points is not None else ():
            tables[kind]["point"] = each
    if points is not None and isinstance(scorer, CalibratedScorer) and scorer.filtered is not None:
        about = {**about, "left_out": "item–item filter"}
        note("the item–item filter of the run is no product, and is left out of the points")
    with atomic_directory(path, overwrite=overwrite) as folder:
        if file_format == "onnx" and points is not None:
            _write_onnx(folder / "scores.onnx", points["users"], points["items"])
        for kind, ids in (("users", train.user_ids), ("items", train.item_ids)):
            columns = {"id": ids}
            if kind == "items" and train.titles is not None:
                columns["title"] = train.titles
            write = _write_numpy if file_format == "numpy" else _write_parquet
            write(folder, kind, columns, tables.get(kind, {}))
        contents = {
            kind: {name: list(tensor.shape) for name, tensor in found.items()}
            for kind, found in tables.items()
        }
        write_json(folder / "meta.json", {**about, "format": file_format, "contents": contents})


@torch.no_grad()
def points_of(scorer: Scorer) -> dict[str, Tensor] | None:
    """Of users and items: their product is the score, without the item–item filter; None where it is not."""
    inner = scorer.inner if isinstance(scorer, CalibratedScorer) else scorer
    if not isinstance(inner, VectorScorer) or not inner.similarity.is_product:
        return None
    users = inner.similarity.user_points(inner.users.embedding.detach())
    items = inner.similarity.item_points(inner.items.embedding.detach())
    if isinstance(scorer, CalibratedScorer):
        if scorer.scale is not None:
            items = items * scorer.scale.unsqueeze(1)
        # One more number: the product adds the item's shift.
        users = torch.cat([users, torch.ones_like(users[:, :1])], 1)
        items = torch.cat([items, scorer.shift.unsqueeze(1)], 1)
    return {"users": users, "items": items}


def _write_onnx(path: Path, users: Tensor, items: Tensor) -> None:
    """A graph from the numbers of users (int64) to their scores of all items: a look-up and a product."""
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as cause:
        raise ConfigError(
            "an ONNX graph needs onnx; install it with: pip install -c constraints.txt 'hdccf[onnx]'"
        ) from cause
    if 4 * (users.numel() + items.numel()) > _LARGEST_ONNX:
        raise ConfigError(
            f"{len(users):,} users and {len(items):,} items are more than the 2 GB of an ONNX file; "
            "export --format parquet"
        )
    tables = {"user_points": users, "item_points": items.T}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["user_points", "users"], ["asked"], axis=0),
            helper.make_node("MatMul", ["asked", "item_points"], ["scores"]),
        ],
        "hdccf",
        [helper.make_tensor_value_info("users", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", len(items)])],
        [
            numpy_helper.from_array(np.ascontiguousarray(table.float().numpy()), name)
            for name, table in tables.items()
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=10, producer_name="hdccf")
    onnx.checker.check_model(made)
    path.write_bytes(made.SerializeToString())


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
