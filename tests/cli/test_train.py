"""Training on the command line, on data that has grown since."""

import json
from pathlib import Path

import polars as pl
import pytest

import hdccf
from command_line import call, error_of
from graphs import tastes

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
