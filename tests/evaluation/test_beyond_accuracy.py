"""What accuracy misses, against loops over lists and pairs of items."""

from itertools import combinations

import numpy as np
import pytest
from ranking_oracles import split_of

from hdccf.errors import EvaluationError
from hdccf.evaluation.metrics import (
    ListMetrics,
    coverage,
    gini,
    item_groups,
    list_means,
    user_groups,
)

# Item 0 has four users, 1 two, 2 and 3 one each, 4 none.
TRAIN = split_of([[(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 2), (0, 3)], [], []], 4, 5).train
LISTS = np.array([[0, 1, 2], [0, 3, -1], [4, -1, -1], [0, 1, 4]], np.int32)
# The second group is items 2 and 3.
WHICH = np.array([0, 0, 1, 1, 0])


def real(group: int | None) -> list[list[int]]:
    return [[i for i in row if i >= 0 and group in (None, WHICH[i])] for row in LISTS.tolist()]


@pytest.mark.parametrize("group", [None, 0, 1])
def test_coverage_and_gini(group: int | None) -> None:
    allowed = [item for item in range(5) if group in (None, WHICH[item])]
    literal = [sum(item in row for row in real(group)) for item in allowed]
    shown = ListMetrics(TRAIN).shown(LISTS)[allowed]
    assert shown.tolist() == literal
    assert coverage(shown) == sum(count > 0 for count in literal) / len(allowed)
    assert gini(np.zeros_like(shown)) == 0
    # Gini as it is defined: the mean difference of all pairs over twice the mean.
    n, mean = len(literal), np.mean(literal)
    assert gini(shown) == pytest.approx(
        sum(abs(a - b) for a in literal for b in literal) / (2 * n * n * mean)
    )


def test_popularity_and_novelty() -> None:
    found = ListMetrics(TRAIN)
    counts = [4, 2, 1, 1, 0]
    bits = [-np.log2(max(count, 1) / 4) for count in counts]
    assert found.counts.tolist() == counts
    assert found.bits.tolist() == pytest.approx(bits)
    for of_item in (found.counts, found.bits):

        def literal(group: int | None, of_item: np.ndarray = of_item) -> list[float]:
            return [float(np.mean(of_item[row])) if row else np.nan for row in real(group)]

        assert list_means(of_item, LISTS).tolist() == pytest.approx(literal(None), nan_ok=True)
        assert list_means(of_item, LISTS[:1]).tolist() == pytest.approx(literal(None)[:1])
        for group in (0, 1):
            part = np.where(WHICH[LISTS] == group, LISTS, -1)
            assert list_means(of_item, part).tolist() == pytest.approx(literal(group), nan_ok=True)


@pytest.mark.parametrize("given", [False, True])
def test_similarity_is_the_mean_cosine_of_pairs(given: bool) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 3)) if given else TRAIN.matrix.T.toarray()
    if given:
        vectors[1] = 0  # a vector without a direction is like nothing

    def cosine(a: int, b: int) -> float:
        length = float(np.linalg.norm(vectors[a]) * np.linalg.norm(vectors[b]))
        return float(vectors[a] @ vectors[b]) / length if length else 0.0

    literal = [
        np.mean([cosine(a, b) for a, b in combinations(row, 2)]) if len(row) > 1 else np.nan
        for row in real(None)
    ]
    found = ListMetrics(TRAIN, vectors if given else None).similarity(LISTS)
    assert found.tolist() == pytest.approx(literal, abs=1e-6, nan_ok=True)


def test_vectors_for_other_items_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"the shape \(4, 2\); give one row for each of 5 items"):
        ListMetrics(TRAIN, np.zeros((4, 2)))


def test_users_are_cut_in_thirds_and_equals_stay_together() -> None:
    groups = user_groups(np.array([9, 1, 2, 3, 3, 8]))
    assert groups.names == ("light", "medium", "heavy")
    assert groups.ranges == [(1, 2), (3, 3), (8, 9)]
    assert groups.which.tolist() == [2, 0, 0, 1, 1, 2]
    assert len(user_groups(np.array([5, 5, 5]))) == 1


def test_items_are_cut_by_their_share_of_interactions() -> None:
    groups = item_groups(np.array([1] * 10 + [5, 5, 10]))
    assert groups.names == ("tail", "middle", "head")
    assert groups.sizes == [10, 2, 1]


def test_means_of_groups_leave_out_what_is_missing() -> None:
    groups = user_groups(np.array([1, 1, 5, 5, 9, 9]))
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan])
    assert groups.means(values) == {"light": 1.0, "medium": 4.0}
    assert groups.means(np.array([2.0, 4.0]), np.array([1, 1])) == {"medium": 3.0}
