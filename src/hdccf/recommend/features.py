"""Item features: attributes to filter by, and vectors of items without interactions.

A ridge regression from the features to the vectors of trained items gives an item without interactions the
mean vector of items like it. Its score is the mean of their scores: a product is linear, and where vectors
have unit length, as in a cosine, the mean is shorter the less the features tell, and its length is kept
(`Calibration.item_scale`). Popularity is estimated in the same way. Text, categories and lists are encoded by
scikit-learn (the extra `features`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy import linalg, sparse
from torch import Tensor

from hdccf.data.columns import find_column, guess_column
from hdccf.data.interactions import Interactions
from hdccf.data.parquet import read_parquet
from hdccf.data.split import PARTS, Split
from hdccf.data.tables import open_frame
from hdccf.errors import ConfigError, DataError, SourceError, one_line
from hdccf.models.base import Model, VectorScorer
from hdccf.models.calibration import Calibration
from hdccf.recommend.candidates import SCORES_AT_ONCE
from hdccf.recommend.frames import Vocabulary
from hdccf.similarity import unit

Array = NDArray[np.float64]
Kind = Literal["number", "category", "list", "text", "vector"]

_MOST_TERMS = 1000
"""Of a column: the most frequent words, categories or entries; the regression takes the cube of all."""
_CATEGORIES = 50
"""A text of several words with at most so many different values is a category."""
_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_HELD_OUT = 5
"""One of so many items chooses the penalty."""
_LIKE_IT = 100
"""Items whose mean stands for an item without interactions in the item–item filter: with fewer such items are
recommended more often, with more they are ranked better among themselves (results/cold_items.md)."""
_FEWEST = 10
"""Items from which a regression is worth fitting."""


def read_items(source: Any, item: str | None = None) -> pl.DataFrame:
    """A table of items: `id` and their attributes, a row for each item.

    Parameters
    ----------
    source
        A data frame, a list of dicts, or a Parquet, CSV, TSV or JSON Lines file.
    item
        The column of the id; otherwise guessed from the usual names.

    Examples
    --------
    >>> read_items(pl.DataFrame({"sku": ["a", "b"], "category": ["books", "games"]})).columns
    ['id', 'category']
    """
    name = str(source) if isinstance(source, str | Path) else "the data frame"
    try:
        if isinstance(source, str | Path):
            frame = _read_file(Path(source))
        else:
            rows = isinstance(source, list)
            frame = pl.from_dicts(source, infer_schema_length=None) if rows else pl.DataFrame(source)
    except (OSError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as cause:
        raise SourceError(
            f"{name} cannot be read ({one_line(cause)[:200]}); give Parquet, CSV, TSV or JSON Lines"
        ) from cause
    opened = open_frame(frame, name)
    if item is not None:
        own: str | None = find_column(opened, item, "item")
    else:
        own = "id" if "id" in frame.columns else guess_column(opened, "item")
    if own is None:
        raise SourceError(f"{name}: no column is plainly the item's id, of {frame.columns}; name it 'id'")
    if frame[own].null_count():
        raise SourceError(f"{name}: column {own!r} has {frame[own].null_count()} missing ids; fill them")
    ids = frame[own] if frame[own].dtype.is_integer() else frame[own].cast(pl.String)
    # As RecBole writes them, names carry their types.
    names = {column: column.split(":")[0] for column in frame.columns if column != own}
    frame = frame.drop(own).rename(names).insert_column(0, ids.alias("id"))
    return frame.unique("id", keep="last", maintain_order=True)


def updated(table: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    """The table with further items, and with other attributes of known ones."""
    try:
        shared = [name for name in more.columns if name in table.columns]
        # Of two numbers the wider type is taken; any other type stays what it is, or filters would change.
        kept = [
            name for name in shared if not (more[name].dtype.is_numeric() and table[name].dtype.is_numeric())
        ]
        more = more.with_columns(more[name].cast(table[name].dtype) for name in kept)
        both = pl.concat([table, more], how="diagonal_relaxed")
    except pl.exceptions.PolarsError as cause:
        raise DataError(
            f"the new items do not fit the items file ({one_line(cause)[:200]}); give columns of its types"
        ) from cause
    return both.unique("id", keep="last", maintain_order=True)


def aligned(table: pl.DataFrame, ids: pl.Series) -> pl.DataFrame:
    """A row for each id: `given`, null where the table does not have it, and the table's columns."""
    own = table.with_columns(pl.col("id").cast(ids.dtype, strict=False), given=True)
    found = pl.DataFrame({"id": ids}).join(own, on="id", how="left", maintain_order="left")
    return found.select("given", pl.exclude("given", "id"))


