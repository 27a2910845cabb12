"""The names of `hdccf`: complete, lazy, documented, and open for models, losses and metrics of others."""

import doctest
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import hdccf
from hdccf.config import Settings
from hdccf.evaluation.metrics import Ranks
from hdccf.models import MODELS

WORLD = hdccf.synthetic_world(2000, n_users=120, n_items=200)
SPLIT = hdccf.leave_one_out(WORLD.interactions)


pytestmark = pytest.mark.usefixtures("own_registries")


def in_a_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- names ---------------------------------------------------------------------------------------------------


def test_dir_has_every_name_and_every_model() -> None:
    assert dir(hdccf) == sorted(hdccf.__all__)
    assert all(getattr(hdccf, name) is not None for name in hdccf.__all__)
    public = {getattr(hdccf, name) for name in hdccf.__all__ if name != "__version__"}
    assert {MODELS[name].settings for name in MODELS} <= public


def test_static_and_lazy_names_are_the_same() -> None:
    source = Path(inspect.getfile(hdccf)).read_text(encoding="utf-8")
    typed = [line.split() for line in source.splitlines() if line.startswith("    from hdccf")]
    assert {words[-1]: words[1] for words in typed} == hdccf._MODULE_OF


def test_import_loads_no_library() -> None:
    code = "import sys, hdccf; dir(hdccf); print({'torch', 'polars', 'pydantic'} & set(sys.modules))"
    assert in_a_new_process(code) == "set()\n"


SKETCHES = (
    *("load", "read", "read_sql", "k_core", "synthetic_world"),
    *("leave_one_out", "global_time_split", "random_split", "predefined_split", "no_split"),
)
"""Their examples show calls on data that is not at hand here, and no results."""


@pytest.mark.parametrize("name", [name for name in hdccf.__all__ if name != "__version__"])
def test_public_names_have_examples_that_hold(name: str) -> None:
    found = getattr(hdccf, name)
    names = {"hdccf": hdccf, "ClassVar": ClassVar, name: found}
    (test,) = doctest.DocTestFinder(recurse=False).find(found, name, globs=names)
    assert test.examples
    assert name in SKETCHES or not doctest.DocTestRunner().run(test).failed


def test_a_preset_is_settings() -> None:
    found = hdccf.preset("ml-100k", model="bpr", epochs=3)
    assert isinstance(found, hdccf.BPR)
    assert found.epochs == 3
    assert found.changed(epochs=hdccf.BPR().epochs) != hdccf.BPR()


def test_tune_gives_settings_and_continues_a_study(tmp_path: Path) -> None:
    study = tmp_path / "study.jsonl"
    common: dict[str, Any] = {"minutes": 5, "study": study, "epochs": 1, "embedding_dim": 8}
    found = hdccf.tune(SPLIT, hdccf.BPR, trials=1, **common)
    assert isinstance(found, hdccf.BPR)
    assert (found.epochs, found.embedding_dim) == (1, 8)
    before = study.read_text(encoding="utf-8")
    hdccf.tune(SPLIT, "bpr", trials=2, **common)
    assert study.read_text(encoding="utf-8").startswith(before)


def test_the_core_of_a_named_data_set() -> None:
    whole, core = hdccf.load("synthetic"), hdccf.load("synthetic", core=20)
    assert core.fingerprint == hdccf.k_core(whole, users=20, items=20).fingerprint
    assert min(core.by_user.degrees) >= 20 > min(whole.by_user.degrees)


