"""Similarities of vectors: dot, cosine, with popularity, euclidean, and the paper's modulated one (Eq. 7–8).

Each scores all pairs of two sets and matching pairs. Each declares the lowest value that it can take, from
which the debiased losses take their lower bound.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hdccf.kernels.pairwise import can_compile, modulated_scores, tiled_scores


class Vectors(NamedTuple):
    """One side of a comparison: users, or items."""

    embedding: Float[Tensor, "*n d"]
    """p or q, what is multiplied."""

    factors: Float[Tensor, "*n d"]
    """e, what the modulation looks at; often the same tensor."""

    def rows(self, which: slice) -> "Vectors":
        return Vectors(self.embedding[which], self.factors[which])


SHORTEST = 1e-12
"""ε of unit vectors: shorter ones are not scaled to length one, but divided by this."""


class Similarity(nn.Module):
    """f(left, right). Not symmetric in general: the modulated one looks at its sides in order."""

    lowest: float = -math.inf
    """The smallest value that f can take; −inf where there is none."""

    is_distance: bool = False
    """Whether f falls with the distance of the points instead of growing with their product."""

    is_product: bool = True
    """Whether f is the product of the points."""

    linearised: str = ""
    """What an explanation by products leaves out or replaces, in words."""

    def scaled(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n k"]:
        """A vector as it is before it is multiplied, or its distance taken."""
        return x

    def user_points(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Left sides as an index takes them: their products (or distances) order items as f does."""
        return self.scaled(x)

    def item_points(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Right sides as an index takes them."""
        return self.scaled(x)

    def item_rows(
        self, points: Float[Tensor, "n k"]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"] | None]:
        """Vectors and what their f is to be multiplied by, so that it is a product with these points.

        The reverse of `item_points` for points of any length; None where no factor is needed.
        """
        return points, None

    def modulation(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n d"] | None:
        """What both sides of a product are multiplied by, for each pair; None where nothing is."""
        return None

    def all_pairs(self, left: Vectors, right: Vectors) -> Float[Tensor, "m n"]:
        """f of every row of the left with every row of the right."""
        raise NotImplementedError

    def matching(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n"]:
        """f of vectors that stand opposite each other; leading dimensions broadcast."""
        raise NotImplementedError


class Dot(Similarity):
    """p·q. Unbounded."""

    def all_pairs(self, left: Vectors, right: Vectors) -> Float[Tensor, "m n"]:
        return left.embedding @ right.embedding.T

    def matching(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n"]:
        return (left.embedding * right.embedding).sum(-1)


class Cosine(Similarity):
    """p·q / (‖p‖·‖q‖), within [−1, 1]."""

    lowest = -1.0

    def scaled(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return unit(x)

    def item_rows(self, points: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
        return points, torch.linalg.vector_norm(points, dim=1)

    def all_pairs(self, left: Vectors, right: Vectors) -> Float[Tensor, "m n"]:
        return unit(left.embedding) @ unit(right.embedding).T

    def matching(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n"]:
        return (unit(left.embedding) * unit(right.embedding)).sum(-1)


class Popular(Similarity):
    """cos(p, q) + popularity: the last number of an item's vector, a tenth of it, is left out of the cosine.

    A cosine has no place for popularity: an item near every user would be near every user's other items.
    The left side are the users, whose last number is not used.
    """

    SHARE = 0.1
    """So that the number, which moves with a step as those of a vector do, matters as much as they do."""

    linearised = ", without the learned popularity"

    def scaled(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n k"]:
        return unit(x[..., :-1])

    def user_points(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return torch.cat([self.scaled(x), torch.ones_like(x[:, :1])], 1)

    def item_points(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return torch.cat([self.scaled(x), self.SHARE * x[:, -1:]], 1)

    def item_rows(self, points: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, " n"]]:
        lengths = torch.linalg.vector_norm(points[:, :-1], dim=1).clamp_min(SHORTEST)
        popularity = points[:, -1] / (self.SHARE * lengths)
        return torch.cat([points[:, :-1], popularity.unsqueeze(1)], 1), lengths

    def all_pairs(self, left: Vectors, right: Vectors) -> Float[Tensor, "m n"]:
        cosines = self.scaled(left.embedding) @ self.scaled(right.embedding).T
        return cosines + self.SHARE * right.embedding[..., -1]

    def matching(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n"]:
        cosines = (self.scaled(left.embedding) * self.scaled(right.embedding)).sum(-1)
        return cosines + self.SHARE * right.embedding[..., -1]


class Euclidean(Similarity):
    """1 − ‖p − q‖ of vectors held within the unit ball, as in collaborative metric learning: within [−1, 1].

    The square of the distance of unit vectors would only be the cosine at half the temperature.
    """

    lowest = -1.0
    is_distance, is_product = True, False
    linearised = ", with the product for the distance"

    def scaled(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return within_ball(x)

    def all_pairs(self, left: Vectors, right: Vectors) -> Float[Tensor, "m n"]:
        p, q = within_ball(left.embedding), within_ball(right.embedding)
        # Not by matrix product: its cancellation turns a distance of 0 into one of 1e-3 in float32.
        distances: Tensor = torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist")
        return 1 - distances

    def matching(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n"]:
        difference = within_ball(left.embedding) - within_ball(right.embedding)
        distances: Tensor = torch.linalg.vector_norm(difference, dim=-1)
        return 1 - distances


class Modulated(Similarity):
    """(m ⊙ p)·(m ⊙ q), m = σ(g(e_right ‖ e_left ‖ e_right ⊙ e_left))  (Eq. 7–8).

    Without hidden sizes g is linear, otherwise a perceptron with rectified hidden layers. The weight of its
    first layer is kept as the three blocks that see the right, the left and their product, as the first two
    cost M + N and only the last M·N. With `normalise` p and q have unit length, and |f| ≤ 1 as m lies
    within (0, 1).

    g starts as a constant near m = 1, where the similarity is close to the unmodulated one.
    """

    is_product = False

    START = 3.0
    """g's first value: σ(3) = 0.953, near 1 and yet with a slope to learn from."""

    SPREAD = 0.1
    """Standard deviation of the last layer's first weights, times the root of its number of inputs."""

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (),
        normalise: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.lowest = -1.0 if normalise else -math.inf
        sizes = [*hidden, dim]
        first_gain = math.sqrt(2 / 3) if hidden else self.SPREAD

        def draw(outputs: int, inputs: int, gain: float) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(outputs, inputs, generator=generator) * (gain / math.sqrt(inputs))
            )

        self.right_weight = draw(sizes[0], dim, first_gain)
        self.left_weight = draw(sizes[0], dim, first_gain)
        self.product_weight = draw(sizes[0], dim, first_gain)
        last = len(sizes) - 1
        self.weights = nn.ParameterList(
            draw(sizes[layer], sizes[layer - 1], self.SPREAD if layer == last else math.sqrt(2))
            for layer in range(1, len(sizes))
        )
        self.biases = nn.ParameterList(
            torch.full((size,), self.START if layer == last else 0.0) for layer, size in enumerate(sizes)
        )

    def scaled(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return unit(x) if self.normalise else x

    def item_rows(
        self, points: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"] | None]:
        return points, torch.linalg.vector_norm(points, dim=1) if self.normalise else None

    def all_pairs(self, left: Vectors, right: Vectors) -> Float[Tensor, "m n"]:
        numbers = left.embedding.numel() * len(right.embedding)
        if not len(self.weights) and can_compile(left.embedding, numbers):
            p, q = self.scaled(left.embedding), self.scaled(right.embedding)
            left_part = functional.linear(left.factors, self.left_weight, self.biases[0])
            weights = (self.right_weight, self.product_weight)
            return modulated_scores(p, q, left_part, left.factors, right.factors, *weights)
        of_left, of_right = self._sides(left, right)
        depth = sum(bias.shape[0] for bias in self.biases)
        return tiled_scores(_score, of_left, of_right, self._layers(), depth)

    def matching(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n"]:
        of_left, of_right = self._sides(left, right)
        return _score(*of_left, *of_right, *self._layers())

    def modulation(self, left: Vectors, right: Vectors) -> Float[Tensor, "*n d"]:
        """m itself, of vectors that stand opposite each other."""
        of_left, of_right = self._sides(left, right)
        return _modulation(*of_left[1:], *of_right[1:], *self._layers())

    def _sides(self, left: Vectors, right: Vectors) -> tuple[list[Tensor], list[Tensor]]:
        """Of each side: p or q, the first layer's term that depends on it alone, and its factors."""
        left_part = functional.linear(left.factors, self.left_weight, self.biases[0])
        right_part = functional.linear(right.factors, self.right_weight)
        p, q = self.scaled(left.embedding), self.scaled(right.embedding)
        return [p, left_part, left.factors], [q, right_part, right.factors]

    def _layers(self) -> list[Tensor]:
        """What is left of g: the weight of products, then weight and bias of each further layer."""
        further = zip(self.weights, list(self.biases)[1:], strict=True)
        return [self.product_weight, *(tensor for layer in further for tensor in layer)]


def _modulation(
    left_part: Tensor,
    left_factors: Tensor,
    right_part: Tensor,
    right_factors: Tensor,
    product_weight: Tensor,
    *layers: Tensor,
) -> Tensor:
    z = functional.linear(left_factors * right_factors, product_weight) + left_part + right_part
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        z = functional.linear(z.relu(), weight, bias)
    return z.sigmoid()


def _score(
    p: Tensor,
    left_part: Tensor,
    left_factors: Tensor,
    q: Tensor,
    right_part: Tensor,
    right_factors: Tensor,
    *layers: Tensor,
) -> Tensor:
    m = _modulation(left_part, left_factors, right_part, right_factors, *layers)
    return (m.square() * (p * q)).sum(-1)


def unit(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Scaled to length one; a zero vector stays zero."""
    scaled: Tensor = _Unit.apply(x)  # type: ignore[no-untyped-call]
    return scaled


class _Unit(torch.autograd.Function):
    """y = x / max(‖x‖, ε), and dx = (dy − y (y·dy)) / max(‖x‖, ε).

    Step by step, as `functional.normalize` does it, the gradient passes over its numbers three times as often
    (decision 25).
    """

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        y, lengths = unit_and_lengths(x)
        context.save_for_backward(y, lengths)
        return y

    @staticmethod
    @once_differentiable
    def backward(context: Any, *upstream: Tensor) -> Tensor:
        return unit_gradient(*upstream, *context.saved_tensors)


def unit_and_lengths(x: Float[Tensor, "*n d"]) -> tuple[Float[Tensor, "*n d"], Float[Tensor, "*n 1"]]:
    """`unit`, and what the vectors were divided by; for gradients that are written out."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(SHORTEST)
    return x / lengths, lengths


def unit_gradient(
    g: Float[Tensor, "*n d"], y: Float[Tensor, "*n d"], lengths: Float[Tensor, "*n 1"]
) -> Float[Tensor, "*n d"]:
    """The gradient of x where g is that of y = x / max(‖x‖, ε)."""
    along = (g * y).sum(-1, keepdim=True)
    # What is divided by ε is only scaled: its length is no part of its gradient.
    along.masked_fill_(lengths <= SHORTEST, 0.0)
    return torch.addcmul(g, y, along, value=-1).div_(lengths)


def within_ball(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Scaled down to length one where longer."""
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / lengths.clamp_min(1.0)


SIMILARITIES: dict[str, type[Similarity]] = {
    "dot": Dot,
    "popular": Popular,
    "cosine": Cosine,
    "euclidean": Euclidean,
    "modulated": Modulated,
}
