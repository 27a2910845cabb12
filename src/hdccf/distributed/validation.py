"""Judging spread over the workers: each ranks its own users, and only sums go round."""

import numpy as np
import torch
from torch import Tensor

from hdccf.config import Settings, TrainingSettings
from hdccf.distributed.members import Member
from hdccf.distributed.store import Stretch
from hdccf.evaluation import metrics
from hdccf.evaluation.ranking import Ranker
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model
from hdccf.training.fit import parse_metric


def model_of_some(model: Model, settings: Settings, member: Member) -> Model:
    """The model as the own users alone would have it: over the same memory, and numbered from 0."""
    build = entry_named(name_of(settings)).build
    alone = build(settings, member.split.train, torch.Generator())
    restrict(alone, model, member.users)
    return alone


def restrict(alone: Model, model: Model, users: Stretch) -> None:
    """Gives a model of some users the weights of the model of all, without copying them."""
    assert isinstance(alone, torch.nn.Module)  # noqa: S101 - all models that a process group trains are
    alone.load_state_dict(slice_of(model.state_dict(), alone, users), assign=True)


def slice_of(whole: dict[str, Tensor], alone: Model, users: Stretch) -> dict[str, Tensor]:
    """What of the weights of all a model of some users has."""
    return {
        # What has another length has a row a user.
        name: whole[name] if fresh.shape == whole[name].shape else whole[name][users.first : users.last]
        for name, fresh in alone.state_dict().items()
    }


class DistributedValidator:
    """The validation metric: the mean over the users of all workers."""

    def __init__(self, settings: Settings, member: Member) -> None:
        self.settings, self.member = settings, member
        self.alone: Model | None = None
        self.ranker: Ranker | None = None
        if len(member.split.validation):
            self.ranker = Ranker(
                member.split, "validation", drawn=lambda: member.store.candidates_of(member.users)
            )

    def __call__(self, model: Model) -> dict[str, float]:
        settings = self.settings
        if not self.member.store.meta["validation"] or not isinstance(settings, TrainingSettings):
            return {}
        sums = self.member.group.all_reduce(torch.tensor(self._sum_and_count(model), dtype=torch.float64))
        return {settings.validation_metric: float(sums[0] / sums[1])}

    def _sum_and_count(self, model: Model) -> tuple[float, float]:
        if self.ranker is None or not isinstance(self.settings, TrainingSettings):
            return 0.0, 0.0
        if self.alone is None:
            self.alone = model_of_some(model, self.settings, self.member)
        else:
            restrict(self.alone, model, self.member.users)
        protocol, name = parse_metric(self.settings.validation_metric)
        places = self.ranker.rank(self.alone.scorer(), protocol).places
        values = metrics.per_user(places, name)
        return float(np.nansum(values)), float(np.count_nonzero(~np.isnan(values)))
