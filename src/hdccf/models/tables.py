"""The user's and the item's vectors: free, one a node, or made of the recent history."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from hdccf.data.cuts import NO_ITEM, History, Windows
from hdccf.kernels.sparse_gradients import saves
from hdccf.models.attention import HistoryAttention
from hdccf.similarity import Vectors, unit


class Table(nn.Module):
    """One free vector a node, and a second one for the modulation to look at where `separate`."""

    def __init__(
        self, n_nodes: int, dim: int, *, separate: bool, std: float, sparse: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(std * torch.randn(n_nodes, dim, generator=generator))
        self.factors = (
            nn.Parameter(std * torch.randn(n_nodes, dim, generator=generator)) if separate else None
        )
        self.sparse = sparse

    def of(self, nodes: Int64[Tensor, "*n"] | None) -> Vectors:
        """The vectors of some nodes; of all of them where None."""
        embedding = self._look_up(self.embedding, nodes)
        return Vectors(embedding, embedding if self.factors is None else self._look_up(self.factors, nodes))

    def all(self) -> Vectors:
        return self.of(None)

    def sum_of(self, history: History, n_rows: int) -> Vectors:
        """For each row the normalised, weighted sum of its items' unit vectors; zero where it has none."""

        # An item stands in many histories: its vector is looked up and normalised once, and the bag adds up
        # without a vector for each place of each history.
        distinct, places = torch.unique(history.items, return_inverse=True)
        starts = torch.searchsorted(history.rows, torch.arange(n_rows, device=history.rows.device))

        def add_up(table: nn.Parameter) -> Float[Tensor, "rows d"]:
            vectors = unit(self._look_up(table, distinct))
            weights = history.weights.to(table.dtype)
            return unit(
                functional.embedding_bag(places, vectors, starts, mode="sum", per_sample_weights=weights)
            )

        embedding = add_up(self.embedding)
        return Vectors(embedding, embedding if self.factors is None else add_up(self.factors))

    def attended(
        self, windows: Windows, attention: HistoryAttention, generator: torch.Generator | None
    ) -> Vectors:
        """For each row what attention makes of the items of its window up to its place."""
        present = windows.items != NO_ITEM
        distinct, places = torch.unique(windows.items.clamp_min(0), return_inverse=True)
        items = functional.embedding(places, self._look_up(self.embedding, distinct))
        n_windows = len(windows.items) if windows.n_windows is None else windows.n_windows
        looked = attention(items, present, generator, first=windows.first, n_windows=n_windows)
        users = looked.flatten(0, 1)[windows.places]
        return Vectors(users, users)

    def _look_up(self, table: nn.Parameter, nodes: Int64[Tensor, "*n"] | None) -> Tensor:
        if nodes is None:
            return table
        return functional.embedding(nodes, table, sparse=self.sparse or saves(nodes, table))
