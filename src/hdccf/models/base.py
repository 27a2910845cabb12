"""What the trainer asks of a model, and what a model gives back once it is trained."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from hdccf.config import Settings
from hdccf.data.interactions import Interactions
from hdccf.models.scoring import Scorer
from hdccf.similarity import SHORTEST, Cosine, Dot, Similarity, Vectors, unit


class Objective(NamedTuple):
    """One loss to be minimised, and which of the model's parameters it drives.

    In a process group the loss and its terms are this member's share: those of all members add up to the batch's.
    """

    loss: Float[Tensor, ""]
    group: str
    terms: dict[str, Float[Tensor, ""]]
    """What to show and log beside the loss, detached: its parts, clip rates."""


@runtime_checkable
class Model(Protocol):
    """A model yields its losses with the parameters each one drives; the trainer steps between them.

    So a plain model yields one objective a batch, an adversarial one two, and both share the loop. A model
    whose `groups` are empty is finished when it is built, or when it is `Solved`.
    """

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]: ...

    @property
    def n_batches(self) -> int: ...

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        """One pass over the training data, drawn from nothing but the generator."""
        ...

    def objectives(self, batch: Any, generator: torch.Generator) -> Iterator[Objective]: ...

    def diagnose(self, batch: Any) -> dict[str, float]:
        """What the negatives of a batch did; logged once an epoch."""
        ...

    def scorer(self) -> Scorer: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@runtime_checkable
class SmallSteps(Protocol):
    """A model whose steps can be too small to be shared among threads (decision 25)."""

    @property
    def numbers_a_step(self) -> int | None:
        """How many numbers a step looks up; None where they are many in any case."""
        ...


@runtime_checkable
class Solved(Protocol):
    """A model without groups that computes its weights at one go instead of being trained.

    Building it only allocates them, so that a run that is opened fills them in and solves nothing again.
    """

    def solve(self, generator: torch.Generator, progress: bool) -> None: ...


class Untrained(nn.Module):
    """What a model without groups answers to the trainer's questions about training."""

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {}

    @property
    def n_batches(self) -> int:
        return 0

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        return iter(())

    def objectives(self, batch: Any, generator: torch.Generator) -> Iterator[Objective]:
        return iter(())

    def diagnose(self, batch: Any) -> dict[str, float]:
        return {}


Build = Callable[[Any, Interactions, torch.Generator], Model]
Remarks = Callable[[Any, Interactions], list[str]]
"""What settings come to on some training pairs, in words."""


@dataclass(frozen=True)
class Entry:
    """A model in the registry: its settings, how it is built from them and training pairs, its presets."""

    settings: type[Settings]
    build: Build
    summary: str
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: Remarks = lambda settings, train: []
    """Choices that the settings leave to the data, for the notes before training."""


def weighted_mean(
    values: Float[Tensor, " b"], weights: Float[Tensor, " b"], whole: Float[Tensor, " all"] | None = None
) -> Float[Tensor, ""]:
    """0 where nothing has any weight, as when all positives of a batch are too old to count.

    With the weights of the whole batch, of which the values are a part: what the part adds to the mean.
    """
    total = (weights if whole is None else whole).sum()
    return (values * weights).sum() / total.clamp_min(torch.finfo(weights.dtype).tiny)


_WITHIN_CACHES = 1 << 22
"""Numbers of a table, 16 MB."""


class VectorScorer:
    """Scores by a similarity of a user's and an item's vectors."""

    def __init__(self, similarity: Similarity, users: Vectors, items: Vectors) -> None:
        self.similarity = similarity
        self.users = users
        self.items = items

    @property
    def n_users(self) -> int:
        return len(self.users.embedding)

    @property
    def n_items(self) -> int:
        return len(self.items.embedding)

    @torch.no_grad()
    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        if isinstance(self.similarity, Cosine):
            unit_items = self._unit_items if items is None else self._unit_items[items]
            return unit(self.users.embedding[users]) @ unit_items.T
        columns = self.items if items is None else _pick(self.items, items)
        return self.similarity.all_pairs(_pick(self.users, users), columns)

    def score_user(self, user: int, items: NDArray[np.int64] | None = None) -> NDArray[np.floating[Any]]:
        """One user with every item or some, in memory of its own: what a service asks for, without detours.

        NumPy's product of a small table takes half the time of torch's, which wakes its threads for it; one
        that is larger than the caches is read faster by all of them.
        """
        vector = self.user_vector(user)
        if self._tables is None or vector is None:
            row = torch.tensor([user], device=self.users.embedding.device)
            columns = None if items is None else torch.from_numpy(items).to(row.device)
            return self.score_block(row, columns)[0].cpu().numpy()
        table = self._tables[1]
        if items is None and table.size > _WITHIN_CACHES:
            return torch.mv(torch.from_numpy(table), torch.from_numpy(vector)).numpy()
        # Brackets would take twice as long.
        rows = table if items is None else table.take(items, axis=0, mode="clip")
        scores: NDArray[np.floating[Any]] = rows @ vector
        return scores

    def user_vector(self, user: int) -> NDArray[np.floating[Any]] | None:
        """Whose product with an item's (of unit length for a cosine) is f; None where f is no product."""
        if self._tables is None:
            return None
        vector: NDArray[np.floating[Any]] = self._tables[0][user]
        if isinstance(self.similarity, Cosine):
            vector = vector / max(math.sqrt(vector @ vector), SHORTEST)
        return vector

    @cached_property
    def _tables(self) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]] | None:
        """Users and items (of unit length for a cosine) as NumPy sees them; None where f is no product."""
        users, items = self.users.embedding.detach(), self.items.embedding.detach()
        if not isinstance(self.similarity, Dot | Cosine) or items.device.type != "cpu":
            return None
        return users.numpy(), (self._unit_items if isinstance(self.similarity, Cosine) else items).numpy()

    @cached_property
    def _unit_items(self) -> Float[Tensor, "n d"]:
        """Once for all users who ask: for one user this takes many times what the product takes."""
        return unit(self.items.embedding.detach())

    @torch.no_grad()
    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        rows = _pick(self.users, users.unsqueeze(1))
        return self.similarity.matching(rows, _pick(self.items, items))


def _pick(vectors: Vectors, which: Int64[Tensor, "*n"]) -> Vectors:
    embedding = vectors.embedding[which]
    # Where both are one tensor, one look-up does.
    return Vectors(embedding, embedding if vectors.factors is vectors.embedding else vectors.factors[which])
