"""The negatives of sampled ranking: what may be drawn, how often, and that they stay as they were drawn."""

from pathlib import Path

import numpy as np
import pytest
from ranking_oracles import split_of, world

from hdccf.data.download import cache_home
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import candidates
from hdccf.evaluation.candidates import Candidates, draw, frozen_candidates


def touched(split: Split, user: int, part: str = "test") -> set[int]:
    parts = (split.train, split.validation, split.test)[: 3 if part == "test" else 2]
    return {int(item) for part in parts for item in part.by_user.of(user)}


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("weighting", ["uniform", "popularity"])
@pytest.mark.parametrize(("n_items", "train"), [(400, (3, 30)), (40, (3, 36)), (25, (20, 23))])
def test_untouched_without_repeats_and_as_many_as_there_are(
    weighting: str, n_items: int, train: tuple[int, int], part: str
) -> None:
    split = world(60, n_items, seed=n_items, train=train)
    users = np.arange(60)
    drawn = draw(split, part, users, 20, weighting, np.random.default_rng(0))
    seen = set(split.train.items.tolist())
    for user in range(60):
        row = drawn[user][drawn[user] >= 0].tolist()
        allowed = set(range(n_items)) - touched(split, user, part)
        if weighting == "popularity":
            allowed &= seen
        assert len(row) == len(set(row)) == min(20, len(allowed))
        assert set(row) <= allowed
        assert row == sorted(row)


def test_validation_negatives_do_not_tell_the_test_item() -> None:
    # With as many negatives as there are, a test item that is never drawn would be known.
    split = world(60, 40, seed=0)
    drawn = frozen_candidates(split, "validation", negatives=40, folder=None)
    for user, item in zip(split.test.users.tolist(), split.test.items.tolist(), strict=True):
        assert item in drawn.of(np.array([user]))[0]


def test_negatives_that_an_earlier_rule_drew_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = world(30, 50, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(candidates, "CANDIDATE_FORMAT", "hdccf-candidates-1")
        frozen_candidates(split, "validation", negatives=10, folder=tmp_path)
    frozen_candidates(split, "validation", negatives=10, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def _inclusion(split: Split, wanted: int, weighting: str, repeats: int) -> np.ndarray:
    """How often each item is among the negatives of user 0."""
    counts = np.zeros(split.n_items)
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        row = draw(split, "test", np.array([0]), wanted, weighting, rng)[0]
        counts[row[row >= 0]] += 1
    return counts / repeats


def _sequential_inclusion(weights: np.ndarray, wanted: int) -> np.ndarray:
    """Literally: draw by weight, take out, draw again; every way to do so with its probability."""

    def follow(left: tuple[int, ...], still: int, chance: float, result: np.ndarray) -> None:
        if not still:
            return
        total = sum(weights[item] for item in left)
        for item in left:
            share = chance * weights[item] / total
            result[item] += share
            follow(tuple(other for other in left if other != item), still - 1, share, result)

    result = np.zeros(len(weights))
    follow(tuple(np.flatnonzero(weights)), wanted, 1.0, result)
    return result


@pytest.mark.parametrize("from_list", [False, True])
@pytest.mark.parametrize("weighting", ["uniform", "popularity"])
def test_items_are_drawn_as_often_as_drawing_one_after_another(
    weighting: str, from_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # User 0 has items 0 and 1; items 2 to 7 are left, with 1 to 6 other users in training.
    train = [(0, 0), *((user, item) for item in range(2, 8) for user in range(1, item))]
    split = split_of([train, [], [(0, 1)]], 8, 8)
    weights = np.bincount(split.train.items, minlength=8).astype(float)
    weights[:2] = 0
    if weighting == "uniform":
        weights[2:] = 1
    # Two of six: drawn with rejection; in the other case nothing is drawn before the list is used.
    monkeypatch.setattr(candidates, "_ROUNDS", 0 if from_list else 1000)
    repeats = 2000
    found = _inclusion(split, 2, weighting, repeats)
    expected = _sequential_inclusion(weights, 2)
    error = np.sqrt(expected * (1 - expected) / repeats)
    assert np.all(np.abs(found - expected) <= 4.5 * error)


def test_rejection_and_list_can_share_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_ROUNDS", 1)
    split = world(40, 60, seed=3, train=(5, 8))
    drawn = draw(split, "test", np.arange(40), 24, "popularity", np.random.default_rng(0))
    for user in range(40):
        row = drawn[user].tolist()
        assert -1 not in row
        assert len(set(row)) == 24
        assert not set(row) & touched(split, user)


def test_frozen_on_disk_and_the_same_for_every_rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    split = world(30, 50, seed=0)
    first = frozen_candidates(split, "test", negatives=10)
    (kept,) = (cache_home() / "candidates").iterdir()
    assert split.fingerprint in kept.name

    def never(*_: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(candidates, "draw", never)
    again = frozen_candidates(split, "test", negatives=10)
    np.testing.assert_array_equal(first.negatives, again.negatives)


def test_seed_part_and_data_each_have_their_own(tmp_path: Path) -> None:
    split = world(30, 50, seed=0)

    def drawn(split: Split, part: str = "test", seed: int = 0) -> Candidates:
        return frozen_candidates(split, part, negatives=10, seed=seed, folder=tmp_path)

    base = drawn(split).negatives
    assert not np.array_equal(base, drawn(split, seed=1).negatives)
    drawn(split, "validation")
    drawn(world(30, 50, seed=1))
    assert len(list(tmp_path.iterdir())) == 4
    np.testing.assert_array_equal(base, frozen_candidates(split, "test", negatives=10, folder=None).negatives)


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    split, other = world(30, 50, seed=0), world(30, 50, seed=1)
    frozen_candidates(split, "test", negatives=10, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(EvaluationError, match="does not hold what its name says; delete it"):
        frozen_candidates(split, "test", negatives=10, folder=tmp_path)
    kept.write_bytes(b"nothing")
    with pytest.raises(EvaluationError, match=r"cannot be read.*delete it"):
        frozen_candidates(split, "test", negatives=10, folder=tmp_path)
    (tmp_path / kept.name.replace(split.fingerprint, other.fingerprint)).write_bytes(content)
    with pytest.raises(EvaluationError, match="does not hold what its name says"):
        frozen_candidates(other, "test", negatives=10, folder=tmp_path)


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    found = frozen_candidates(world(5, 50, seed=0), "test", negatives=10, folder=blocked / "inside")
    assert found.negatives.shape == (5, 10)
    assert "could not be kept" in capsys.readouterr().err


@pytest.mark.parametrize(("wrong", "message"), [
    ({"negatives": 0}, "negatives=0"),
    ({"weighting": "random"}, "choose one of .*'popularity'"),
    ({"seed": -1}, "seed=-1"),
])  # fmt: skip
def test_impossible_wishes_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        frozen_candidates(world(5, 50, seed=0), "test", **wrong)  # type: ignore[arg-type]
