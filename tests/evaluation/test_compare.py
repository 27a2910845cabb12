"""Systems over seeds: who is best, by how much, how sure, and what may be compared at all."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranking_oracles import Table, world
from rich.console import Console
from scipy import stats

import hdccf
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import Evaluation
from hdccf.evaluation.compare import Comparison, compare


@pytest.fixture(scope="module")
def split() -> Split:
    return world(200, 60, seed=0)


def knowing(split: Split, strength: float, seed: int) -> Evaluation:
    """Noise, with so much added to what is right."""
    scores = torch.randn(200, 60, generator=torch.Generator().manual_seed(seed))
    scores[torch.tensor(split.test.users), torch.tensor(split.test.items)] += strength
    return hdccf.evaluate(Table(scores), split, ks=(5, 10), negatives=40, beyond_accuracy=False)


@pytest.fixture(scope="module")
def systems(split: Split) -> dict[str, list[Evaluation]]:
    return {
        "fair": [knowing(split, 0.8, seed) for seed in (1, 2, 3)],
        "good": [knowing(split, 2.0, seed) for seed in (4, 5)],
        "none": [knowing(split, 0.0, 6)],
    }


@pytest.fixture(scope="module")
def comparison(systems: dict[str, list[Evaluation]]) -> Comparison:
    return compare(systems)


def test_cells_are_means_and_deviations_over_seeds(
    systems: dict[str, list[Evaluation]], comparison: Comparison
) -> None:
    assert [*comparison.cells] == [(p, m) for p in ("sampled", "full") for m in ("hr@5", "ndcg@5", "ndcg@10")]
    for (protocol, metric), row in comparison.cells.items():
        for system, cell in row.items():
            means = [evaluation.values[protocol][metric] for evaluation in systems[system]]
            assert cell.mean == pytest.approx(np.mean(means))
            assert cell.seeds == len(means)
            if len(means) > 1:
                assert cell.deviation == pytest.approx(np.std(means, ddof=1))
            else:
                assert cell.deviation is None
            assert cell.interval[0] < cell.mean < cell.interval[1]


def test_tests_are_paired_over_users_after_averaging_over_seeds(
    systems: dict[str, list[Evaluation]], comparison: Comparison
) -> None:
    column = "full/ndcg@10"
    averaged = {
        system: np.mean([run.per_user[column].to_numpy() for run in runs], axis=0)
        for system, runs in systems.items()
    }
    (test,) = [t for t in comparison.tests if (t.protocol, t.metric, t.other) == ("full", "ndcg@10", "fair")]
    expected = stats.ttest_rel(averaged["good"], averaged["fair"])
    assert test.best == "good"
    assert test.result.p_t == pytest.approx(expected.pvalue)
    # Two others × two protocols × three metrics.
    assert test.result.p_t <= test.holm_t <= 12 * test.result.p_t
    assert test.relative == pytest.approx(averaged["good"].mean() / averaged["fair"].mean() - 1)


def test_marks_are_those_of_the_paper(comparison: Comparison) -> None:
    assert comparison.ranking("full", "ndcg@10") == ["good", "fair", "none"]
    assert comparison.is_significant("full", "ndcg@10")
    lines = comparison.to_markdown().splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index("full ndcg@10")
    fair, good, none = (line.split("|")[column].strip() for line in lines[2:5])
    assert good.startswith("**0.")
    assert r"**\* ± " in good
    assert fair.startswith("<u>0.")
    assert not set(none) & set("*<±")
    console = Console(width=160, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(comparison)
    assert "\x1b[1m0." in capture.get()
    assert "\x1b[4m0." in capture.get()


def test_luck_is_not_starred(split: Split) -> None:
    found = compare({"a": [knowing(split, 0.5, 1)], "b": [knowing(split, 0.5, 2)]})
    assert not any(found.is_significant(*row) for row in found.cells)
    assert r"\* " not in found.to_markdown().split("\n\n")[0]


def test_equal_systems_have_no_winner(split: Split) -> None:
    same = knowing(split, 0.5, 1)
    found = compare({"a": [same], "b": [same]})
    assert all(test.result.p_t == test.result.p_wilcoxon == 1 for test in found.tests)
    assert not found.is_significant("full", "hr@5")
    json.loads(found.to_json())


def test_json_has_everything(comparison: Comparison) -> None:
    found = json.loads(comparison.to_json())
    entry = found["results"]["sampled"]["hr@5"]
    assert (entry["best"], entry["second"], entry["significant"]) == ("good", "fair", True)
    assert entry["systems"]["fair"]["seeds"] == 3
    keys = "best other difference relative interval t cohen_d rank_biserial p_t p_wilcoxon holm_t"
    assert {*keys.split(), "holm_wilcoxon"} <= found["tests"][0].keys()


def test_what_cannot_be_compared_is_refused(split: Split, systems: dict[str, list[Evaluation]]) -> None:
    own, other = systems["none"][0], world(200, 60, seed=1)

    def changed(**settings: object) -> Evaluation:
        return replace(own, settings={**own.settings, **settings})

    only_full = replace(own, values={"full": own.values["full"]})
    refused: list[tuple[str, list[Evaluation]]] = [
        (r"1 system\(s\) cannot be compared", [own]),
        (f"split .{split.fingerprint} and {other.fingerprint}", [own, knowing(other, 0.0, 1)]),
        ("differ in negatives", [own, changed(negatives=9)]),
        ("on other users", [own, replace(own, per_user=own.per_user.reverse())]),
        ("no K in common", [own, changed(ks=[3])]),
        ("no protocol in common", [only_full, replace(own, values={})]),
    ]
    for message, evaluations in refused:
        with pytest.raises(EvaluationError, match=message):
            compare({str(number): [evaluation] for number, evaluation in enumerate(evaluations)})
    with pytest.raises(EvaluationError, match="was not evaluated for 'sampled/hr@7'"):
        compare(systems, ["hr@7"])
