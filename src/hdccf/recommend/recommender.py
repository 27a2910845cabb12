"""The recommender: a trained model with its data, queried by user and item ids, answering in data frames."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import EXPLAINED, REASONS, TOP_K, FitOptions, Settings
from hdccf.console import note, progress_bar
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.parquet import read_parquet
from hdccf.data.split import Split, no_split
from hdccf.errors import ConfigError, DataError, RunError, one_line
from hdccf.files import atomic_directory, atomic_file, locked, write_json
from hdccf.models import entry_named, name_of
from hdccf.models.base import Candidates, Columns, Kind, Model, Scorer, Scores, Users, VectorScorer
from hdccf.models.calibration import Calibration
from hdccf.recommend import export
from hdccf.recommend.candidates import Best, Index, Wanted, diversified, exact_best, pool_size
from hdccf.recommend.explain import Explanation, explained, surrogate_for
from hdccf.recommend.features import FeatureMap, Where, aligned, extended, matching, read_items, updated
from hdccf.recommend.frames import (
    Codes,
    Ids,
    Lists,
    Vocabulary,
    as_histories,
    codes_of,
    histories_of,
    listed,
    titled,
)
from hdccf.recommend.run_folder import REFIT, RunFolder, result_of, resume_command
from hdccf.recommend.similar import Relation, best_related, co_occurrence, relation
from hdccf.similarity import unit

HISTORIES = ("all", "validation", "train")
"""What a known user is made of when the model answers: all of their events, or the training part."""

UNKNOWN = ("error", "skip", "popular")
"""What becomes of an unknown user: refuse the request, leave them out, or recommend what is popular."""

_USERS_AT_ONCE = 4096


class _Group(NamedTuple):
    """Users who are scored by the same scorer."""

    source: str
    """"model", or "popular" where there is no history to go by."""
    scorer: Scorer
    rows: Int64[Tensor, " n"]
    """Of the scorer."""
    places: Codes
    """Among the users of the request."""
    seen: Neighbours | None


class Recommender:
    """A trained model with its data. It is a `Scorer`, so that `evaluate` takes it as it is.

    `score_block` and `score_rows` use the training part only, as evaluation must. `recommend`, `score`,
    `similar_users` and `explain` use all events of a user unless told otherwise: held-out events are part of
    the history. After a refit the latter also answer with weights that were trained on all events.

    Examples
    --------
    >>> model = hdccf.fit(split)  # doctest: +SKIP
    >>> model.recommend(["196"], k=10).to_pandas()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Model,
        settings: Settings,
        split: Split,
        *,
        seed: int,
        seconds: float = 0.0,
        path: Path | None = None,
        config: dict[str, Any] | None = None,
        index_above: int | None = None,
        calibration: Calibration | None = None,
        refit: "Weights | None" = None,
        result: dict[str, Any] | None = None,
        item_table: pl.DataFrame | None = None,
        feature_map: FeatureMap | None = None,
    ) -> None:
        self.settings = settings
        self.split = split
        self.seed = seed
        self.seconds = seconds
        self._path = path
        self.config = config or {}
        self.name = name_of(settings)
        self.index_above = index_above
        """Catalogues with more items than this are asked through an approximate index; None: never."""
        self.users = Vocabulary("user", split.train.user_ids, "the training data")
        self.items = Vocabulary("item", split.train.item_ids, "the catalogue")
        self._trained: Scorer = model.scorer()
        neutral = calibration or Calibration.neutral(settings, self._trained, split.train)
        self._scorer = neutral.apply(self._trained, split.train)
        self._held_out, self.refit, self.result = Weights(model, neutral), refit, result
        self.model, self.calibration = refit or self._held_out
        """What answers, and what is added to its own scores: after a refit, trained on all events."""
        self.item_table, self.feature_map = item_table, feature_map
        """Attributes of items, and what makes vectors of them; None where there are none."""
        self._without_features: Recommender | None = None
        self._relations: dict[Kind, Relation] = {}  # made once: without vectors it is a matrix over the data

    @property
    def path(self) -> Path:
        """The folder of the run."""
        if self._path is None:
            raise RunError(
                'this model was not kept in a folder; fit it with out="runs/name", or keep it with save(path)'
            )
        return self._path

    @property
    def n_users(self) -> int:
        return self._trained.n_users

    @property
    def n_items(self) -> int:
        return self._trained.n_items

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        self._refuse_seen_weights()
        return self._scorer.score_block(users, items)

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        self._refuse_seen_weights()
        return self._scorer.score_rows(users, items)

    def _refuse_seen_weights(self) -> None:
        """With item features there are only the weights that answer; a refit's have seen what is held out."""
        if self.refit is not None and self.item_table is not None:
            raise ConfigError(
                "this model was refitted on all events and then given item features; evaluate it without "
                "features, or fit it with refit=False"
            )

    @cached_property
    def events(self) -> Interactions:
        """All parts of the split in order of time: what was held out from training is part of the history."""
        return self.split.joined()

    @cached_property
    def _seen(self) -> Neighbours:
        return Neighbours.of(self.events.by_user, self.n_items)

    @cached_property
    def _by_all_events(self) -> Scorer:
        """The model's own scores, not calibrated."""
        return self.model.known_users(self.events if self.refit else self.split.train, self.events)

    @cached_property
    def _answering(self) -> Scorer:
        return self.calibration.apply(self._by_all_events, self.events)

    def scorer(self, history: str = "all", popularity: float | None = None) -> Scorer:
        """What scores the known users, by contiguous ids.

        Parameters
        ----------
        history
            "all" events; those of the "train" part; or "validation" for both parts but test, the protocol of
            most published figures of sequential models. Only with "all" are weights of a refit used.
        popularity
            Another setting of the dial.

        Examples
        --------
        >>> hdccf.evaluate(model.scorer("validation"), split)  # doctest: +SKIP
        """
        if history not in HISTORIES:
            raise ConfigError(f"history={history!r} is unknown; choose one of {list(HISTORIES)}")
        if popularity is None and history != "validation":
            return self._answering if history == "all" else self._scorer
        if history == "all":
            return self.calibration.with_popularity(popularity).apply(self._by_all_events, self.events)
        own, events = self._trained, self._events_of(history)
        if history == "validation":
            own = self._held_out.model.known_users(self.split.train, events)
        return self._held_out.calibration.with_popularity(popularity).apply(own, events)

    def _events_of(self, history: str) -> Interactions:
        if history == "validation":
            return self.split.joined("train", "validation")
        return self.events if history == "all" else self.split.train

    @cached_property
    def index(self) -> Index | None:
        """The approximate index, built at its first use; None where the catalogue is not above the limit."""
        if self.index_above is None or self.n_items <= self.index_above:
            return None
        if not isinstance(self._by_all_events, VectorScorer):
            raise ConfigError(
                f"{self.name} has no item vectors to index; leave out index_above={self.index_above}"
            )
        index = Index(self._answering, self.calibration.log_frequency)
        note(repr(index))
        return index

    def recommend(
        self,
        users: Ids,
        k: int = TOP_K,
        *,
        fresh: Lists | None = None,
        unknown: str = "error",
        include_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: Where | None = None,
        history: str = "all",
        popularity: float | None = None,
        diversity: float = 0.0,
    ) -> pl.DataFrame:
        """Recommends the k best items for each user.

        Parameters
        ----------
        users
            Ids of known users; with `fresh` or `unknown` also of others.
        k
            Length of the lists. A user with fewer candidates gets fewer.
        fresh
            For each user a list of items since the training, the latest last; it may be empty. They are
            added to the user's history, and a user whom the model does not know is represented by them.
        unknown
            For a user who is not known and has no fresh items: "error" refuses the request, "skip" leaves
            them out, "popular" gives them the items with the most users.
        include_seen
            Whether items of the user's history may be recommended.
        allow, deny
            Items: only these, none of these. Ids that are not in the catalogue are ignored.
        where
            Attributes that items must have, such as `{"category": "books"}`; a list allows each of its
            values. See `with_features`.
        history
            "all" uses every event of the user; "train" the training part only and "validation" also the
            validation part, both with the weights before a refit.
        popularity
            The popularity dial γ, instead of the value that was chosen on validation: below 0 more popular
            items, above 0 fewer, 1 only what is particular to the user.
        diversity
            From 0, the best items, to 1, items as different from each other as possible (maximal marginal
            relevance).

        Returns
        -------
        Rows of user, rank, item, score (and title), best first. With `fresh` or `unknown="popular"` a column
        `source` says whether a list is the model's ("model") or of popular items ("popular").

        Examples
        --------
        >>> model.recommend(["196", "22"], k=10)  # doctest: +SKIP
        >>> model.recommend(["196"], fresh=[["50", "181"]])  # doctest: +SKIP
        >>> model.recommend(["196", "new"], unknown="popular")  # doctest: +SKIP
        """
        if unknown not in UNKNOWN:
            raise ConfigError(f"unknown={unknown!r} is not possible; choose one of {list(UNKNOWN)}")
        wanted = self._wanted(k, None if include_seen else self._seen, allow, deny, where, diversity)
        if fresh is None and unknown == "error":
            rows = torch.from_numpy(self.users.codes(users))
            return self._of_users(self.scorer(history, popularity), rows, wanted)
        codes = self.users.places(users)
        clicks = self._fresh(fresh, len(codes))
        lost = [place for place, code in enumerate(codes) if code is None and not len(clicks[place])]
        if lost and unknown == "error":
            raise self.users.unknown(list(users)[lost[0]])
        ids = self.users.spelled(users)
        if unknown == "skip":
            kept = [place for place in range(len(codes)) if place not in set(lost)]
            ids, codes, clicks = ids.gather(kept), [codes[n] for n in kept], [clicks[n] for n in kept]
        groups = self._groups(codes, clicks, history, popularity)
        return self._of_groups("user", ids, groups, wanted)

    def recommend_for_items(
        self,
        lists: Lists,
        k: int = TOP_K,
        *,
        include_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: Where | None = None,
        popularity: float | None = None,
        diversity: float = 0.0,
    ) -> pl.DataFrame:
        """Recommends items for new users (fold-in), each given as a list of items, the latest last.

        Parameters
        ----------
        lists
            One list of item ids for each new user; an empty one gets the items with the most users.
        k, include_seen, allow, deny, where, popularity, diversity
            As in `recommend`.

        Returns
        -------
        Rows of list (its number, from 0), rank, item, score (and title); where a list is empty also `source`.

        Examples
        --------
        >>> model.recommend_for_items([["50", "181"]], k=5)  # doctest: +SKIP
        """
        codes = codes_of(lists, self.items, "new users")
        wanted = self._wanted(k, None if include_seen else self._seen, allow, deny, where, diversity)
        groups = self._groups([None] * len(codes), codes, "all", popularity)
        found = self._of_groups("list", pl.Series(np.arange(len(codes))), groups, wanted)
        return found if any(not len(some) for some in codes) else found.drop("source")

    def users_for_new_items(
        self, lists: Lists, k: int = TOP_K, *, include_seen: bool = False
    ) -> pl.DataFrame:
        """Finds the k users with the highest score for each new item (fold-in).

        Parameters
        ----------
        lists
            One list of user ids for each new item: its users so far.
        k, include_seen
            As in `recommend`.

        Returns
        -------
        Rows of list (its number, from 0), rank, user, score.

        Examples
        --------
        >>> model.users_for_new_items([["196", "22"]], k=5)  # doctest: +SKIP
        """
        takers = histories_of(lists, self.users, "items")
        scorer = self.model.items_from(takers, self._by_all_events)
        seen = None if include_seen else Neighbours.of(takers.by_user, self.n_users)
        found = exact_best(scorer, torch.arange(len(lists)), self._wanted(k, seen, None, None))
        return listed({"list": takers.user_ids}, {"user": takers.item_ids}, found)

    def recommend_all(
        self,
        path: str | Path,
        k: int = TOP_K,
        *,
        include_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: Where | None = None,
        history: str = "all",
        popularity: float | None = None,
        diversity: float = 0.0,
        overwrite: bool = False,
        progress: bool = False,
    ) -> None:
        """Writes the k best items of every user to one file, in memory that does not grow with the users.

        It is Parquet, CSV or JSON Lines by its ending: .parquet, .csv or .jsonl.
        """
        target = Path(path)
        export.check_ending(target)
        wanted = self._wanted(k, None if include_seen else self._seen, allow, deny, where, diversity)
        scorer, every_user = self.scorer(history, popularity), torch.arange(self.n_users)
        schema = self._of_users(scorer, every_user[:0], wanted).schema
        with progress_bar("recommending", self.n_users, enabled=progress) as advance:

            def frames() -> Iterator[pl.DataFrame]:
                for rows in torch.split(every_user, _USERS_AT_ONCE):
                    yield self._of_users(scorer, rows, wanted)
                    advance(len(rows))

            export.write_frames(target, frames(), schema, overwrite=overwrite)

    def score(
        self, users: Ids, items: Ids, *, history: str = "all", fresh: Lists | None = None
    ) -> pl.DataFrame:
        """Scores pairs, the first user with the first item and so on: rows of user, item, score (and title).

        `fresh` has the items since the training of each pair's user, as in `recommend`.

        Examples
        --------
        >>> model.score(["196", "22"], ["242", "302"])  # doctest: +SKIP
        """
        rows, columns = self.users.places(users), self.items.codes(items)
        if len(rows) != len(columns):
            raise ConfigError(
                f"{len(rows)} users and {len(columns)} items make no pairs; give as many of both"
            )
        clicks = self._fresh(fresh, len(rows))
        lost = [place for place, row in enumerate(rows) if row is None and not len(clicks[place])]
        if lost:
            raise self.users.unknown(list(users)[lost[0]])
        scores, train = np.zeros(len(rows), np.float32), self.split.train
        for group in self._groups(rows, clicks, history, None):
            theirs = torch.from_numpy(columns[group.places])[:, None]
            scores[group.places] = group.scorer.score_rows(group.rows, theirs)[:, 0].numpy()
        frame = pl.DataFrame(
            {"user": self.users.spelled(users), "item": train.item_ids.gather(columns), "score": scores}
        )
        return titled(frame, columns, train.titles)

    def relation(self, kind: Kind) -> Relation:
        """What compares items, or users, with each other; its `stated` says so in words."""
        if kind not in self._relations:
            found, scale = relation(self.model, self._by_all_events, self.events, kind), None
            if kind == "items":
                scale = self.calibration.item_scale
            # The mean cosine of items with such features is less than the cosine of their mean direction.
            self._relations[kind] = found if scale is None else found.scaled(scale)
        return self._relations[kind]

    def similar_items(self, items: Ids, k: int = TOP_K) -> pl.DataFrame:
        """The k most similar items of each item: rows of item, rank, similar, score (and title)."""
        ids = self.split.train.item_ids
        found = best_related(self.relation("items"), torch.from_numpy(self.items.codes(items)), k)
        return listed({"item": ids}, {"similar": ids}, found, self.split.train.titles)

    def similar_users(self, users: Ids, k: int = TOP_K) -> pl.DataFrame:
        """The k most similar users of each user: rows of user, rank, similar, score."""
        ids = self.split.train.user_ids
        found = best_related(self.relation("users"), torch.from_numpy(self.users.codes(users)), k)
        return listed({"user": ids}, {"similar": ids}, found)

    def explain(
        self,
        user: Any,
        items: Ids | None = None,
        *,
        k: int = EXPLAINED,
        top: int = REASONS,
        fresh: Ids | None = None,
    ) -> Explanation:
        """Explains scores by the items of the user's history.

        Parameters
        ----------
        user
            Id of a known user.
        items
            Items to explain; without them the user's k best.
        k, top
            Number of recommendations to explain, and of reasons for each.
        fresh
            Items since the training, the latest last, as in `recommend`.

        Returns
        -------
        The contributions, what they are contributions to, and Kendall's τ between that and the score.
        """
        if fresh is not None and len(fresh):
            code, new = self.users.find(user), self._fresh([fresh], 1)[0]
            had = np.concatenate([self._history(code), new])
            return self.explain_for_items(self.split.train.item_ids.gather(had), items, k=k, top=top)
        row = int(self.users.codes([user])[0])
        if not len(self.events.by_user.of(row)):
            raise DataError(f"user {user!r} has an empty history, which explains nothing")
        if items is None:
            items = self.recommend([user], k=k)["item"]
        return self._explained(self.scorer(), self.events, row, items, top)

    def explain_for_items(
        self, had: Ids, items: Ids | None = None, *, k: int = EXPLAINED, top: int = REASONS
    ) -> Explanation:
        """The same for a new user, who is known by a list of items."""
        events = histories_of([had], self.items, "users")
        scorer = self._new_users(events)
        if items is None:
            items = self.recommend_for_items([had], k=k)["item"]
        return self._explained(scorer, events, 0, items, top)

    def _explained(self, scorer: Scorer, events: Interactions, row: int, items: Ids, top: int) -> Explanation:
        if top < 1:
            raise ConfigError(f"top={top} gives no reason; ask for 1 or more")
        surrogate = surrogate_for(self.model, scorer, events, row, data=self.events)
        return explained(surrogate, scorer, row, self.items.codes(items), top, self.events)

    def export(self, path: str | Path, *, file_format: str = "parquet", overwrite: bool = False) -> None:
        """Writes what the model has learnt into a folder, for use without hdccf.

        Parameters
        ----------
        path
            The folder.
        file_format
            "parquet" or "numpy" for vectors and vocabularies, "onnx" for a graph from users to scores.
        overwrite
            Whether to replace the folder.

        Examples
        --------
        >>> model.export("vectors")  # doctest: +SKIP
        """
        about = {
            "model": self.name,
            "settings": self.settings.model_dump(mode="json"),
            "seed": self.seed,
            "similarity": export.similarity_name(self._by_all_events),
            "history": "all",
            "popularity": self.calibration.popularity,
            "filter_weight": self.calibration.filter_weight,
        }
        export.export_vectors(
            Path(path),
            self.model,
            self._answering,
            self.split.train,
            about,
            file_format=file_format,
            overwrite=overwrite,
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Keeps the model with its data as the folder of a run, which `load_run` and all commands open.

        Parameters
        ----------
        path
            A folder that does not exist yet.
        overwrite
            Whether to replace one that exists.

        Examples
        --------
        >>> model = hdccf.fit(data)  # doctest: +SKIP
        >>> model.save("runs/shop")  # doctest: +SKIP
        """
        plain = self._without_features or self
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            plain._keep(folder, plain.split, plain._held_out)
            if plain.refit is not None:
                plain._keep(folder / REFIT, no_split(plain.events), plain.refit)
            if self.item_table is not None:
                self._keep_items(RunFolder.open(folder), self.item_table, self.feature_map)
        self._path = self._path or Path(path)

    def _keep(self, folder: Path, split: Split, weights: "Weights") -> None:
        options = FitOptions(**self.config.get("options", {}))
        about = self.config.get("data", {})
        run = RunFolder.create(folder, {self.name: self.settings}, split, self.seed, options, about)
        result = self.result or {"best_epoch": 0, "best_value": None, "seconds": round(self.seconds, 3)}
        run.save_tensors(run.best, weights.model.state_dict(), {"epoch": result["best_epoch"]})
        run.save_tensors(run.calibration, *weights.calibration.to_parts())
        write_json(run.result, result)

    def with_features(self, source: Any, *, item: str | None = None) -> "Recommender":
        """Gives the model the attributes of items, and vectors to those without interactions.

        Parameters
        ----------
        source
            A data frame, or a Parquet, CSV, TSV or JSON Lines file: a row for each item. Numbers, categories,
            lists, texts and ready vectors are told apart by their types.
        item
            The column of the id; otherwise guessed.

        Returns
        -------
        The same model for all items of the file. A run keeps the file and what was learnt from it.

        Examples
        --------
        >>> model = hdccf.fit(split).with_features("items.parquet")  # doctest: +SKIP
        >>> model.recommend(["196"], where={"category": "books"})  # doctest: +SKIP
        """
        table, found = read_items(source, item), None
        train = self.events if self.refit else self.split.train
        try:
            tables = self.model.item_tables
        except ConfigError as refusal:
            note(f"{refusal}: the items file is for filters only")
        else:
            items = aligned(table, train.item_ids)
            scorer = self._by_all_events
            if tables and isinstance(scorer, VectorScorer):
                frequency = self.calibration.log_frequency
                found = FeatureMap.learn(self.model, scorer, train, frequency, items)
                note(f"item features: {found.describe()}")
        if self._path is not None:
            run = RunFolder.open(self._path)
            with locked(run.path, RunError):
                self._keep_items(run, table, found)
        return self._featured(table, found)

    @staticmethod
    def _keep_items(run: RunFolder, table: pl.DataFrame, features: FeatureMap | None) -> None:
        run.features.unlink(missing_ok=True)
        with atomic_file(run.items) as temporary:
            table.write_parquet(temporary)
        if features is not None:
            run.save_tensors(run.features, *features.to_parts())

    def with_items(self, source: Any, *, item: str | None = None) -> "Recommender":
        """The same model with more items, whose vectors are made of their features; nothing is kept.

        Parameters
        ----------
        source, item
            As in `with_features`; the columns are those of the items file. Known items get other attributes.

        Examples
        --------
        >>> model = model.with_items([{"id": "new", "category": "books", "price": 9.5}])  # doctest: +SKIP
        """
        if self.item_table is None:
            raise ConfigError(
                "the run has no item features to learn from; give it some with: hdccf items RUN items.parquet"
            )
        return self._featured(updated(self.item_table, read_items(source, item)), self.feature_map)

    def _featured(self, table: pl.DataFrame, features: FeatureMap | None) -> "Recommender":
        """With a table of items, and vectors of those that have no interactions."""
        model, split, calibration = self.model, self.split, self.calibration
        if features is not None:
            split = extended(split, table, self.items)
            train = split.joined() if self.refit else split.train
            build = entry_named(self.name).build
            model = build(self.settings, train, torch.Generator().manual_seed(self.seed))
            calibration = features.fill(model, self.model, calibration, train, table)
        found = Recommender(
            model,
            self.settings,
            split,
            seed=self.seed,
            seconds=self.seconds,
            path=self._path,
            config=self.config,
            index_above=self.index_above,
            calibration=calibration,
            item_table=table,
            feature_map=features,
            refit=None if self.refit is None else Weights(model, calibration),
            result=self.result,
        )
        found._without_features = self._without_features or self
        return found

    def _fresh(self, lists: Lists | None, n: int) -> list[Codes]:
        """The fresh items of n users."""
        if lists is None:
            return [np.zeros(0, np.int64)] * n
        if len(lists) != n:
            raise ConfigError(f"fresh has {len(lists)} lists for {n} users; give one for each, empty or not")
        return codes_of(lists, self.items, "users")

    def _history(self, code: int | None, history: str = "all") -> Codes:
        """The items of a user in order of time; none for a user whom the model does not know."""
        events = self._events_of(history)
        return np.zeros(0, np.int64) if code is None else events.by_user.of(code).astype(np.int64)

    def _groups(
        self, codes: Sequence[int | None], fresh: Sequence[Codes], history: str, popularity: float | None
    ) -> Iterator[_Group]:
        """Known users as they are, users with fresh items by their longer history, the rest by popularity."""
        usual: list[int] = []
        longer: list[int] = []
        empty: list[int] = []
        histories = []
        for place, (code, items) in enumerate(zip(codes, fresh, strict=True)):
            had = self._history(code, history)
            # A repeat counts once, where it came first, as in data that is read.
            new = items[~np.isin(items, had)]
            if len(new):
                longer.append(place)
                histories.append(np.concatenate([had, new]))
            else:
                (usual if len(had) else empty).append(place)
        if usual:
            rows = torch.tensor([codes[place] for place in usual])
            yield _Group("model", self.scorer(history, popularity), rows, np.array(usual), self._seen)
        if longer:
            events = as_histories(histories, self.items)
            seen = Neighbours.of(events.by_user, self.n_items)
            scorer = self._new_users(events, popularity)
            yield _Group("model", scorer, torch.arange(len(longer)), np.array(longer), seen)
        if empty:
            rows = torch.zeros(len(empty), dtype=torch.int64)
            yield _Group("popular", self._popular, rows, np.array(empty), None)

    @cached_property
    def _popular(self) -> Scorer:
        """The number of users of each item, for histories that say nothing."""
        entry = entry_named("most-popular")
        return entry.build(entry.settings(), self.events, torch.Generator()).scorer()

    def _of_groups(self, name: str, ids: pl.Series, groups: Iterator[_Group], wanted: Wanted) -> pl.DataFrame:
        """The lists of all groups in the order of the request, each with its source."""
        found: list[Best] = []
        sources = np.full(len(ids), "model", object)
        for group in groups:
            sources[group.places], done = group.source, 0
            own = wanted if wanted.seen is None else wanted._replace(seen=group.seen)
            best = exact_best if group.source == "popular" else self._best
            for part in best(group.scorer, group.rows, own):
                some = group.places[done : done + len(part.rows)]
                found.append(part._replace(rows=torch.from_numpy(some)))
                done += len(part.rows)
        train = self.split.train
        order = pl.Series(np.arange(len(ids)))
        frame = listed({"place": order}, {"item": train.item_ids}, found, train.titles)
        frame = frame.sort("place", maintain_order=True)
        places = frame["place"].to_numpy()
        source = pl.Series(sources[places].tolist(), dtype=pl.String)
        return frame.with_columns(place=ids.gather(places), source=source).rename({"place": name})

    def _new_users(self, events: Interactions, popularity: float | None = None) -> Scorer:
        scorer = self.model.users_from(events)
        return self.calibration.with_popularity(popularity).apply(scorer, events)

    def _wanted(
        self,
        k: int,
        seen: Neighbours | None,
        allow: Ids | None,
        deny: Ids | None,
        where: Where | None = None,
        diversity: float = 0.0,
    ) -> Wanted:
        if k < 1:
            raise ConfigError(f"k={k} recommends nothing; ask for 1 or more")
        if not 0 <= diversity <= 1:
            raise ConfigError(f"diversity={diversity} is not possible; give a number from 0 to 1")
        if allow is None and deny is None and not where:
            return Wanted(k, seen, None, diversity)
        allowed = torch.full((self.n_items,), allow is None)
        if allow is not None:
            known = self.items.known(allow)
            if not len(known):
                raise DataError("none of the allowed items is in the catalogue, so that nothing is left")
            allowed[torch.from_numpy(known)] = True
        if deny is not None:
            allowed[torch.from_numpy(self.items.known(deny))] = False
        if where:
            allowed &= torch.from_numpy(matching(self.attributes, where))
        return Wanted(k, seen, allowed, diversity)

    @cached_property
    def attributes(self) -> pl.DataFrame:
        """A row for each item of the catalogue: whether the items file has it (`given`), and its columns."""
        if self.item_table is None:
            raise ConfigError(
                "the run has no item attributes; give it some with: hdccf items RUN items.parquet"
            )
        return aligned(self.item_table, self.split.train.item_ids)

    def _best(self, scorer: Scorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> Iterator[Best]:
        if wanted.diversity:
            pool = self._best(scorer, rows, wanted._replace(k=pool_size(wanted.k), diversity=0.0))
            return (diversified(best, wanted.k, wanted.diversity, self.between_items) for best in pool)
        index = self.index
        if index is None:
            return exact_best(scorer, rows, wanted)
        return index.best(scorer, rows, wanted)

    def between_items(self, items: Int64[Tensor, "b p"]) -> Float[Tensor, "b p p"]:
        """The cosine of each two items of a list, by their vectors or else by their users."""
        scorer = self._by_all_events
        if isinstance(scorer, VectorScorer):
            vectors = unit(scorer.similarity.scaled(scorer.items.embedding[items].detach()))
            return vectors @ vectors.mT
        return torch.stack([self._shared.to_all(some)[:, some] for some in items])

    @cached_property
    def _shared(self) -> Relation:
        return co_occurrence(self.events, "items")

    def _of_users(self, scorer: Scorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> pl.DataFrame:
        train = self.split.train
        found = self._best(scorer, rows, wanted)
        return listed({"user": train.user_ids}, {"item": train.item_ids}, found, train.titles)

    def __repr__(self) -> str:
        return f"Recommender({self.name}, seed {self.seed}, {self.split!r})"


class Weights(NamedTuple):
    """A model with trained weights, and its calibration."""

    model: Model
    calibration: Calibration


def load_calibration(run: RunFolder) -> Calibration | None:
    """What validation chose for a run; None where nothing was chosen."""
    if not run.calibration.exists():
        return None
    tensors, facts = run.load_tensors(run.calibration)
    try:
        return Calibration.from_parts(tensors, facts)
    except (KeyError, TypeError, ValueError) as cause:
        raise RunError(f"{run.calibration} is damaged ({cause!r}); train again") from cause


def load_run(path: str | Path, *, index_above: int | None = None, items: bool = True) -> Recommender:
    """Opens the folder of a run with its best weights.

    Parameters
    ----------
    path
        The folder that `hdccf train` or `fit(..., out=...)` wrote.
    index_above
        Catalogues with more items than this are searched through an approximate index; None is exact.
    items
        Whether to read the run's items file: attributes, and items without interactions. Evaluation does
        without.

    Examples
    --------
    >>> model = hdccf.load_run("runs/ml-100k-hdccf-seed0")  # doctest: +SKIP
    >>> model.recommend(["196"], k=10)  # doctest: +SKIP
    """
    run = RunFolder.open(path)
    if not run.best.exists():
        raise RunError(f"{run.path} has no trained weights yet; finish it with: {resume_command(run.path)}")
    split, answering, refit = run.split(), run.answering, None
    if answering is not run:
        events = answering.split().train
        model = _load_model(answering, events)
        refit = Weights(
            model, load_calibration(answering) or Calibration.neutral(run.settings, model.scorer(), events)
        )
    found = Recommender(
        _load_model(run, split.train),
        run.settings,
        split,
        seed=run.seed,
        calibration=load_calibration(run),
        path=run.path,
        config=run.config,
        index_above=index_above,
        refit=refit,
        result=result_of(run),
    )
    if not items or not run.items.exists():
        return found
    try:
        table = read_parquet(run.items)
        features = FeatureMap.from_parts(*run.load_tensors(run.features)) if run.features.exists() else None
    except (OSError, pl.exceptions.PolarsError, KeyError, TypeError, ValueError) as cause:
        raise RunError(
            f"the item features of {run.path} are damaged ({one_line(cause)}); "
            f"give them again with: hdccf items {run.path} items.parquet"
        ) from cause
    return found._featured(table, features)


def _load_model(run: RunFolder, train: Interactions) -> Model:
    """The model of a run with its best weights."""
    model = entry_named(run.model).build(run.settings, train, torch.Generator().manual_seed(run.seed))
    tensors, _ = run.load_tensors(run.best)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise RunError(f"{run.best} has weights that are no finite numbers; train again")
    checkpoint.fill(model, tensors, run.best)
    return model