def extended(split: Split, table: pl.DataFrame, known: Vocabulary) -> Split:
    """The split under the ids of its items and of those that only the table has."""
    new = table.filter([known.find(own) is None for own in table["id"]])
    train = split.train
    ids = new["id"].cast(train.item_ids.dtype, strict=False).rename("item")
    if ids.null_count():
        wrong = new["id"].filter(ids.is_null())[0]
        raise DataError(f"item {wrong!r} is no integer, as the ids of the other items are; give an integer")
    titles = train.titles
    if titles is not None:
        named = new["title"] if "title" in new.columns else ids
        titles = pl.concat([titles.rename("title"), named.cast(pl.String).rename("title")])
    item_ids = pl.concat([train.item_ids, ids])
    train, validation, test = (replace(split.part(name), item_ids=item_ids, titles=titles) for name in PARTS)
    return replace(split, train=train, validation=validation, test=test)


Where = Mapping[str, Any]
"""Attributes with the value, or the list of values, that an item must have one of."""


def matching(attributes: pl.DataFrame, where: Where) -> NDArray[np.bool_]:
    """Which items have all of the attributes; an entry of a list is enough."""
    kept = np.ones(attributes.height, bool)
    for name, wanted in where.items():
        if name not in attributes.columns[1:]:
            raise ConfigError(f"items have no attribute {name!r}; choose one of {attributes.columns[1:]}")
        values = wanted if isinstance(wanted, list | tuple | set) else [wanted]
        kept &= _matches(attributes[name], list(values)).fill_null(value=False).to_numpy()
    return kept


def _matches(column: pl.Series, values: list[Any]) -> pl.Series:
    if isinstance(column.dtype, pl.List | pl.Array):
        lists = column.cast(pl.List(pl.String))
        found = [lists.list.contains(str(value)).fill_null(value=False).to_numpy() for value in values]
        return pl.Series(np.any(found, axis=0) if found else np.zeros(len(column), bool))
    if column.dtype.is_numeric():
        try:
            return column.cast(pl.Float64).is_in([float(value) for value in values])
        except ValueError as cause:
            raise ConfigError(f"{column.name} is a number, and {values!r} is none; give a number") from cause
    texts = [str(value).lower() if column.dtype == pl.Boolean else str(value) for value in values]
    return column.cast(pl.String).is_in(texts)


def _read_file(path: Path) -> pl.DataFrame:
    plain = path.name.removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(".parquet"):
        return read_parquet(path)
    if plain.endswith((".jsonl", ".ndjson")):
        return pl.read_ndjson(path, infer_schema_length=None)
    separator = "\t" if plain.endswith((".tsv", ".item")) else ","
    return pl.read_csv(path, separator=separator, infer_schema_length=None)


class Column(BaseModel):
    """How a column becomes numbers."""

    name: str
    kind: Kind
    terms: list[str] = []
    """Of a category, list or text."""
    idf: list[float] = []
    mean: float = 0.0
    deviation: float = 1.0
    width: int = 1

    @classmethod
    def learn(cls, values: pl.Series) -> "Column":
        """From the values of all items; the kind is told by their type."""
        kind, name = _kind_of(values), values.name
        if kind == "number":
            numbers = _numbers(values).drop_nans()
            deviation = float(np.std(numbers.to_numpy())) if len(numbers) else 0.0
            return cls(name=name, kind=kind, mean=_mean(numbers), deviation=deviation or 1.0)
        if kind == "vector":
            rows = _vectors(values)
            length = float(np.sqrt(np.square(rows).sum(1).mean()))
            return cls(name=name, kind=kind, deviation=length or 1.0, width=rows.shape[1])
        vectorizer = _vectorizer(kind)
        try:
            vectorizer.fit(_documents(values, kind))
        except ValueError:  # not one word
            return cls(name=name, kind=kind, width=0)
        terms = vectorizer.get_feature_names_out().tolist()
        idf = vectorizer.idf_.tolist() if kind == "text" else []
        return cls(name=name, kind=kind, terms=terms, idf=idf, width=len(terms))

    def encode(self, frame: pl.DataFrame) -> sparse.csr_array:
        """Rows of `width` numbers; zeros where a value, or the whole column, is missing."""
        if self.name not in frame.columns or not self.width or not frame.height:
            return sparse.csr_array((frame.height, self.width))
        values = frame[self.name]
        if self.kind == "number":
            numbers = (_numbers(values) - self.mean) / self.deviation
            return sparse.csr_array(numbers.fill_nan(0.0).to_numpy()[:, None])
        if self.kind == "vector":
            rows = _vectors(values)
            if rows.shape[1] != self.width:
                raise DataError(
                    f"column {self.name!r} has vectors of {rows.shape[1]} numbers; give {self.width}"
                )
            return sparse.csr_array(rows / self.deviation)
        vectorizer = _vectorizer(self.kind, self.terms)
        if self.kind == "text":
            vectorizer.idf_ = np.array(self.idf)
        return sparse.csr_array(vectorizer.transform(_documents(values, self.kind)))


