"""What happens to a tile of `pairwise` around its matrix products, by torch: for every device and precision.

torch goes over the tile once for each operation, and so takes several times as long as `pairwise_kernels`.

A tile is z[u, k, i] of the rows from `row` and the columns from `start` on; other tensors come whole.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def fold(
    part: Float[Tensor, "m d"],
    e: Float[Tensor, "m l"],
    right_weight: Float[Tensor, "d l"],
    product_weight: Float[Tensor, "d l"],
    folded: Float[Tensor, "r d l1"],
    row: int,
) -> None:
    """folded[u, k] = V[k] + W[k]·e[row + u], and the part as one more column."""
    rows = slice(row, row + folded.shape[0])
    torch.addcmul(right_weight, e[rows].unsqueeze(1), product_weight, out=folded[:, :, :-1])
    folded[:, :, -1] = part[rows]


def unfold(
    to_folded: Float[Tensor, "r d l"],
    e: Float[Tensor, "m l"],
    product_weight: Float[Tensor, "d l"],
    to_e: Float[Tensor, "m l"],
    to_right_weight: Float[Tensor, "d l"],
    to_product_weight: Float[Tensor, "d l"],
    row: int,
) -> None:
    """Adds the gradients of what was folded, but for the part."""
    rows = slice(row, row + to_folded.shape[0])
    to_e[rows] += (to_folded * product_weight).sum(1)
    to_right_weight += to_folded.sum(0)
    to_product_weight += (to_folded * e[rows].unsqueeze(1)).sum(0)


def score(
    z: Float[Tensor, "r d c"],
    p: Float[Tensor, "m d"],
    q_t: Float[Tensor, "d n"],
    scores: Float[Tensor, "m n"],
    row: int,
    start: int,
) -> None:
    """scores[u, i] = Σ_k p[u, k]·q[i, k]·σ(z[u, k, i])², of the tile's rows and columns. z is lost."""
    rows, columns = slice(row, row + z.shape[0]), slice(start, start + z.shape[2])
    z.sigmoid_().square_().mul_(q_t[:, columns])
    scores[rows, columns] = torch.bmm(p[rows].unsqueeze(1), z).squeeze(1)


def differentiate(
    z: Float[Tensor, "r d c"],
    p: Float[Tensor, "m d"],
    q_t: Float[Tensor, "d n"],
    grad: Float[Tensor, "m n"],
    to_p: Float[Tensor, "m d"],
    to_q_t: Float[Tensor, "d n"],
    to_part: Float[Tensor, "m d"],
    row: int,
    start: int,
) -> None:
    """Adds a tile's gradients of p, q and the part; z becomes its own gradient.

    With m = σ(z), ∂f/∂z = 2·p·q·m²·(1 − m): the sigmoid of the value is that of the gradient too.
    """
    rows, columns = slice(row, row + z.shape[0]), slice(start, start + z.shape[2])
    m, p = z.sigmoid_(), p[rows]
    shared = (m * m).mul_(grad[rows, None, columns])
    to_q_t[:, columns] += torch.bmm(p.T.unsqueeze(1), shared.transpose(0, 1)).squeeze(1)
    to_p[rows] += shared.mul_(q_t[:, columns]).sum(2)
    torch.addcmul(shared, shared, m, value=-1, out=z)
    to_part[rows] += z.mul_(2 * p.unsqueeze(2)).sum(2)
