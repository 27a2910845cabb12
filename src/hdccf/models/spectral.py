"""First vectors from the spectrum of the training pairs, where random ones know nothing.

With X the matrix of who had what and D its degrees, the leading singular vectors of D_u^−¼ X D_i^−¼, each as
long as its singular value, already rank items about as well as a fifth of a training does, and cost a tenth
of a second: a random basis is multiplied by the sparse matrix a few times (Halko et al., 2011). With the
exponent 0 popular items are all that the first directions say, with ½ nothing of popularity is left
(decision 10).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hdccf.data.graph import Graph, Neighbours
from hdccf.models.layers import Table
from hdccf.similarity import unit

_DEGREE_POWER = -0.25
_MORE_COLUMNS = 16
"""Beyond those wanted, so that the last of them are found as well as the first."""
_STAYS = 0.1
"""Of the random start."""
_ROUNDS = 2
"""Of multiplying; with more, a sparse graph's first directions are small closed circles of users."""


@torch.no_grad()
def start_spectral(
    graph: Graph, users: Table | None, items: list[Table], dim: int, std: float, generator: torch.Generator
) -> None:
    """Turns the first `dim` columns of random tables into the spectrum's directions, as long as they were.

    A little of what was random stays: a dimension that the spectrum does not have would begin at zero on both
    sides of every product, and never learn. Nodes without a training pair stay as they are.
    """
    of_users, of_items = spectral_vectors(graph, dim, generator)
    tables = [(table.embedding[:, :dim], of_items) for table in items]
    if users is not None:
        tables.append((users.embedding[:, :dim], of_users))
    for table, vectors in tables:
        directions = unit(functional.pad(vectors, (0, dim - vectors.shape[1])))
        known = (directions != 0).any(1, keepdim=True)
        table.copy_(torch.where(known, std * math.sqrt(dim) * directions + _STAYS * table, table))


def spectral_vectors(
    graph: Graph, dim: int, generator: torch.Generator
) -> tuple[Float[Tensor, "users k"], Float[Tensor, "items k"]]:
    """Left and right singular vectors times their singular values, k = `dim` or fewer, in both tables."""
    dtype = torch.get_default_dtype()
    of_users, of_items = (
        neighbours.degrees.clamp_min(1).to(dtype).pow(_DEGREE_POWER).unsqueeze(1)
        for neighbours in (graph.items_of, graph.users_of)
    )
    width = min(dim + _MORE_COLUMNS, graph.n_users, graph.n_items)
    basis = torch.randn(graph.n_items, width, generator=generator, dtype=dtype)
    for _ in range(_ROUNDS):
        image = of_users * _sums(graph.items_of, of_items * basis)
        basis = torch.linalg.qr(of_items * _sums(graph.users_of, of_users * image)).Q
    image = of_users * _sums(graph.items_of, of_items * basis)
    # The image is tall and thin: the small matrix of its products has its spectrum.
    squares, turn = torch.linalg.eigh((image.T @ image).double())
    turn = turn.flip(1)[:, :dim].to(dtype)
    values = squares.flip(0)[:dim].clamp_min(0).sqrt().to(dtype)
    return image @ turn, (basis @ turn) * values


def _sums(neighbours: Neighbours, vectors: Float[Tensor, "columns k"]) -> Float[Tensor, "nodes k"]:
    """The sparse matrix of ones times vectors, as a bag a node."""
    # A basis from QR lies column by column, and bags read rows.
    rows = vectors.contiguous()
    return functional.embedding_bag(
        neighbours.flat, rows, neighbours.starts, mode="sum", include_last_offset=True
    )
