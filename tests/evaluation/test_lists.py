"""What accuracy misses, against loops over lists and pairs of items."""

from itertools import combinations

import numpy as np
import pytest
from ranking_oracles import split_of

from hdccf.errors import EvaluationError
from hdccf.evaluation.groups import item_groups, user_groups
from hdccf.evaluation.lists import ListMetrics

# Item 0 has four users, 1 two, 2 and 3 one each, 4 none.
TRAIN = split_of([[(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 2), (0, 3)], [], []], 4, 5).train
LISTS = np.array([[0, 1, 2], [0, 3, -1], [4, -1, -1], [0, 1, 4]], np.int32)
MASK = np.array([True, True, False, False, True])


def real(mask: np.ndarray | None) -> list[list[int]]:
    return [[i for i in row if i >= 0 and (mask is None or mask[i])] for row in LISTS.tolist()]


@pytest.mark.parametrize("mask", [None, MASK])
def test_coverage_and_gini(mask: np.ndarray | None) -> None:
    allowed = [item for item in range(5) if mask is None or mask[item]]
    shown = [sum(item in row for row in real(mask)) for item in allowed]
    found = ListMetrics(TRAIN)
    assert found.coverage(LISTS, mask) == sum(count > 0 for count in shown) / len(allowed)
    # Gini as it is defined: the mean difference of all pairs over twice the mean.
    n, mean = len(shown), np.mean(shown)
    literal = sum(abs(a - b) for a in shown for b in shown) / (2 * n * n * mean)
    assert found.gini(LISTS, mask) == pytest.approx(literal)


@pytest.mark.parametrize("mask", [None, MASK])
def test_popularity_and_novelty(mask: np.ndarray | None) -> None:
    counts = [4, 2, 1, 1, 0]
    bits = [-np.log2(max(count, 1) / 4) for count in counts]
    found = ListMetrics(TRAIN)
    for values, of_item in ((found.popularity(LISTS, mask), counts), (found.novelty(LISTS, mask), bits)):
        literal = [np.mean([of_item[i] for i in row]) if row else np.nan for row in real(mask)]
        assert values.tolist() == pytest.approx(literal, nan_ok=True)
    assert found.popularity(LISTS[:1]).tolist() == pytest.approx([7 / 3])


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("given", [False, True])
def test_similarity_is_the_mean_cosine_of_pairs(given: bool, mask: np.ndarray | None) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 3)) if given else TRAIN.matrix.T.toarray()
    if given:
        vectors[1] = 0  # a vector without a direction is like nothing

    def cosine(a: int, b: int) -> float:
        length = float(np.linalg.norm(vectors[a]) * np.linalg.norm(vectors[b]))
        return float(vectors[a] @ vectors[b]) / length if length else 0.0

    literal = [
        np.mean([cosine(a, b) for a, b in combinations(row, 2)]) if len(row) > 1 else np.nan
        for row in real(mask)
    ]
    found = ListMetrics(TRAIN, vectors if given else None).similarity(LISTS, mask)
    assert found.tolist() == pytest.approx(literal, abs=1e-6, nan_ok=True)


def test_lists_that_are_all_the_same_are_as_unequal_as_can_be() -> None:
    found = ListMetrics(TRAIN)
    one = np.zeros((10, 1), np.int32)
    assert found.gini(one) == pytest.approx(4 / 5)
    assert found.coverage(one) == 0.2
    assert found.gini(np.full((3, 2), -1, np.int32)) == 0


def test_vectors_for_other_items_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"the shape \(4, 2\); give one row for each of 5 items"):
        ListMetrics(TRAIN, np.zeros((4, 2)))


def test_users_are_cut_in_thirds_and_equals_stay_together() -> None:
    groups = user_groups(np.array([9, 1, 2, 3, 3, 8]))
    assert [(group.name, group.least, group.most) for group in groups] == [
        ("light", 1, 2),
        ("medium", 3, 3),
        ("heavy", 8, 9),
    ]
    assert sum(group.members.sum() for group in groups) == 6
    (only,) = user_groups(np.array([5, 5, 5]))
    assert only.members.all()


def test_items_are_cut_by_their_share_of_interactions() -> None:
    groups = item_groups(np.array([1] * 10 + [5, 5, 10]))
    assert [(group.name, int(group.members.sum())) for group in groups] == [
        ("tail", 10),
        ("middle", 2),
        ("head", 1),
    ]