def _kind_of(values: pl.Series) -> Kind:
    dtype = values.dtype
    if isinstance(dtype, pl.List | pl.Array):
        inner: Any = dtype.inner
        return "vector" if inner.is_float() or isinstance(dtype, pl.Array) else "list"
    if dtype.is_numeric() or dtype.is_temporal() or dtype == pl.Boolean:
        return "number"
    texts = values.cast(pl.String).drop_nulls()
    words = texts.str.split(" ").list.len().mean()
    many = texts.n_unique() > _CATEGORIES
    return "text" if many and isinstance(words, float) and words > 1.5 else "category"


def _mean(values: pl.Series) -> float:
    return float(np.mean(values.to_numpy())) if len(values) else 0.0


def _numbers(values: pl.Series) -> pl.Series:
    """Float64, NaN where there is none."""
    plain = values.to_physical() if values.dtype.is_temporal() else values
    numbers = plain.cast(pl.Float64, strict=False).fill_null(float("nan"))
    return pl.select(pl.when(numbers.is_finite()).then(numbers).otherwise(float("nan"))).to_series()


def _vectors(values: pl.Series) -> Array:
    lists = values.to_list()
    width = max((len(each) for each in lists if each is not None), default=0)
    rows = [each if each is not None else [0.0] * width for each in lists]
    if any(len(each) != width for each in rows):
        raise DataError(f"column {values.name!r} has vectors of different lengths; give all the same")
    found = np.array(rows, np.float64).reshape(len(rows), width)
    if not np.isfinite(found).all():
        raise DataError(
            f"column {values.name!r} has vectors with entries that are no finite numbers; mend them"
        )
    return found


def _documents(values: pl.Series, kind: Kind) -> list[Any]:
    if kind == "list":
        return [[str(each) for each in some or [] if each is not None] for some in values.to_list()]
    texts = values.cast(pl.String).to_list()
    return [text or "" for text in texts] if kind == "text" else [[text] if text else [] for text in texts]


def _same(tokens: list[str]) -> list[str]:
    return tokens


