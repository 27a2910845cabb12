"""The tiled, recomputed scoring of all pairs against plain autograd over the d × M × N tensor."""

import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional

from hdccf import similarity
from hdccf.kernels import pairwise


def oracle(
    left: Tensor,
    right: Tensor,
    left_part: Tensor,
    left_factors: Tensor,
    right_factors: Tensor,
    right_weight: Tensor,
    product_weight: Tensor,
) -> Tensor:
    product = torch.einsum("kl,ul,il->uik", product_weight, left_factors, right_factors)
    m = (product + left_part[:, None] + right_factors @ right_weight.T).sigmoid()
    return torch.einsum("uk,ik,uik->ui", left, right, m.square())


def inputs(m: int, n: int, d: int, inner: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(m + n)
    shapes = [(m, d), (n, d), (m, d), (m, inner), (n, inner), (d, inner), (d, inner)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def tiled(*given: Tensor) -> Tensor:
    """Eq. 7–8 by the generic tiles, as `Modulated` calls them."""
    left, right, left_part, left_factors, right_factors, right_weight, product_weight = given
    right_part = functional.linear(right_factors, right_weight)
    sides = [left, left_part, left_factors], [right, right_part, right_factors]
    return pairwise.tiled_scores(similarity._score, *sides, [product_weight], left.shape[1])


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 7, 4, 4), (13, 6, 3, 5), (1, 40, 8, 8), (40, 1, 8, 8)])
@pytest.mark.parametrize(("numbers", "columns"), [(1, 1), (50, 3), (200, 1000), (1 << 18, 1024)])
def test_tiles_of_every_shape_equal_the_oracle(
    shape: tuple[int, int, int, int], numbers: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairwise, "TILE_NUMBERS", numbers)
    monkeypatch.setattr(pairwise, "TILE_COLUMNS", columns)
    given = inputs(*shape)
    upstream = torch.randn(shape[:2], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores, expected = tiled(*given), oracle(*given)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)
    fast = torch.autograd.grad((scores * upstream).sum(), given)
    slow = torch.autograd.grad((expected * upstream).sum(), given)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_gradient_is_that_of_the_value() -> None:
    assert torch.autograd.gradcheck(tiled, inputs(3, 4, 3, 3))


@pytest.mark.parametrize(("n_columns", "depth"), [(1, 1), (3, 1 << 20), (100_000, 64), (10, 64)])
def test_a_tile_keeps_within_its_size(n_columns: int, depth: int) -> None:
    height, width = pairwise.tile_shape(n_columns, depth)
    assert 1 <= width <= max(1, n_columns)
    assert height >= 1
    assert height * width * depth <= max(depth, pairwise.TILE_NUMBERS)