def test_python_and_the_command_give_the_same_figures(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", "synthetic", "--model", "ease", "--set", "l2=50", "--out", str(run)]
    in_a_new_process(f"from hdccf.cli import main; main({command})")
    split = hdccf.leave_one_out(hdccf.load("synthetic", core=5))
    model = hdccf.fit(split, hdccf.EASE(l2=50))
    theirs = hdccf.load_run(run)
    assert theirs.split.fingerprint == split.fingerprint
    assert hdccf.evaluate(theirs, theirs.split).values == hdccf.evaluate(model, split).values


# -- frames and tables ---------------------------------------------------------------------------------------


def test_pandas_goes_in_and_comes_out() -> None:
    rows = WORLD.interactions
    frame = pd.DataFrame({"user": rows.user_ids.gather(rows.users), "item": rows.item_ids.gather(rows.items)})
    model = hdccf.fit(hdccf.leave_one_out(hdccf.read(frame)), hdccf.MostPopular())
    users = pd.Series(frame["user"].unique()[:2], index=[7, 9])
    answers = model.recommend(users, k=3).to_pandas()
    assert isinstance(answers, pd.DataFrame)
    assert answers["user"].unique().tolist() == users.tolist()
    with pytest.raises(hdccf.HdccfError, match="user 'nope' is not in the training data"):
        model.recommend(pd.Series(["nope"], index=[7]))


def test_notebooks_show_tables() -> None:
    model = hdccf.fit(SPLIT, hdccf.MostPopular())
    found = hdccf.evaluate(model, SPLIT)
    compared = hdccf.compare({"a<b": found, "ease": hdccf.evaluate(hdccf.fit(SPLIT, hdccf.EASE()), SPLIT)})
    for shown, expected in (
        (SPLIT.train, f"{len(SPLIT.train):,}"),
        (SPLIT, f'<td style="text-align: right">{len(SPLIT.test):,}</td>'),
        (found, f"{found.values['full']['ndcg@10']:.4f}"),
        (compared, "a&lt;b"),
        (model.recommend(SPLIT.train.user_ids.head(1), k=1), "rank"),
    ):
        table = shown._repr_html_()
        assert table.count("<table") == table.count("</table>") == 1
        assert expected in table


def test_bars_in_notebooks_need_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdccf import console

    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(console, "find_spec", lambda name: None)
    assert console._live_console() is None
    monkeypatch.setattr(console, "find_spec", lambda name: True)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    found = console._live_console()
    assert found is not None
    assert found.is_jupyter


# -- metrics by name -----------------------------------------------------------------------------------------


def test_metrics_by_name_are_those_of_the_whole_evaluation() -> None:
    model = hdccf.fit(SPLIT, hdccf.EASE())
    names = ["ndcg@10", "recall@20", "coverage@10", "similarity@20", "auc"]
    found, whole = hdccf.evaluate(model, SPLIT, metrics=names), hdccf.evaluate(model, SPLIT, ks=(10, 20))
    assert set(found.values["full"]) == set(names)
    assert set(found.values["sampled"]) == {"ndcg@10", "recall@20", "auc"}
    for protocol, values in found.values.items():
        assert values == {name: whole.values[protocol][name] for name in values}
    assert list(hdccf.evaluate(model, SPLIT, metrics=["gini@5"]).values) == ["full"]
    assert "recall" in str(found)
    popular = hdccf.evaluate(hdccf.fit(SPLIT, hdccf.MostPopular()), SPLIT, metrics=names)
    compared = hdccf.compare({"ease": found, "popular": popular})
    assert {metric for _, metric in compared.cells} == {"ndcg@10", "recall@20", "auc"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["ndgc@10"], "metric='ndgc@10' is unknown"),
        (["ndcg"], "followed by @K"),
        ("ndcg@10", "is one name"),
        (["coverage@5"], "add 'full'"),
    ],
)
def test_impossible_metrics_are_refused(names: Any, message: str) -> None:
    with pytest.raises(hdccf.HdccfError, match=message):
        hdccf.evaluate(hdccf.fit(SPLIT, hdccf.MostPopular()), SPLIT, protocols=("sampled",), metrics=names)


# -- models, losses and metrics of other packages ------------------------------------------------------------

