"""The losses at their edges: empty rows, clipped rows, bounds, and single precision at small temperatures."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from hdccf import losses
from hdccf.losses import block as block_losses
from small_world import block


def test_an_empty_row_has_no_score_and_passes_no_gradient() -> None:
    scores = torch.zeros(2, 3, requires_grad=True)
    weights = torch.tensor([[-math.inf] * 3, [0.0, -math.inf, 0.0]])
    negatives = losses.log_negative_score(scores, weights, temperature=0.02, size=3.0)
    held, clipped = losses.debias(
        negatives, torch.zeros(2), size=3.0, omega=0.5, lowest=-1.0, temperature=0.02
    )
    assert held[0] == -math.inf
    assert not clipped[0]
    loss = losses.contrastive_loss(torch.ones(2), held, None, temperature=0.02)
    assert loss[0] == 0.0
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad[0] == 0).all()


@pytest.mark.parametrize("temperature", [0.02, 0.05, 1.0])
@pytest.mark.parametrize("omega", [0.0, 1e-4, 0.2])
@pytest.mark.parametrize("lowest", [-1.0, -math.inf])
def test_extremes_stay_finite_in_single_precision(temperature: float, omega: float, lowest: float) -> None:
    levels = torch.tensor([-1.0, -1.0 + 1e-7, 0.0, 1.0 - 1e-7, 1.0])
    grid = torch.meshgrid(levels, levels, indexing="ij")
    positive, negative = (x.flatten().clone().requires_grad_() for x in grid)
    columns = negative.unsqueeze(1).expand(-1, 4)
    biased = losses.log_negative_score(columns, temperature=temperature, size=1000.0)
    mean = losses.log_mean_exp(positive.unsqueeze(1), temperature=temperature)
    held, _ = losses.debias(biased, mean, size=1000.0, omega=omega, lowest=lowest, temperature=temperature)
    loss = losses.contrastive_loss(positive, held, held, temperature=temperature)
    neighbour = losses.neighbour_contrastive_loss(positive.unsqueeze(1), held, temperature=temperature)
    pair = losses.bpr_loss(positive / temperature, negative / temperature)
    everything = torch.cat([loss, neighbour.squeeze(1), pair])
    assert everything.isfinite().all()
    for gradient in torch.autograd.grad(everything.sum(), (positive, negative)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("temperature", [0.02, 0.3])
def test_block_sums_stay_exact_in_single_precision(temperature: float) -> None:
    scores, mask, of_columns, of_rows = block(5)
    with torch.no_grad():
        scores[0], scores[1] = -1.0, 1.0
    observed = mask.nonzero(as_tuple=True)
    results = []
    for kind in (torch.float32, torch.float64):
        x = scores.detach().to(kind).requires_grad_()
        sums = block_losses.log_block_scores(
            x,
            (observed[0], observed[1]),
            temperature=temperature,
            log_column_weights=of_columns.to(kind),
            log_row_weights=of_rows.to(kind),
        )
        loss = sum(torch.logaddexp(s, torch.zeros_like(s)).sum() for s in sums)
        assert isinstance(loss, Tensor)
        results.append((*sums, torch.autograd.grad(loss, x)[0]))
    for single, double in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


def test_without_omega_debiasing_changes_nothing_and_clips_nothing() -> None:
    biased = torch.tensor([-50.0, 0.0, 60.0, -math.inf])
    held, clipped = losses.debias(
        biased, torch.full((4,), 50.0), size=1.0, omega=0.0, lowest=-1.0, temperature=0.02
    )
    assert torch.equal(held, biased)
    assert not clipped.any()


def test_clipped_rows_are_held_at_the_bound_and_pass_no_gradient() -> None:
    biased = torch.tensor([2.0, 2.0], dtype=torch.float64, requires_grad=True)
    positives = torch.tensor([5.0, -5.0], dtype=torch.float64, requires_grad=True)
    omega = torch.tensor([0.5, 0.1], dtype=torch.float64)
    held, clipped = losses.debias(biased, positives, size=4.0, omega=omega, lowest=-1.0, temperature=0.5)
    assert clipped.tolist() == [True, False]
    assert held[0].item() == pytest.approx(math.log(4) - 2)
    assert held[1].item() == pytest.approx(math.log((math.exp(2) - 4 * 0.1 * math.exp(-5)) / 0.9))
    held.sum().backward()  # type: ignore[no-untyped-call]
    assert biased.grad is not None
    assert positives.grad is not None
    assert biased.grad[0] == positives.grad[0] == 0
    assert biased.grad[1] > 1 > 0 > positives.grad[1]


def test_the_printed_bound_would_clip_every_row() -> None:
    """Eq. 16 as printed holds F̃ at Q·e^{+1/τ}, which no mean over scores within [−1, 1] can exceed."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(50, 20, generator=generator) * 2 - 1
    biased = losses.log_negative_score(scores, temperature=0.5, size=20.0)
    for lowest, share in ((1.0, 1.0), (-1.0, 0.0)):
        clipped = losses.debias(
            biased, torch.zeros(50), size=20.0, omega=0.01, lowest=lowest, temperature=0.5
        )[1]
        assert clipped.float().mean() == share


def test_without_a_lower_bound_a_small_share_is_left() -> None:
    held, clipped = losses.debias(
        torch.tensor([3.0]), torch.tensor([9.0]), size=2.0, omega=0.3, lowest=-math.inf, temperature=1.0
    )
    assert clipped.all()
    assert held.item() == pytest.approx(3.0 + math.log(losses.SMALL_SHARE))


def test_shapes_are_checked_in_tests() -> None:
    """Guards the import hook of conftest.py, without which every annotation could be wrong."""
    with pytest.raises(TypeCheckError):
        losses.bpr_loss(torch.zeros(2), torch.zeros(3))


def test_means_by_group_do_not_overflow() -> None:
    scores, groups = torch.tensor([1.0, 0.9, -0.5]), torch.tensor([0, 0, 2])
    found = losses.log_mean_exp_by_group(scores, groups, 3, temperature=0.001)
    assert found.tolist() == pytest.approx([1000 - math.log(2), -math.inf, -500])
