"""Training on the command line, on data that has grown since."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

import hdccf
from command_line import call, error_of
from graphs import tastes
from hdccf.data.event_log import Event, EventLog
from hdccf.recommend.run_folder import RunFolder

QUICK = ["--set", "epochs=1", "--set", "embedding_dim=4", "--set", "block_users=16"]


def test_what_a_split_leaves_without_training_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [(user, item) for user in range(8) for item in range(20) if (user + item) % 2]
    early = [(f"u{user}", f"i{item}", (7 * item + 11 * user) % 101) for user, item in pairs]
    late = [(f"n{user}", "i1", 10_000 + user) for user in range(3)]
    pl.DataFrame(early + late, schema=["user", "item", "time"], orient="row").write_csv(tmp_path / "log.csv")
    given = ["--interactions", str(tmp_path / "log.csv"), "--split", "global-time"]
    assert call("train", *given, "--out", tmp_path / "run", *QUICK) == 0
    said = capsys.readouterr().err
    assert "3 users have no training pair" in said
    assert "3 test pairs have a user or item without training pairs" in said


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A run on some events in `old`, and a file with those and what came after: a new user and a new item."""
    data = tastes()
    times = data.times
    assert times is not None
    events = pl.DataFrame(
        {
            "user": data.user_ids.gather(data.users),
            "item": data.item_ids.gather(data.items),
            "time": times,
        }
    )
    events.write_csv(tmp_path / "events.csv")
    later = int(times.max()) + 1_000_000
    new = pl.DataFrame(
        {"user": "newcomer", "item": [100, 102, 104, 900, 106, 108], "time": [later + i for i in range(6)]}
    )
    pl.concat([events, new]).write_csv(tmp_path / "grown.csv")
    assert call("train", "--interactions", tmp_path / "events.csv", "--out", tmp_path / "old", *QUICK) == 0
    return tmp_path / "grown.csv"


