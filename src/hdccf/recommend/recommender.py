"""The recommender: a trained model with its data, queried by user and item ids, answering in data frames."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Int64
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import EXPLAINED, REASONS, TOP_K, FitOptions, Settings
from hdccf.console import note, progress_bar
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split, no_split
from hdccf.errors import ConfigError, DataError, RunError
from hdccf.files import atomic_directory, write_json
from hdccf.models import entry_named, name_of
from hdccf.models.base import Candidates, Columns, Kind, Model, Scorer, Scores, Users, VectorScorer
from hdccf.models.calibration import Calibration
from hdccf.recommend import export
from hdccf.recommend.candidates import Best, Index, Wanted, exact_best
from hdccf.recommend.explain import Explanation, explained, surrogate_for
from hdccf.recommend.frames import Ids, Lists, Vocabulary, histories_of, listed, titled
from hdccf.recommend.run_folder import REFIT, RunFolder, result_of, resume_command
from hdccf.recommend.similar import Relation, best_related, relation

HISTORIES = ("all", "train")
"""What a known user is made of when the model answers: all of their events, or the training part."""

_USERS_AT_ONCE = 4096


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
        return self._scorer.score_block(users, items)

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self._scorer.score_rows(users, items)

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
        """What scores the known users, by contiguous ids; `popularity` is another setting of the dial."""
        if history not in HISTORIES:
            raise ConfigError(f"history={history!r} is unknown; choose one of {list(HISTORIES)}")
        if popularity is None:
            return self._answering if history == "all" else self._scorer
        if history == "all":
            return self.calibration.with_popularity(popularity).apply(self._by_all_events, self.events)
        return self._held_out.calibration.with_popularity(popularity).apply(self._trained, self.split.train)

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
        include_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        history: str = "all",
        popularity: float | None = None,
    ) -> pl.DataFrame:
        """Recommends the k best items for each user.

        Parameters
        ----------
        users
            Ids of known users.
        k
            Length of the lists. A user with fewer candidates gets fewer.
        include_seen
            Whether items of the user's history may be recommended.
        allow, deny
            Items: only these, none of these. Ids that are not in the catalogue are ignored.
        history
            "all" uses every event of the user; "train" the training part only, with the weights before a
            refit.
        popularity
            The popularity dial γ, instead of the value that was chosen on validation: below 0 more popular
            items, above 0 fewer, 1 only what is particular to the user.

        Returns
        -------
        Rows of user, rank, item, score (and title), best first.

        Examples
        --------
        >>> model.recommend(["196", "22"], k=10)  # doctest: +SKIP
        """
        wanted = self._wanted(k, None if include_seen else self._seen, allow, deny)
        rows = torch.from_numpy(self.users.codes(users))
        return self._of_users(self.scorer(history, popularity), rows, wanted)

    def recommend_for_items(
        self,
        lists: Lists,
        k: int = TOP_K,
        *,
        include_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        popularity: float | None = None,
    ) -> pl.DataFrame:
        """Recommends items for new users (fold-in), each given as a list of items, the latest last.

        Parameters
        ----------
        lists
            One list of item ids for each new user.
        k, include_seen, allow, deny, popularity
            As in `recommend`.

        Returns
        -------
        Rows of list (its number, from 0), rank, item, score (and title).

        Examples
        --------
        >>> model.recommend_for_items([["50", "181"]], k=5)  # doctest: +SKIP
        """
        events = histories_of(lists, self.items, "users")
        seen = None if include_seen else Neighbours.of(events.by_user, self.n_items)
        wanted = self._wanted(k, seen, allow, deny)
        scorer = self._new_users(events, popularity)
        found = self._best(scorer, torch.arange(len(lists)), wanted)
        return listed({"list": events.user_ids}, {"item": events.item_ids}, found, self.split.train.titles)

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
        history: str = "all",
        popularity: float | None = None,
        overwrite: bool = False,
        progress: bool = False,
    ) -> None:
        """Writes the k best items of every user to one file, in memory that does not grow with the users.

        It is Parquet, CSV or JSON Lines by its ending: .parquet, .csv or .jsonl.
        """
        target = Path(path)
        export.check_ending(target)
        wanted = self._wanted(k, None if include_seen else self._seen, allow, deny)
        scorer, every_user = self.scorer(history, popularity), torch.arange(self.n_users)
        schema = self._of_users(scorer, every_user[:0], wanted).schema
        with progress_bar("recommending", self.n_users, enabled=progress) as advance:

            def frames() -> Iterator[pl.DataFrame]:
                for rows in torch.split(every_user, _USERS_AT_ONCE):
                    yield self._of_users(scorer, rows, wanted)
                    advance(len(rows))

            export.write_frames(target, frames(), schema, overwrite=overwrite)

    def score(self, users: Ids, items: Ids, *, history: str = "all") -> pl.DataFrame:
        """Scores pairs, the first user with the first item and so on: rows of user, item, score (and title).

        Examples
        --------
        >>> model.score(["196", "22"], ["242", "302"])  # doctest: +SKIP
        """
        rows, columns = self.users.codes(users), self.items.codes(items)
        if len(rows) != len(columns):
            raise ConfigError(
                f"{len(rows)} users and {len(columns)} items make no pairs; give as many of both"
            )
        scores = self.scorer(history).score_rows(torch.from_numpy(rows), torch.from_numpy(columns)[:, None])
        train = self.split.train
        frame = pl.DataFrame(
            {
                "user": train.user_ids.gather(rows),
                "item": train.item_ids.gather(columns),
                "score": scores[:, 0].numpy(),
            }
        )
        return titled(frame, columns, train.titles)

    def relation(self, kind: Kind) -> Relation:
        """What compares items, or users, with each other; its `stated` says so in words."""
        if kind not in self._relations:
            self._relations[kind] = relation(self.model, self._by_all_events, self.events, kind)
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
        self, user: Any, items: Ids | None = None, *, k: int = EXPLAINED, top: int = REASONS
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

        Returns
        -------
        The contributions, what they are contributions to, and Kendall's τ between that and the score.
        """
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
        """Vectors and vocabularies into a folder: "parquet" or "numpy"."""
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
            self._by_all_events,
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
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            self._keep(folder, self.split, self._held_out)
            if self.refit is not None:
                self._keep(folder / REFIT, no_split(self.events), self.refit)
        self._path = self._path or Path(path)

    def _keep(self, folder: Path, split: Split, weights: "Weights") -> None:
        options = FitOptions(**self.config.get("options", {}))
        about = self.config.get("data", {})
        run = RunFolder.create(folder, {self.name: self.settings}, split, self.seed, options, about)
        result = self.result or {"best_epoch": 0, "best_value": None, "seconds": round(self.seconds, 3)}
        run.save_tensors(run.best, weights.model.state_dict(), {"epoch": result["best_epoch"]})
        run.save_tensors(run.calibration, *weights.calibration.to_parts())
        write_json(run.result, result)

    def _new_users(self, events: Interactions, popularity: float | None = None) -> Scorer:
        scorer = self.model.users_from(events)
        return self.calibration.with_popularity(popularity).apply(scorer, events)

    def _wanted(self, k: int, seen: Neighbours | None, allow: Ids | None, deny: Ids | None) -> Wanted:
        if k < 1:
            raise ConfigError(f"k={k} recommends nothing; ask for 1 or more")
        if allow is None and deny is None:
            return Wanted(k, seen, None)
        allowed = torch.full((self.n_items,), allow is None)
        if allow is not None:
            known = self.items.known(allow)
            if not len(known):
                raise DataError("none of the allowed items is in the catalogue, so that nothing is left")
            allowed[torch.from_numpy(known)] = True
        if deny is not None:
            allowed[torch.from_numpy(self.items.known(deny))] = False
        return Wanted(k, seen, allowed)

    def _best(self, scorer: Scorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> Iterator[Best]:
        index = self.index
        if index is None:
            return exact_best(scorer, rows, wanted)
        return index.best(scorer, rows, wanted)

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


def load_run(path: str | Path, *, index_above: int | None = None) -> Recommender:
    """Opens the folder of a run with its best weights.

    Parameters
    ----------
    path
        The folder that `hdccf train` or `fit(..., out=...)` wrote.
    index_above
        Catalogues with more items than this are searched through an approximate index; None is exact.

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
    return Recommender(
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


def _load_model(run: RunFolder, train: Interactions) -> Model:
    """The model of a run with its best weights."""
    model = entry_named(run.model).build(run.settings, train, torch.Generator().manual_seed(run.seed))
    tensors, _ = run.load_tensors(run.best)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise RunError(f"{run.best} has weights that are no finite numbers; train again")
    checkpoint.fill(model, tensors, run.best)
    return model