def relative_error(given: Tensor, expected: Tensor) -> float:
    return ((given.double() - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(
    "shape", [(40, 515, 64, 64), (1, 17000, 64, 64), (700, 90, 20, 24), (150, 300, 32, 32)]
)
def test_compiled_passes_equal_double_precision(
    shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairwise, "LEAST_NUMBERS", 0)
    monkeypatch.setattr(pairwise, "TILE_NUMBERS", 1 << 16)
    given = inputs(*shape, torch.float32)
    assert pairwise.can_compile(given[0], 1)
    exact = [x.detach().double().requires_grad_() for x in given]
    upstream = torch.randn(shape[:2], generator=torch.Generator().manual_seed(0))
    scores, expected = pairwise.modulated_scores(*given), oracle(*exact)
    assert relative_error(scores, expected) < 1e-6
    fast = torch.autograd.grad(scores, given, upstream)
    slow = torch.autograd.grad(expected, exact, upstream.double())
    assert [relative_error(a, b) < 3e-6 for a, b in zip(fast, slow, strict=True)] == [True] * 7


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its narrower vectors are those of AVX2")
def test_a_processor_with_narrower_vectors_gets_the_same() -> None:
    script = f"""
import pytest
failed = pytest.main(["-n0", {__file__!r}, "-k", "test_compiled_passes_equal or test_product_in_registers"])
from hdccf.kernels.pairwise_numba import LANES
raise SystemExit(f"{{failed!r}}, {{LANES}} lanes" if failed or LANES != 8 else 0)
"""
    features = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | features, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_product_in_registers_equals_the_plain_one_and_writes_nowhere_else() -> None:
    kernels = pairwise._kernels()
    add_product, rows, columns = kernels.add_product, kernels.ROWS, kernels.COLUMNS
    numbers = np.random.default_rng(0)
    a, b = numbers.integers(-9, 9, (5, rows + 3)), numbers.integers(-9, 9, (6, columns + 2))
    c = numbers.integers(-9, 9, (rows + 2, columns + 5))
    expected = c.copy()
    expected[1 : 1 + rows, 4 : 4 + columns] += a[:4, 2 : 2 + rows].T @ b[1:5, 1 : 1 + columns]

    @njit
    def run(a: Any, b: Any, c: Any) -> None:
        add_product(a, 2, 1, a.shape[1], b, b.shape[1] + 1, b.shape[1], c, c.shape[1] + 4, c.shape[1], 4)

    found = c.astype(np.float32)
    run(a.astype(np.float32), b.astype(np.float32), found)
    assert (found == expected).all()


def test_compiled_passes_take_any_layout_and_an_expanded_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(9, 40, 6, 6, torch.float32)
    strided = [x.detach().T.contiguous().T.requires_grad_() for x in given]
    plain = torch.autograd.grad(pairwise.modulated_scores(*given).sum(), given)
    monkeypatch.setattr(pairwise, "LEAST_NUMBERS", 0)
    compiled = torch.autograd.grad(pairwise.modulated_scores(*strided).sum(), strided)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_exponential_is_good_to_the_last_bits_and_keeps_what_is_not_a_number() -> None:
    exp_minus = pairwise._kernels().exp_minus
    z = np.linspace(-87, 87, 100_001, dtype=np.float32)
    found = np.array([exp_minus(value) for value in z], np.float64)
    # The exponent's own rounding in float32, |z|·2⁻²⁴, comes on top.
    allowed = 2e-7 + np.abs(z.astype(np.float64)) * 2.0**-23
    assert (np.abs(found * np.exp(z.astype(np.float64)) - 1) < allowed).all()
    near = np.abs(z) < 20
    sigmoid = 1 / (1 + np.exp(-z.astype(np.float64)))
    assert np.abs(1 / (1 + found) - sigmoid).max() < 3e-7
    assert np.abs((1 / (1 + found) / sigmoid - 1)[near]).max() < 2e-6
    assert np.isnan(exp_minus(np.float32("nan")))
    assert 1 / (1 + exp_minus(np.float32("inf"))) == 1
    assert 1 / (1 + exp_minus(np.float32("-inf"))) < 1e-37


def test_threads_change_nothing_but_the_order_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "BLOCK_ROWS", 8)
    given = inputs(30, 23, 4, 4, torch.float32)

    def step(threads: int) -> list[Tensor]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        scores = pairwise.modulated_scores(*given)
        return [scores, *torch.autograd.grad(scores.square().sum(), given)]

    alone, shared, again = step(1), step(3), step(3)
    assert torch.equal(alone[0], shared[0])
    for a, b, c in zip(alone, shared, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert torch.equal(b, c)


def test_threads_work_without_gradients_and_in_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "BLOCK_ROWS", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    given = inputs(6, 9, 4, 4, torch.float32)
    expected = oracle(*given)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            scores = pairwise.modulated_scores(*given)
        assert not scores.requires_grad
        torch.testing.assert_close(scores, expected.detach(), rtol=1e-4, atol=1e-4)


def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdccf.kernels.pairwise_numba", None)
    monkeypatch.delattr("hdccf.kernels.pairwise_numba", raising=False)
    pairwise._kernels.cache_clear()
    try:
        assert not pairwise.can_compile(torch.zeros(2, 2), 1 << 30)
    finally:
        pairwise._kernels.cache_clear()


@pytest.mark.parametrize("parts", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_part_is_worked_on_once_and_in_order(parts: int, threads: int) -> None:
    results = pairwise.share(list, range(parts), threads)
    assert [part for result in results for part in result] == list(range(parts))
    sizes = [len(result) for result in results]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0)])
def test_no_rows_or_columns(m: int, n: int) -> None:
    given = inputs(m, n, 2, 2)
    scores = tiled(*given)
    assert scores.shape == (m, n)
    assert all(x.abs().sum() == 0 for x in torch.autograd.grad(scores.sum(), given))