def _vectorizer(kind: Kind, terms: Sequence[str] | None = None) -> Any:
    try:
        from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    except ImportError as cause:
        raise ConfigError(
            "text, categories and lists are encoded by scikit-learn; install it with: "
            "pip install -c constraints.txt 'hdccf[features]'"
        ) from cause
    given: dict[str, Any] = {"max_features": _MOST_TERMS} if terms is None else {"vocabulary": list(terms)}
    return (
        TfidfVectorizer(**given) if kind == "text" else CountVectorizer(analyzer=_same, binary=True, **given)
    )


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The regression from features to the rows of the model's item tables and to the log frequency."""

    columns: list[Column]
    widths: dict[str, int]
    """The parts of a predicted row: points, further tables by name, and "log_frequency"."""
    coefficients: Array
    feature_means: Array
    means: Array
    penalty: float

    @classmethod
    def learn(
        cls,
        model: Model,
        scorer: VectorScorer,
        train: Interactions,
        log_frequency: Tensor,
        items: pl.DataFrame,
    ) -> "FeatureMap":
        """From the items of the table that have interactions; `items` has a row for each item of `train`.

        Items count by the root of their interactions, as the vectors of rare ones are noise.
        """
        state = model.state_dict()
        main, *others = model.item_tables
        targets = {main: scorer.similarity.item_points(state[main]), **{name: state[name] for name in others}}
        targets["log_frequency"] = log_frequency.unsqueeze(1)
        degrees = train.by_item.degrees
        known = np.flatnonzero((degrees > 0) & ~items["given"].is_null().to_numpy())
        if len(known) < _FEWEST:
            raise DataError(
                f"{len(known)} items of the table have interactions, of {_FEWEST} that are needed; "
                "check that its ids are those of the events"
            )
        table = items[known]
        columns = [Column.learn(table[name]) for name in table.columns[1:]]
        x = _encoded(columns, table)
        if not x.shape[1]:
            raise DataError("the table of items has no features; give columns beside the id")
        y = torch.cat(list(targets.values()), 1).double().numpy()[known]
        solved = _ridge(x, y, np.sqrt(degrees[known]), targets[main].shape[1])
        return cls(columns, {name: table.shape[1] for name, table in targets.items()}, *solved)

    def predict(self, items: pl.DataFrame) -> dict[str, Tensor]:
        """The parts of each item's row."""
        x = _encoded(self.columns, items)
        rows = x @ self.coefficients + (self.means - self.feature_means @ self.coefficients)
        parts = torch.split(torch.from_numpy(rows).float(), list(self.widths.values()), 1)
        return dict(zip(self.widths, parts, strict=True))

    @torch.no_grad()
    def fill(
        self,
        model: Model,
        trained: Model,
        calibration: Calibration,
        train: Interactions,
        table: pl.DataFrame,
    ) -> Calibration:
        """Gives a model of a larger catalogue the trained weights, with estimates for the cold items.

        Returns their calibration. `train` has the ids of the larger catalogue, the known ones first.
        """
        items, state = aligned(table, train.item_ids), dict(trained.state_dict())
        cold = (train.by_item.degrees == 0) & items["given"].fill_null(value=False).to_numpy()
        codes, parts = torch.from_numpy(np.flatnonzero(cold)), self.predict(items.filter(cold))
        main, similarity = model.item_tables[0], trained.vector_scorer().similarity
        known = np.flatnonzero(train.by_item.degrees)
        alike = _nearest(similarity.scaled(state[main][known]), similarity.scaled(parts[main]))
        parts[main], scale = similarity.item_rows(parts[main])
        for name in model.item_tables:
            grown = train.n_items - len(state[name])
            state[name] = torch.cat([state[name], state[name].new_zeros(grown, *state[name].shape[1:])])
            state[name][codes] = parts[name]
        model.load_state_dict(state)
        nearest, frequency = torch.from_numpy(known)[alike], parts["log_frequency"][:, 0]
        return calibration.with_estimates(codes, frequency, scale, nearest, train.n_items)

    def describe(self) -> str:
        """One line, such as "price a number, category a category; ridge penalty 30"."""
        kinds = ", ".join(f"{column.name} a {column.kind}" for column in self.columns)
        return f"{kinds}; ridge penalty {self.penalty:g}"

    def to_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts, for a file."""
        names = ("coefficients", "feature_means", "means")
        tensors = {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in names}
        facts = {
            "columns": [column.model_dump() for column in self.columns],
            "widths": self.widths,
            "penalty": self.penalty,
        }
        return tensors, facts

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "FeatureMap":
        """The reverse of `to_parts`."""
        columns = [Column(**each) for each in facts["columns"]]
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return cls(columns, dict(facts["widths"]), **arrays, penalty=facts["penalty"])


def _nearest(known: Tensor, others: Tensor) -> Tensor:
    """For each of the others the known vectors with the largest cosines."""
    directions = unit(known)
    blocks = torch.split(unit(others), max(1, SCORES_AT_ONCE // max(len(known), 1)))
    return torch.cat([(some @ directions.T).topk(min(_LIKE_IT, len(known))).indices for some in blocks])


def _encoded(columns: Sequence[Column], items: pl.DataFrame) -> sparse.csr_array:
    parts = [column.encode(items) for column in columns]
    return sparse.csr_array(sparse.hstack(parts)) if parts else sparse.csr_array((items.height, 0))


def _ridge(x: sparse.csr_array, y: Array, weights: Array, compared: int) -> tuple[Array, Array, Array, float]:
    """Coefficients, means of features and targets, and the penalty with the least error on held-out items.

    The error is that of the first `compared` targets.
    """
    rng = np.random.default_rng(0)
    held_out = np.zeros(len(y), bool)
    held_out[rng.permutation(len(y))[: len(y) // _HELD_OUT]] = True
    errors = []
    fitted = _Normal(x[~held_out], y[~held_out], weights[~held_out])
    for penalty in _PENALTIES:
        rest = fitted.means + (x[held_out] - fitted.feature_means) @ fitted.solve(penalty)
        squares = np.square(rest - y[held_out])[:, :compared].sum(1)
        errors.append(float(np.average(squares, weights=weights[held_out])))
    best = _PENALTIES[int(np.argmin(errors))]
    whole = _Normal(x, y, weights)
    return whole.solve(best), whole.feature_means, whole.means, best


class _Normal:
    """The normal equations of a weighted regression with an intercept."""

    def __init__(self, x: sparse.csr_array, y: Array, weights: Array) -> None:
        total = weights.sum()
        self.feature_means: Array = np.asarray(x.T @ weights) / total
        self.means: Array = weights @ y / total
        weighted = sparse.diags_array(weights) @ x
        centre = np.outer(self.feature_means, self.feature_means)
        self._gram: Array = (x.T @ weighted).toarray() - total * centre
        self._right: Array = weighted.T @ y - total * np.outer(self.feature_means, self.means)

    def solve(self, penalty: float) -> Array:
        normal = self._gram + penalty * np.eye(len(self._gram))
        solved: Array = linalg.solve(normal, self._right, assume_a="pos")
        return solved
