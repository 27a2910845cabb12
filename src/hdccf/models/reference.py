"""Two rules that any model must beat: most popular and random. Nothing is trained."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hdccf.config import Calibrated, Settings
from hdccf.data.interactions import Interactions
from hdccf.data.splitmix import mix
from hdccf.models.base import Candidates, Columns, Model, Scorer, Scores, Users


class MostPopular(Settings):
    """The items with the most users, for every user.

    Examples
    --------
    >>> model = hdccf.fit(split, hdccf.MostPopular())  # doctest: +SKIP
    """

    model: ClassVar[str] = "most-popular"
    weighs_positives: ClassVar[bool] = True

    @property
    def calibration(self) -> Calibrated:
        return "off"


class Random(Settings):
    """A fixed random order of the items for each user: the result of chance.

    Examples
    --------
    >>> model = hdccf.fit(split, hdccf.Random())  # doctest: +SKIP
    """

    model: ClassVar[str] = "random"
    weighs_positives: ClassVar[bool] = True  # it learns from nothing

    @property
    def calibration(self) -> Calibrated:
        return "off"


class _Rule(Model):
    """A model that is finished when it is built, and its own scorer."""

    def __init__(self, settings: Settings, train: Interactions) -> None:
        super().__init__(settings)
        self.n_users, self.n_items = train.n_users, train.n_items

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        raise NotImplementedError

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        columns = torch.arange(self.n_items) if items is None else items
        return self.score_rows(users, columns.expand(len(users), -1))

    def scorer(self) -> Scorer:
        return self


class MostPopularModel(_Rule):
    """An item's score is its number of training users, or the sum of their weights."""

    degrees: Tensor

    def __init__(self, settings: MostPopular, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings, train)
        degrees = np.bincount(train.items, train.weights, train.n_items)
        self.register_buffer("degrees", torch.from_numpy(degrees.astype(np.float32)))

    def users_from(self, events: Interactions) -> Scorer:
        other = MostPopularModel(MostPopular(), events, torch.Generator())
        other.degrees = self.degrees
        return other

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self.degrees[items]


class RandomModel(_Rule):
    """A pair's score is a hash of it and of a salt, so that it needs no memory and never changes."""

    salt: Tensor

    def __init__(self, settings: Random, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings, train)
        self.register_buffer("salt", torch.randint(1 << 62, (), generator=generator))

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        salted = (self.salt + users.unsqueeze(1)).cpu().numpy().view(np.uint64)
        mixed = mix(mix(salted) + items.cpu().numpy().view(np.uint64)).view(np.int64)
        return (torch.from_numpy(mixed).to(users.device) >> 8).to(torch.float32) / float(1 << 55)
