"""Similarities against loops and their bounds; all pairs, matching pairs and top-k against each other."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import literal
from hdccf.kernels import pairwise
from hdccf.similarity import SIMILARITIES, Modulated, Similarity, Vectors, unit, within_ball

DIM = 5


def draw(n: int, seed: int, scale: float = 1.0) -> Vectors:
    generator = torch.Generator().manual_seed(seed)
    embedding, factors = (
        (torch.randn(n, DIM, generator=generator, dtype=torch.float64) * scale).requires_grad_()
        for _ in range(2)
    )
    return Vectors(embedding, factors)


def modulated(hidden: Sequence[int] = (), normalise: bool = True, spread: float = 0.5) -> Modulated:
    """Moved away from its start, so that every part of g matters."""
    generator = torch.Generator().manual_seed(9)
    similarity = Modulated(DIM, hidden, normalise, generator).double()
    with torch.no_grad():
        for parameter in similarity.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return similarity


EVERY = {name: SIMILARITIES[name]() for name in sorted(SIMILARITIES) if name != "modulated"} | {
    "modulated": modulated(),
    "modulated, free": modulated(normalise=False),
    "modulated, one hidden layer": modulated((7,)),
    "modulated, two hidden layers": modulated((7, 4)),
}
every = pytest.mark.parametrize("similarity", EVERY.values(), ids=list(EVERY))


@pytest.mark.parametrize("scale", [3.0, 1e-9, 1e-13, 0.0])
def test_unit_vectors_and_their_gradient_are_those_of_normalize(scale: float) -> None:
    x, upstream = (vectors.detach() for vectors in draw(7, 4))
    x = (scale * x).requires_grad_()
    expected = torch.nn.functional.normalize(x, dim=-1)
    assert unit(x).equal(expected)
    (found,), (wanted,) = (torch.autograd.grad(y, x, upstream) for y in (unit(x), expected))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0.0)


def test_the_gradient_of_unit_vectors_is_that_of_differences() -> None:
    x = draw(6, 3).embedding
    assert torch.autograd.gradcheck(unit, (x.reshape(2, 3, DIM),))


def test_every_similarity_is_tested() -> None:
    assert {type(similarity) for similarity in EVERY.values()} == set(SIMILARITIES.values())


@every
def test_all_pairs_equal_matching_pairs_and_so_do_gradients(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairwise, "TILE_NUMBERS", 60)
    left, right = draw(6, 1), draw(8, 2)
    pairs = similarity.all_pairs(left, right)
    spread = Vectors(left.embedding.unsqueeze(1), left.factors.unsqueeze(1))
    matching = similarity.matching(spread, right)
    torch.testing.assert_close(pairs, matching, rtol=1e-9, atol=1e-9)
    upstream = torch.randn(6, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    given = [*left, *right, *similarity.parameters()]
    gradients = [
        torch.autograd.grad((scores * upstream).sum(), given, allow_unused=True, materialize_grads=True)
        for scores in (pairs, matching)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@every
def test_all_pairs_have_the_gradient_of_their_value(similarity: Similarity) -> None:
    given = [*draw(2, 1), *draw(3, 2)]
    assert torch.autograd.gradcheck(lambda *x: similarity.all_pairs(Vectors(*x[:2]), Vectors(*x[2:])), given)


def test_simple_similarities_equal_loops() -> None:
    left, right = draw(4, 1), draw(6, 2, scale=0.2)
    for u, i in [(0, 0), (1, 5), (3, 2)]:
        p, q = left.embedding[u].tolist(), right.embedding[i].tolist()
        dot = sum(a * b for a, b in zip(p, q, strict=True))
        lengths = math.hypot(*p), math.hypot(*q)
        held = [[a / max(1.0, length) for a in x] for x, length in zip((p, q), lengths, strict=True)]
        expected = {
            "dot": dot,
            "cosine": dot / math.prod(lengths),
            "euclidean": 1 - math.dist(*held),
            "popular": (dot - p[-1] * q[-1]) / (math.hypot(*p[:-1]) * math.hypot(*q[:-1])) + 0.1 * q[-1],
        }
        for name, value in expected.items():
            score = SIMILARITIES[name]().all_pairs(left, right)[u, i].item()
            assert score == pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("hidden", [(), (7,), (7, 4)])
@pytest.mark.parametrize("normalise", [True, False])
def test_modulated_is_equations_7_and_8(hidden: tuple[int, ...], normalise: bool) -> None:
    similarity = modulated(hidden, normalise)
    left, right = draw(3, 1), draw(4, 2)
    # The three blocks in the paper's order: e_i, e_u, e_i ⊙ e_u.
    blocks = (similarity.right_weight, similarity.left_weight, similarity.product_weight)
    layers = [torch.cat(list(blocks), 1), *similarity.weights]

    def g(x: list[float]) -> list[float]:
        for depth, (weight, bias) in enumerate(zip(layers, similarity.biases, strict=True)):
            x = [max(0.0, value) for value in x] if depth else x
            x = [
                sum(w * v for w, v in zip(row, x, strict=True)) + b
                for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
            ]
        return x

    def scaled(x: Tensor) -> list[float]:
        values: list[float] = x.tolist()
        return [v / math.hypot(*values) for v in values] if normalise else values

    expected = [
        [
            literal.modulated(scaled(p), scaled(q), e_left.tolist(), e_right.tolist(), g)
            for q, e_right in zip(*right, strict=True)
        ]
        for p, e_left in zip(*left, strict=True)
    ]
    scores = similarity.all_pairs(left, right)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_modulated_starts_near_one_and_by_its_generator() -> None:
    for hidden in [(), (16,)]:
        first, second, other = (
            Modulated(DIM, hidden, generator=torch.Generator().manual_seed(seed)).double()
            for seed in (4, 4, 5)
        )
        left, right = draw(50, 1, scale=0.3), draw(50, 2, scale=0.3)
        m = first.modulation(left, right)
        assert m.min() > 0.94
        assert m.max() < 1.0
        assert torch.equal(m, second.modulation(left, right))
        assert not torch.equal(m, other.modulation(left, right))


def test_modulated_looks_at_its_sides_in_order() -> None:
    similarity = modulated()
    left, right = draw(3, 1), draw(3, 2)
    assert not torch.allclose(similarity.matching(left, right), similarity.matching(right, left))


@every
def test_no_score_falls_below_the_declared_bound(similarity: Similarity) -> None:
    left = draw(40, 1, scale=3.0)
    opposite = Vectors(-left.embedding, left.factors)
    scores = torch.cat([similarity.all_pairs(left, side).flatten() for side in (left, opposite, draw(9, 2))])
    assert scores.min() >= similarity.lowest - 1e-12
    if math.isfinite(similarity.lowest):
        assert scores.max() <= 1 + 1e-12
    else:
        assert scores.min() < -1  # what declares no bound has none


@pytest.mark.parametrize("name", ["cosine", "euclidean"])
def test_the_declared_bound_is_reached(name: str) -> None:
    left = draw(4, 1, scale=3.0)
    similarity = SIMILARITIES[name]()
    scores = similarity.matching(left, Vectors(-left.embedding, left.factors))
    torch.testing.assert_close(scores, torch.full_like(scores, similarity.lowest))


def test_vectors_without_length_and_at_the_same_place_have_finite_gradients() -> None:
    zero = torch.zeros(2, DIM, dtype=torch.float64, requires_grad=True)
    same = torch.ones(2, DIM, dtype=torch.float64, requires_grad=True)
    for similarity in EVERY.values():
        for x in (zero, same):
            side = Vectors(x, x)
            loss = similarity.all_pairs(side, side).sum() + similarity.matching(side, side).sum()
            assert loss.isfinite()
            assert torch.autograd.grad(loss, x)[0].isfinite().all()


def test_scaling() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(unit(x), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))
    torch.testing.assert_close(within_ball(x), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the most numbers that any operation gave in one tensor."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(x.numel() for x in tree_leaves(given) if isinstance(x, Tensor))])
        return given


@pytest.mark.parametrize("hidden", [(), (7,)])
def test_no_tensor_grows_with_pairs_times_dimensions(
    hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairwise, "TILE_NUMBERS", 2000)
    left, right = draw(60, 1), draw(80, 2)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        modulated(hidden).all_pairs(left, right).sum().backward()  # type: ignore[no-untyped-call]
    assert largest.numbers == 60 * 80