PLUGIN = '''
from typing import ClassVar

import torch

import hdccf


class Constant(hdccf.Settings):
    model: ClassVar[str] = "constant"
    start: int = 0


@hdccf.register_model(Constant)
class ConstantModel(hdccf.Model):
    """The order of the catalogue, for every user."""

    def __init__(self, settings, train, generator):
        super().__init__(settings)
        self.n_users, self.n_items = train.n_users, train.n_items
        self.register_buffer("order", torch.zeros(train.n_items))

    def solve(self, generator, progress):
        self.order.copy_(-(torch.arange(self.n_items) - self.settings.start).abs().float())

    def scorer(self):
        return self

    def score_block(self, users, items=None):
        row = self.order if items is None else self.order[items]
        return row.expand(len(users), -1)

    def score_rows(self, users, items):
        return self.order[items]


@hdccf.register_metric("top")
def top(ranks, k):
    return ranks.sums(ranks.above == 0) / ranks.relevant


@hdccf.register_loss("hinge")
def hinge(positive, negative, log_weights):
    return (1 - positive.unsqueeze(1) + negative).clamp_min(0).mean(1)
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that is installed beside, and one that is broken."""
    (tmp_path / "shop_models.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "broken_models.py").write_text("import nothing_of_that_name", encoding="utf-8")
    for name in ("broken", "shop"):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8"
        )
        points = f"[hdccf.models]\n{name} = {name}_models\n"
        (about / "entry_points.txt").write_text(points, encoding="utf-8")
    return tmp_path


def test_a_model_of_another_package_is_trained_opened_and_measured_by_the_commands(package: Path) -> None:
    run = package / "run"
    calls = [
        ["models"],
        ["train", "synthetic", "--model", "constant", "--set", "start=3", "--out", str(run)],
        ["recommend", str(run), "u0001", "--k", "1", "--json"],
        ["evaluate", str(run), "--metrics", "top@10", "--json"],
        ["train", "synthetic", "--model", "unknown"],
    ]
    code = f"""
from hdccf.cli import main
for call in {calls}:
    try:
        main(call)
    except SystemExit as done:
        print(call[0], done.code, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    assert [line for line in done.stdout.splitlines() if line[-2:] in (" 0", " 2")] == [
        "models 0",
        "train 0",
        "recommend 0",
        "evaluate 0",
        "train 2",
    ], done.stderr
    assert "The order of the catalogue" in done.stdout
    assert '"top@10"' in done.stdout
    assert done.stderr.count("broken_models of the entry points hdccf.models cannot be imported") == 1
    assert not (run / "evaluation").exists()


def test_a_run_without_its_package_says_so(package: Path) -> None:
    run = package / "run"
    fit = f"hdccf.fit(hdccf.leave_one_out(hdccf.load('synthetic')), shop_models.Constant(), out={str(run)!r})"
    in_a_new_process(f"import hdccf, shop_models; {fit}", PYTHONPATH=str(package))
    with pytest.raises(
        hdccf.HdccfError, match=r"model='constant' is unknown; .*import the module that registers it"
    ):
        hdccf.load_run(run)


def test_names_of_hdccf_are_not_replaced() -> None:
    class Another(Settings):
        model: ClassVar[str] = "bpr"

    class Nameless(Settings):
        pass

    with pytest.raises(hdccf.HdccfError, match="'bpr' of Another is a model of hdccf"):
        hdccf.register_model(Another)
    with pytest.raises(hdccf.HdccfError, match="model: ClassVar"):
        hdccf.register_model(Nameless)
    for taken in ("ndcg", "coverage", "auc", "Not A Name"):
        with pytest.raises(hdccf.HdccfError, match="taken or no name"):
            hdccf.register_metric(taken)
    for taken in ("contrastive", "bpr"):
        with pytest.raises(hdccf.HdccfError, match="register yours under another name"):
            hdccf.register_loss(taken)


def test_a_registered_metric_must_have_a_value_for_each_user() -> None:
    @hdccf.register_metric("half")
    def half(ranks: Ranks, k: int) -> Any:
        return np.ones(1)

    with pytest.raises(hdccf.HdccfError, match=r"metric 'half' returned values of shape \(1,\)"):
        hdccf.evaluate(hdccf.fit(SPLIT, hdccf.MostPopular()), SPLIT, metrics=["half@10"])


def test_a_registered_loss_trains() -> None:
    seen = []

    @hdccf.register_loss("margin")
    def margin(positive: torch.Tensor, negative: torch.Tensor, log_weights: Any) -> torch.Tensor:
        seen.append(negative.shape)
        return (1 - positive.unsqueeze(1) + negative).clamp_min(0).mean(1)

    common: dict[str, Any] = {"loss": "margin", "user_vector": "free", "embedding_dim": 8, "epochs": 1}
    hdccf.fit(SPLIT, hdccf.HDCCF(sampler="uniform", **common))
    assert seen
    with pytest.raises(hdccf.HdccfError, match="loss='margin' takes one negative a positive"):
        hdccf.HDCCF(sampler="block", **common)
    with pytest.raises(hdccf.HdccfError, match="loss='nope' is not possible: it should be one of"):
        hdccf.HDCCF(loss="nope")
