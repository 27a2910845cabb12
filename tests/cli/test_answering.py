"""What a run answers on the command line: recommend, similar, score, explain, export."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import command_line
import hdccf
from command_line import error_of
from graphs import small_split
from training import quick

Call = Callable[..., str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    made = {"history": quick(epochs=2), "free": quick("block", epochs=2), "popular": hdccf.MostPopular()}
    for name, settings in made.items():
        hdccf.fit(small_split(), settings, out=folder / name)
    return {name: str(folder / name) for name in made}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Runs a command line; gives its output, or the one line of its error."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, fails: bool = False) -> str:
        if fails:
            return error_of(capsys, *arguments)
        code = command_line.call(*arguments)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


def rows_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["history", "free", "popular"])
def test_users_get_tables_or_json(runs: dict[str, str], call: Call, name: str) -> None:
    shown = call("recommend", runs[name], "u1", "u2", "--k", "3")
    assert "for user u1" in shown
    assert "for user u2" in shown
    found = rows_of(call("recommend", runs[name], "u1", "u2", "--k", "3", "--json"))
    expected = hdccf.load_run(runs[name]).recommend(["u1", "u2"], k=3)
    assert [row["item"] for row in found] == expected["item"].to_list()


def test_new_users_and_new_items(runs: dict[str, str], call: Call) -> None:
    loaded = hdccf.load_run(runs["free"])
    found = rows_of(call("recommend", runs["free"], "--items", "100", "104", "--k", "2", "--json"))
    expected = loaded.recommend_for_items([[100, 104]], k=2)["item"].to_list()
    assert [row["item"] for row in found] == expected
    assert "for a new user" in call("recommend", runs["free"], "--items", "100")
    found = rows_of(call("recommend", runs["free"], "--new-item", "u1", "u3", "--k", "2", "--json"))
    assert [row["user"] for row in found] == loaded.users_for_new_items([["u1", "u3"]], k=2)["user"].to_list()


def test_unknown_users_and_fresh_items(runs: dict[str, str], call: Call) -> None:
    users = ("recommend", runs["history"], "u1", "nobody", "--k", "2")
    assert "user 'nobody' is not in the training data" in call(*users, fails=True)
    assert "nobody" not in call(*users, "--unknown", "skip")
    shown = call(*users, "--unknown", "popular")
    assert "for user u1\n" in shown
    assert "for user nobody: popular items, as there is no history\n" in shown
    assert "source" not in shown
    found = rows_of(call(*users, "--unknown", "popular", "--json"))
    assert [row["source"] for row in found] == ["model"] * 2 + ["popular"] * 2
    fresh = ("recommend", runs["history"], "u1", "--fresh", "100", "--fresh", "103", "--json")
    expected = hdccf.load_run(runs["history"]).recommend(["u1"], fresh=[[100, 103]])
    assert [row["item"] for row in rows_of(call(*fresh))] == expected["item"].to_list()
    assert "choose one of ['error', 'skip', 'popular']" in call(*users, "--unknown", "x", fails=True)
    assert "leave them out" in call(*fresh[:2], "--items", "100", "--fresh", "103", fails=True)


def test_items_files_filter_and_lists_are_diverse(runs: dict[str, str], call: Call, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    shutil.copytree(runs["free"], run)
    parity = ["odd" if n % 2 else "even" for n in range(32)]
    pl.DataFrame({"sku": range(100, 132), "parity": parity}).write_csv(tmp_path / "items.csv")
    assert "give it some with" in call("recommend", run, "u1", "--where", "parity=odd", fails=True)
    assert "pip install 'hdccf[features]'" in call("items", "--help")
    assert "hdccf[onnx]" in call("export", "--help")
    said = call("items", run, "items.csv")
    assert "32 of 32 items have attributes, 2 are new" in said
    odd = ("--where", "parity=odd", "--k", "32", "--include-seen", "--json")
    found = rows_of(call("recommend", run, "u1", *odd))
    assert sorted(int(str(row["item"])) for row in found) == list(range(101, 132, 2))
    both = rows_of(call("recommend", run, "u1", *odd, "--where", "parity=even"))
    assert len(both) == 32
    assert "write it as category=books" in call("recommend", run, "u1", "--where", "parity", fails=True)
    expected = hdccf.load_run(run).recommend(["u1"], k=4, diversity=0.7)["item"].to_list()
    found = rows_of(call("recommend", run, "u1", "--k", "4", "--diversity", "0.7", "--json"))
    assert [row["item"] for row in found] == expected
    assert "leave them out" in call("recommend", run, "--new-item", "u1", "--diversity", "0.7", fails=True)


def test_allowed_and_denied_items_come_from_files(runs: dict[str, str], call: Call, tmp_path: Path) -> None:
    (tmp_path / "stock.txt").write_text("101\n103\n\n 105 \n107\nnew\n")
    (tmp_path / "blocked.txt").write_text("103\n")
    limits = ("--allow", "stock.txt", "--deny", "blocked.txt")
    found = rows_of(call("recommend", runs["free"], "u1", "--include-seen", "--json", *limits))
    assert sorted(int(str(row["item"])) for row in found) == [101, 105, 107]
    assert "cannot be read" in call("recommend", runs["free"], "u1", "--deny", "none.txt", fails=True)


def test_all_users_go_into_a_file_that_is_not_overwritten_unasked(
    runs: dict[str, str], call: Call, tmp_path: Path
) -> None:
    all_users = ("recommend", runs["history"], "--all", "--out", "recs.parquet")
    assert "2 items for each of 40 users" in call(*all_users, "--k", "2")
    written = pl.read_parquet(tmp_path / "recs.parquet")
    assert written.columns == ["user", "rank", "item", "score"]
    assert len(written) == 80
    assert "recs.parquet exists" in call(*all_users, fails=True)
    call(*all_users, "--k", "1", "--overwrite")
    assert len(pl.read_parquet(tmp_path / "recs.parquet")) == 40


def test_what_is_alike_and_by_what(runs: dict[str, str], call: Call) -> None:
    assert "like item 100, by the model's own f(i, i′)" in call("similar", runs["free"], "--item", "100")
    assert "by the cosine of the user vectors" in call("similar", runs["history"], "--user", "u1")
    found = rows_of(call("similar", runs["free"], "--item", "100", "--item", "102", "--k", "4", "--json"))
    assert [row["item"] for row in found] == [100] * 4 + [102] * 4


def test_pairs_are_scored(runs: dict[str, str], call: Call, tmp_path: Path) -> None:
    expected = hdccf.load_run(runs["free"]).score(["u2", "u1"], [104, 100])
    assert f"u2,104,{expected['score'][0]:.3f}"[:-1] in call("score", runs["free"], "u2", "104")
    (tmp_path / "pairs.csv").write_text("item,user,note\n104,u2,x\n100,u1,y\n")
    many = pl.read_csv(call("score", runs["free"], "--pairs", "pairs.csv").encode())
    assert many["user"].to_list() == ["u2", "u1"]
    np.testing.assert_allclose(many["score"], expected["score"], rtol=1e-4)
    expected.write_parquet(tmp_path / "pairs.parquet")
    assert len(rows_of(call("score", runs["free"], "--pairs", "pairs.parquet", "--json"))) == 2


def test_reasons_come_with_how_far_to_believe_them(runs: dict[str, str], call: Call) -> None:
    shown = call("explain", runs["history"], "u1", "--k", "2", "--top", "3")
    assert shown.count("because of") == 2
    assert "Kendall's τ with the model 1.000" in shown
    found = rows_of(call("explain", runs["history"], "u1", "101", "103", "--top", "2", "--json"))
    assert [row["item"] for row in found] == [101, 101, 103, 103]


def test_vectors_are_exported(runs: dict[str, str], call: Call, tmp_path: Path) -> None:
    assert "items.parquet, meta.json, users.parquet" in call("export", runs["history"], "--out", "vectors")
    assert "vectors exists" in call("export", runs["history"], "--out", "vectors", fails=True)
    call("export", runs["history"], "--out", "vectors", "--overwrite", "--format", "numpy")
    assert np.load(tmp_path / "vectors" / "items_vector.npy").shape == (30, 4)


MISTAKES = {
    "no ids": (["recommend", "RUN"], "no users given; pass ids, --items"),
    "two kinds": (["recommend", "RUN", "--items", "--new-item", "100"], "exclude each other"),
    "all without a file": (["recommend", "RUN", "--all"], "--all and --out go together"),
    "a file without all": (["recommend", "RUN", "u1", "--out", "x.parquet"], "--all and --out go together"),
    "all and some": (["recommend", "RUN", "u1", "--all", "--out", "x.parquet"], "leave out u1"),
    "no table": (["recommend", "RUN", "--all", "--out", "x.txt"], "ends in .parquet, .csv, .jsonl"),
    "unknown user": (["recommend", "RUN", "u1", "nobody"], "user 'nobody' is not in the training data"),
    "unknown item": (["recommend", "RUN", "--items", "1"], "item '1' is not in the catalogue"),
    "nothing asked": (["recommend", "RUN", "u1", "--k", "0"], "k=0 recommends nothing"),
    "unknown history": (["recommend", "RUN", "u1", "--history", "x"], "history='x' is unknown"),
    "users for an item, limited": (["recommend", "RUN", "--new-item", "u1", "--deny", "x"], "leave them out"),
    "alike to nothing": (["similar", "RUN"], "give one of --item ID and --user ID"),
    "alike to both": (["similar", "RUN", "--item", "100", "--user", "u1"], "give one of"),
    "nothing alike": (["similar", "RUN", "--item", "100", "--k", "0"], "k=0 asks for nothing"),
    "half a pair": (["score", "RUN", "u1"], "give one pair"),
    "no pairs file": (["score", "RUN", "--pairs", "none.csv"], "none.csv cannot be read"),
    "no reasons": (["explain", "RUN", "u1", "--top", "0"], "top=0 gives no reason"),
    "unknown format": (
        ["export", "RUN", "--out", "x", "--format", "csv"],
        "choose one of ['parquet', 'numpy', 'onnx']",
    ),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_is_one_line(runs: dict[str, str], call: Call, mistake: str) -> None:
    arguments, expected = MISTAKES[mistake]
    assert expected in call(*(runs["free"] if x == "RUN" else x for x in arguments), fails=True)
