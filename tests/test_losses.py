"""The losses against the paper's equations as loops, their gradients, and their behaviour at the extremes."""

import math

import pytest
import torch
from torch import Tensor

import literal
from hdccf import losses
from hdccf.losses import block as block_losses
from hdccf.losses.contrastive import cross_entropy_loss
from small_world import World, assert_equal, block, table, world


def debiased_loss(w: World, f: Tensor, omega: float) -> tuple[Tensor, Tensor]:
    """Eq. 14 of every instance, and which of its sides were clipped."""
    users, items = (torch.tensor(side) for side in zip(*w.batch, strict=True))
    target = f[users, items]
    item_scores, user_scores = f[users][:, w.items.columns], f[:, items].T[:, w.users.columns]
    negatives, clipped = [], []
    for side, scores, own, positives in (
        (w.items, item_scores, items, f[users.unsqueeze(1), torch.tensor(w.items.positives)]),
        (w.users, user_scores, users, f[torch.tensor(w.users.positives), items.unsqueeze(1)]),
    ):
        biased = losses.log_negative_score(scores, side.log_weights, temperature=w.tau, size=w.size)
        repeats = torch.tensor(side.positives) == own.unsqueeze(1)
        log_weights = torch.where(repeats, -math.inf, torch.zeros(positives.shape, dtype=torch.float64))
        log_weights = torch.cat([log_weights, torch.zeros(len(users), 1, dtype=torch.float64)], 1)
        with_target = torch.cat([positives, target.unsqueeze(1)], 1)
        mean = losses.log_mean_exp(with_target, log_weights, temperature=w.tau)
        held, was_clipped = losses.debias(
            biased, mean, size=w.size, omega=omega, lowest=-1.0, temperature=w.tau
        )
        negatives.append(held)
        clipped.append(was_clipped)
    loss = losses.contrastive_loss(
        target, negatives[0], negatives[1], temperature=w.tau, item_weight=0.7, user_weight=1.3
    )
    return loss, torch.stack(clipped)


