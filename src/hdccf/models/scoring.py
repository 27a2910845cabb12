"""What evaluation and recommendation ask of anything that scores: a model, a rule, a peer's vectors."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor


@runtime_checkable
class Scorer(Protocol):
    """Higher is better. Ids are the contiguous ones; scores are finite."""

    @property
    def n_users(self) -> int: ...

    @property
    def n_items(self) -> int: ...

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        """Every given user with every given item; all items where none are given."""
        ...

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        """Each user with candidates of their own."""
        ...