def test_a_run_starts_another_on_grown_data(
    grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    start = ["--init-from", str(tmp_path / "old"), "--out", str(tmp_path / "new")]
    assert call("train", "--interactions", grown, *start, *QUICK) == 0
    assert f"starting from {tmp_path / 'old'}: 40 users and 30 items known, 1 and 1 new" in " ".join(
        capsys.readouterr().err.split()
    )
    facts = json.loads((tmp_path / "new" / "run.json").read_text())["data"]["init_from"]
    assert (facts["users"], facts["new_users"], facts["new_items"]) == (40, 1, 1)
    model = hdccf.load_run(tmp_path / "new")
    found = model.recommend(["newcomer"], k=30)["item"].to_list()
    assert len(found) == 25
    assert 900 not in found
    assert 900 in model.recommend(["u1"], k=100)["item"]


def test_a_log_of_events_is_added_to_the_data_of_a_run(
    grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    later = datetime(2030, 1, 1, tzinfo=UTC)
    log.append(
        Event(id=str(n), user="newcomer", item=item, time=later + timedelta(minutes=n))
        for n, item in enumerate(["100", "102", "104", "900", "106"])
    )
    log.close()
    append = ["--append", str(tmp_path / "events.jsonl"), "--out", str(tmp_path / "new")]
    assert "give --init-from RUN for that run's events" in error_of(capsys, "train", *append)
    assert call("train", *append, "--init-from", tmp_path / "old", *QUICK) == 0
    facts = json.loads((tmp_path / "new" / "run.json").read_text())["data"]
    assert (facts["init_from"]["users"], facts["init_from"]["new_users"]) == (40, 1)
    assert facts["init_from"]["new_items"] == 1
    model = hdccf.load_run(tmp_path / "new")
    assert len(model.events) == len(tastes()) + 5
    assert model.events.item_ids.dtype.is_integer()
    assert model.recommend(["newcomer"], k=3)["item"].len() == 3
    append[-1] = str(tmp_path / "other")
    assert call("train", "--interactions", tmp_path / "events.csv", *append, *QUICK) == 0
    assert hdccf.load_run(tmp_path / "other").events.fingerprint == model.events.fingerprint


def test_what_a_run_cannot_start_is_one_line(
    grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for start, settings, said in (
        (tmp_path / "nowhere", QUICK, "nowhere"),
        (
            tmp_path / "old",
            [*QUICK, "--set", "embedding_dim=8"],
            "its items.embedding is 30×4, here it is 31×8",
        ),
    ):
        given = ["--init-from", str(start), "--out", str(tmp_path / "new"), *settings]
        assert said in error_of(capsys, "train", "--interactions", grown, *given)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--threads", "100000"], "--threads.*less than or equal to 1024"),
        (["--set", "temperature=1e-300"], "temperature=1e-300 is not possible: .*greater than or equal to"),
        (["--set", "embedding_dim=1000000000"], "embedding_dim=1000000000 is not possible: .*less than or"),
        (["--set", "temperature=nan"], "temperature=nan is not possible"),
    ],
)
def test_impossible_settings_are_one_line(
    given: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(said, error_of(capsys, "train", "--dataset", "synthetic", *given))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", [[], ["--out", "mine/run"]])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("absent.csv", None),
        ("log.csv", b"user,item,ts\na,x,1600000000\nb,y,soon\n"),
        ("log.parquet", b"PAR1 and no more"),
        ("log.csv.gz", b"\x1f\x8b\x08\x00 and no more"),
    ],
)
def test_a_source_that_cannot_be_read_leaves_no_folder(
    name: str,
    content: bytes | None,
    out: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    before = list(tmp_path.iterdir())
    assert name in error_of(capsys, "train", "--interactions", name, *out)
    assert list(tmp_path.iterdir()) == before


def test_items_are_given_with_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tastes()
    data.frame().drop("count").write_csv(tmp_path / "events.csv")
    parity = ["odd" if n % 2 else "even" for n in range(33)]
    pl.DataFrame({"id": range(100, 133), "parity": parity}).write_parquet(tmp_path / "items.parquet")
    given = ["--interactions", str(tmp_path / "events.csv"), "--out", str(tmp_path / "run"), *QUICK]
    missing = ["--item-features", str(tmp_path / "none.parquet")]
    assert "none.parquet cannot be read" in error_of(capsys, "train", *given, *missing)
    assert not (tmp_path / "run").exists()
    assert call("train", *given, "--item-features", tmp_path / "items.parquet") == 0
    assert "33 of 33 items have attributes, 3 are new" in capsys.readouterr().out
    found = hdccf.load_run(tmp_path / "run").recommend(["u1"], k=5, where={"parity": "even"})
    assert {item % 2 for item in found["item"]} == {0}
    assert call("evaluate", tmp_path / "run", "--diversity") == 0
    assert "similarity" in capsys.readouterr().out
    assert (tmp_path / "run" / "diversity.png").exists()
    assert "exclude each other" in error_of(capsys, "evaluate", tmp_path / "run", "--diversity", "--dial")


# -- own events ----------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands are called in, with my log.csv and three parts of it."""
    monkeypatch.chdir(tmp_path)
    log = tastes().frame().select(who="user", what="item", at="time")
    log.write_csv("my log.csv")
    place = pl.int_range(pl.len()) % 10
    for name, part in (("valid", place == 0), ("test", place == 1), ("train", place > 1)):
        log.filter(part).write_csv(f"{name}.csv")
    return tmp_path


COLUMNS = ["--user", "who", "--item", "what", "--time", "at"]


def test_own_events_are_tuned_and_compared(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--interactions", "my log.csv", *COLUMNS]
    quick = ["--set", "epochs=1", "--set", "embedding_dim=4"]
    assert call("tune", "--model", "bpr", *given, "--trials", "1", *quick) == 0
    said = capsys.readouterr().out
    assert "results/tuned/my-log/bpr.toml: full:ndcg@10" in said
    typed = "--interactions 'my log.csv' --user who --item what --time at"
    assert f"Next: hdccf train --model bpr {typed} --config results/tuned/my-log/bpr.toml" in said
    assert call("reproduce", "table", *given, "--seeds", "1", "--only", "bpr", "--only", "ease", *quick) == 0
    table = (own / "results/table/my-log.md").read_text()
    assert "tuned: 1 of 1 trials" in table
    assert f"`hdccf reproduce table {typed} --seeds 1" in table
    assert "full NDCG@10" in table
    assert "NDCG@50" not in table
    asked = ["--metric", "sampled:ndcg@10", "--metrics", "ndcg@5", "--seeds", "1", "--only", "ease"]
    assert call("reproduce", "table", *given, *asked, "--out", "paper", *quick) == 0
    table = (own / "paper/table/my-log.md").read_text()
    assert "popular NDCG@5 " in table
    assert "--metric sampled:ndcg@10 --metrics ndcg@5 --seeds 1" in table
    too_long = error_of(capsys, "reproduce", "table", *given, *asked[:3], "ndcg@50", *asked[4:], "--out", "x")
    assert "no row of table could be run: K=50 is larger" in too_long
    for command in (["tune", "--model", "bpr"], ["reproduce", "table"]):
        assert "one of them is empty" in error_of(capsys, *command, *given, "--split", "none")
        assert "give one of --dataset NAME" in error_of(capsys, *command)


def test_a_table_leaves_out_what_cannot_weigh(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--interactions", "my log.csv", *COLUMNS, "--repeats", "all", "--set", "epochs=1"]
    assert call("reproduce", "table", *given, "--seeds", "1", "--only", "bpr", "--only", "ease") == 0
    assert "ease is left out: the data has weights, and ease cannot" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_file_needs_no_option_and_hints_can_be_pasted(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*COLUMNS, *QUICK, "--preset", "hdccf", "--out", "my run"]
    assert call("train", "my log.csv", *given) == 0
    assert "Next: hdccf evaluate 'my run'" in capsys.readouterr().out
    assert RunFolder.open("my run").config["data"]["source"] == "my log.csv"
    assert "go on with hdccf train --resume 'my run'" in error_of(capsys, "train", "my log.csv", *given)
    given[-1] = "named"
    assert call("train", "synthetic", *given[len(COLUMNS) :]) == 0
    assert not (own / "named" / "refit").exists()


def test_a_split_of_three_files(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "--interactions", "train.csv", *COLUMNS, *QUICK, "--preset", "hdccf"]
    files = ["--validation", "valid.csv", "--test", "test.csv"]
    assert call(*given, *files, "--split", "predefined", "--out", "run") == 0
    split = hdccf.load_run("run").split
    parts = [pl.read_csv(own / f"{name}.csv").height for name in ("train", "valid", "test")]
    assert [len(split.part(name)) for name in ("train", "validation", "test")] == parts
    assert split.method == "predefined"
    assert len(hdccf.load_run("run").events) == sum(parts)
    assert call(*given, "--test", "test.csv", "--out", "two") == 0
    assert not len(hdccf.load_run("two").split.validation)
    twice = [*given, "--validation", "valid.csv", "--test", "valid.csv"]
    assert "are in an earlier part as well" in error_of(capsys, *twice)
    assert call(*twice, "--overlap", "drop", "--out", "three") == 0
    capsys.readouterr()
    assert call(*given, "--validation", "valid.csv", "--out", "four") == 0
    assert "Next: hdccf evaluate four --part validation" in capsys.readouterr().out
    assert "(--part validation)" in error_of(capsys, "evaluate", "four")
    assert "are files of your own split" in error_of(capsys, *given, *files, "--split", "random")
    assert "are files of your own split" in error_of(capsys, "train", "--dataset", "ml-100k", *files)
    assert "--split predefined needs --validation FILE" in error_of(capsys, *given, "--split", "predefined")