@pytest.mark.parametrize("neighbours", range(1, 7))
@pytest.mark.parametrize("beta", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("omega", [0.0, 0.02, 0.1])
def test_debiased_contrastive_is_equations_9_14_15_16_25(neighbours: int, beta: float, omega: float) -> None:
    for seed in range(3):
        w = world(seed, neighbours, beta)
        loss, _ = debiased_loss(w, w.f, omega)
        expected = [
            literal.debiased_contrastive(
                table(w.f),
                u,
                i,
                literal.in_batch_negatives(w.items.positives, k),
                literal.in_batch_negatives(w.users.positives, k),
                w.items.positives[k],
                w.users.positives[k],
                w.is_observed,
                omega,
                omega,
                w.tau,
                w.item_weight,
                w.user_weight,
                item_weight=0.7,
                user_weight=1.3,
            )
            for k, (u, i) in enumerate(w.batch)
        ]
        assert_equal(loss, expected)
        assert loss[0] == 0.0  # nothing left on either side


def test_debiased_contrastive_has_the_gradient_of_its_value() -> None:
    clipped_somewhere = kept_somewhere = False
    for seed in range(3):
        w = world(seed, 2, beta=0.5)
        clipped = debiased_loss(w, w.f, 0.05)[1]
        clipped_somewhere |= bool(clipped.any())
        kept_somewhere |= bool((~clipped).any())
        assert torch.autograd.gradcheck(lambda f, w=w: debiased_loss(w, f, 0.05)[0], w.f.requires_grad_())
    assert clipped_somewhere
    assert kept_somewhere


@pytest.mark.parametrize("neighbours", range(1, 7))
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_neighbour_contrastive_is_equations_17_and_27(neighbours: int, beta: float) -> None:
    w = world(5, neighbours, beta)

    def loss(f: Tensor) -> Tensor:
        users = torch.tensor([u for u, _ in w.batch])
        positives = torch.tensor(w.users.positives)
        negatives = losses.log_negative_score(
            f[users][:, w.users.columns], w.users.log_weights, temperature=w.tau, size=w.size
        )
        valid = positives != users.unsqueeze(1)
        return losses.neighbour_contrastive_loss(
            f[users.unsqueeze(1), positives], negatives, temperature=w.tau, valid=valid
        )

    expected = [
        literal.debiased_neighbour_contrastive(
            table(w.between_users),
            u,
            i,
            w.users.positives[k],
            literal.in_batch_negatives(w.users.positives, k),
            w.is_observed,
            w.tau,
            w.user_weight,
        )
        for k, (u, i) in enumerate(w.batch)
    ]
    assert_equal(loss(w.between_users), expected)
    assert torch.autograd.gradcheck(loss, w.between_users.requires_grad_())


def test_plain_losses_are_equations_1_2_and_5() -> None:
    generator = torch.Generator().manual_seed(1)
    f = torch.rand(8, 8, generator=generator, dtype=torch.float64) * 2 - 1
    negative_items, negative_users, tau = [1, 4, 4, 6], [2, 3, 3], 0.2
    items = losses.log_negative_score(f[:, negative_items], temperature=tau)
    users = losses.log_negative_score(f[negative_users].T, temperature=tau)
    loss = losses.contrastive_loss(f.diagonal(), items, users, temperature=tau)
    neighbour = losses.neighbour_contrastive_loss(f[:, [5, 7]], items, temperature=tau)

    score = table(f)
    expected = [literal.contrastive(score, u, u, negative_items, negative_users, tau) for u in range(8)]
    assert_equal(loss, expected)
    # Rows 5 and 7 are their own neighbour, which the caller would mask.
    others = [u for u in range(8) if u not in (5, 7)]
    terms = [literal.neighbour_contrastive(score, u, [5, 7], negative_items, tau) for u in others]
    assert_equal(neighbour[others], terms)


def test_gradients_have_both_properties_of_equation_4() -> None:
    """Proportional to e^{f/τ} over negatives, and the positive's is minus the sum of the negatives'."""
    generator = torch.Generator().manual_seed(2)
    tau = 0.15
    positive, items, users = (
        (torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1).requires_grad_()
        for shape in ((5,), (5, 11), (5, 6))
    )
    loss = losses.contrastive_loss(
        positive,
        losses.log_negative_score(items, temperature=tau),
        losses.log_negative_score(users, temperature=tau),
        temperature=tau,
    )
    to_positive, to_items, to_users = torch.autograd.grad(loss.sum(), (positive, items, users))
    scores, gradients = torch.cat([items, users], 1), torch.cat([to_items, to_users], 1)
    total = (scores / tau).exp().sum(1) + (positive / tau).exp()
    assert_equal(gradients, (scores / tau).exp() / total.unsqueeze(1) / tau)
    assert_equal(to_positive, -gradients.sum(1))


@pytest.mark.parametrize("temperature", [0.3, 0.02, 0.001])
@pytest.mark.parametrize("weighted", [False, True])
def test_block_sums_equal_those_of_rows_and_columns(temperature: float, weighted: bool) -> None:
    scores, mask, of_columns, of_rows = block(7)
    masked = torch.zeros_like(scores).masked_fill(mask, -math.inf)
    observed = mask.nonzero(as_tuple=True)
    fast = block_losses.log_block_scores(
        scores,
        (observed[0], observed[1]),
        temperature=temperature,
        log_column_weights=of_columns if weighted else None,
        log_row_weights=of_rows if weighted else None,
    )
    on_rows, on_columns = (masked + of_columns, masked.T + of_rows) if weighted else (masked, masked.T)
    plain = (
        losses.log_negative_score(scores, on_rows, temperature=temperature),
        losses.log_negative_score(scores.T, on_columns, temperature=temperature),
    )
    for a, b in zip(fast, plain, strict=True):
        assert_equal(a, b)
    assert fast[0][3] == -math.inf
    assert fast[1][5] == -math.inf
    for chosen in ((1.0, 0.0), (0.0, 1.0), (1.0, 2.0)):
        gradients = []
        for sums in (fast, plain):
            loss = sum(
                weight * torch.logaddexp(x, torch.ones_like(x)).sum()
                for x, weight in zip(sums, chosen, strict=True)
                if weight
            )
            assert isinstance(loss, Tensor)
            gradients.append(torch.autograd.grad(loss, scores, retain_graph=True)[0])
        assert_equal(*gradients)
        assert (gradients[0][mask] == 0).all()


def test_block_sums_of_a_transposed_view_are_swapped() -> None:
    scores, mask, _, _ = block(7)
    rows, columns = mask.nonzero(as_tuple=True)
    over_columns, over_rows = block_losses.log_block_scores(scores, (rows, columns), temperature=0.2)
    of_view = block_losses.log_block_scores(scores.T, (columns, rows), temperature=0.2)
    assert_equal(of_view[0], over_rows)
    assert_equal(of_view[1], over_columns)


def test_block_over_everything_is_equation_1_with_all_negatives() -> None:
    scores, mask, _, _ = block(11)
    rows, columns = mask.nonzero(as_tuple=True)
    over_items, over_users = block_losses.log_block_scores(scores, (rows, columns), temperature=0.2)
    loss = losses.contrastive_loss(
        scores[rows, columns], over_items[rows], over_users[columns], temperature=0.2
    )
    expected = [
        literal.contrastive(
            table(scores),
            u,
            i,
            [b for b in range(17) if not mask[u, b]],
            [a for a in range(12) if not mask[a, i]],
            0.2,
        )
        for u, i in zip(rows.tolist(), columns.tolist(), strict=True)
    ]
    assert_equal(loss, expected)


@pytest.mark.parametrize("temperature", [0.001, 0.02, 0.2])
@pytest.mark.parametrize(("item_weight", "user_weight"), [(1.0, 0.0), (0.0, 2.0), (0.7, 1.3)])
@pytest.mark.parametrize("bound", [math.inf, 1.0])
def test_a_blocks_loss_at_once_equals_its_pieces(
    temperature: float, item_weight: float, user_weight: float, bound: float
) -> None:
    """Also its gradient, with a row and a column of which nothing is left, and positives that are a part."""
    scores, mask, of_columns, of_rows = block(7)
    scores = scores.detach().clamp(-1, 1).requires_grad_()
    observed = mask.nonzero(as_tuple=True)
    some = torch.arange(0, len(observed[0]), 2)
    weights = {"log_column_weights": of_columns, "log_row_weights": of_rows}
    for positives in ((observed[0], observed[1]), (observed[0][some], observed[1][some])):
        at_once = block_losses.block_contrastive_loss(
            scores,
            (observed[0], observed[1]),
            positives,
            temperature=temperature,
            item_weight=item_weight,
            user_weight=user_weight,
            bound=bound,
            **weights,
        )
        over_items, over_users = block_losses.log_block_scores(
            scores, (observed[0], observed[1]), temperature=temperature, **weights
        )
        pieces = losses.contrastive_loss(
            scores[positives],
            over_items[positives[0]],
            over_users[positives[1]],
            temperature=temperature,
            item_weight=item_weight,
            user_weight=user_weight,
        )
        assert_equal(at_once, pieces)
        factors = torch.linspace(0.1, 2.0, len(pieces), dtype=torch.float64)
        gradients = [torch.autograd.grad(x @ factors, scores)[0] for x in (at_once, pieces)]
        assert_equal(*gradients)
        assert gradients[0].abs().max() > 0


def test_log_negative_score_has_the_gradient_of_its_value() -> None:
    scores, mask, of_columns, _ = block(3)
    weights = of_columns.masked_fill(mask, -math.inf)

    def finite(x: Tensor) -> Tensor:
        score = losses.log_negative_score(x, weights, temperature=0.2, size=5.0)
        return torch.logaddexp(score, torch.zeros_like(score))

    assert torch.autograd.gradcheck(finite, scores)
    assert torch.autograd.gradcheck(lambda x: losses.log_negative_score(x, temperature=0.2), scores)


def test_group_means_are_those_of_loops() -> None:
    scores = torch.tensor([0.3, -0.5, 0.9, 0.1], dtype=torch.float64, requires_grad=True)
    groups = torch.tensor([2, 0, 2, 2])
    means = losses.log_mean_exp_by_group(scores, groups, 4, temperature=0.02)
    expected = [
        math.log(sum(members) / len(members)) if members else -math.inf
        for members in (
            [math.exp(s / 0.02) for s, g in zip(scores.tolist(), groups.tolist(), strict=True) if g == group]
            for group in range(4)
        )
    ]
    assert_equal(means, expected)
    assert torch.autograd.gradcheck(
        lambda s: losses.log_mean_exp_by_group(s, groups, 4, temperature=0.2)[[0, 2]], scores
    )


def test_effective_sample_size_counts_what_shares_the_gradient() -> None:
    scores = torch.tensor([[0.5, 0.5, 0.5, 0.5], [1.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    weights = torch.tensor([[0.0, 0.0, 0.0, -math.inf], [0.0] * 4, [-math.inf] * 4])
    sizes = losses.effective_sample_size(scores, weights, temperature=0.02)
    torch.testing.assert_close(sizes, torch.tensor([3.0, 1.0, 0.0]), rtol=1e-4, atol=1e-4)
    terms = [math.exp(s / 0.5) for s in (1.0, -1.0, -1.0, -1.0)]
    expected = sum(terms) ** 2 / sum(t * t for t in terms)
    measured = losses.effective_sample_size(scores[1:2], temperature=0.5)
    assert measured.item() == pytest.approx(expected, rel=1e-5)


def test_frequency_weights() -> None:
    weights = losses.log_frequency_weights(torch.tensor([0, 1, 4, 100]), 0.5).exp()
    torch.testing.assert_close(weights, torch.tensor([1.0, 1.0, 0.5, 0.1]))
    assert (losses.log_frequency_weights(torch.tensor([3, 7]), 0.0) == 0).all()


def test_pairwise_and_pointwise_losses() -> None:
    positive, negative = torch.tensor([0.7, -80.0]), torch.tensor([-0.2, 80.0])
    sigmoid = 1 / (1 + math.exp(-0.9))
    torch.testing.assert_close(losses.bpr_loss(positive, negative), torch.tensor([-math.log(sigmoid), 160.0]))
    score, label = torch.tensor([0.4, 0.4]), torch.tensor([1.0, 0.0])
    torch.testing.assert_close(losses.squared_error(score, label), torch.tensor([0.36, 0.16]))
    likely = 1 / (1 + math.exp(-0.4))
    found = cross_entropy_loss(torch.tensor([0.4, -200.0]), torch.tensor([[0.4], [-200.0]]), None)
    torch.testing.assert_close(found, torch.tensor([-math.log(likely) - math.log(1 - likely), 200.0]))
