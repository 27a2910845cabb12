"""`hdccf data`: what is listed, what is got, and what is shown of a data set and of a file."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import command_line
from hdccf import Interactions
from hdccf.cli.data import SplitOptions
from hdccf.data.datasets import DATASETS, Dataset, Statistics
from hdccf.data.download import Source

Run = Callable[..., str]

READER = DATASETS["ml-100k"].sources[0].reader
TINY = Dataset(
    about="three users",
    terms="free",
    licence="look at it as you like",
    size="1 kB",
    statistics=Statistics(users=3, items=3, events=7),
    sources=(Source("here", READER, ("u.data",), optional=("u.item",)),),
)
RATINGS = "1\t1\t5\t86400\n1\t2\t5\t86401\n2\t1\t5\t3\n2\t2\t5\t4\n2\t2\t1\t5\n3\t1\t1\t1\n3\t3\t1\t2\n"
MOVIES = "".join(
    f"{own}|{title}{'|' * 22}\n" for own, title in ((1, "One [uncut]"), (2, "Two"), (3, "Three"))
)
CLICKS = "who,what,stars,when\na,x,5,2020-01-01\na,y,3,2020-01-02\nb,x,4,2020-01-03\nb,y,1,2020-01-03\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a data set that the catalogue knows and a file that it does not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HDCCF_DATA_HOME", raising=False)
    monkeypatch.setitem(DATASETS, "tiny", TINY)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "u.data").write_text(RATINGS)
    (tmp_path / "given" / "u.item").write_text(MOVIES)
    (tmp_path / "clicks.csv").write_text(CLICKS)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line that must end well; gives its output."""

    def call(*arguments: str) -> str:
        code = command_line.call("data", *arguments)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return call


def test_list_shows_every_data_set_with_size_terms_and_origin(run: Run) -> None:
    out = run("list")
    assert all(name in out for name in DATASETS)
    assert "20,000,263" in out
    assert "files.grouplens.org" in out
    assert "recbole==1.2.1" in out
    assert "research" in out


def test_list_says_what_is_cached(run: Run) -> None:
    assert not any(entry["cached"] for entry in json.loads(run("list", "--json")))
    run("get", "tiny", "--from", "given")
    listed = {entry["name"]: entry for entry in json.loads(run("list", "--json"))}
    assert [name for name, entry in listed.items() if entry["cached"]] == ["tiny"]
    assert "not to be redistributed" in listed["ml-1m"]["licence"]
    tiny = next(line for line in run("list").splitlines() if line.strip().startswith("tiny"))
    assert "yes" in tiny


def test_get_says_what_it_is_and_where(run: Run, folder: Path) -> None:
    assert run("get", "tiny", "--from", "given") == (
        f"tiny: 3 × 3 × 6, 66.667 % dense, in {folder / 'cache' / 'tiny'}\n"
    )


def test_get_prints_the_licence_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        command_line.call("data", "get", "tiny", "--from", "given")
        said.append(capsys.readouterr().err.count("look at it as you like"))
    assert said == [1, 0]


def test_get_saves_interactions_that_info_opens_and_never_overwrites(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("get", "tiny", "--from", "given", "--out", "saved")
    assert len(Interactions.load(folder / "saved")) == 6
    assert "saved: 3 × 3 × 6" in run("info", "saved")
    assert "saved exists" in command_line.error_of(capsys, "data", "get", "tiny", "--out", "saved")


def test_info_shows_the_paper_s_table_before_and_after_the_core(run: Run) -> None:
    out = run("info", "tiny", "--from", "given", "--core", "2")
    assert out.splitlines()[0] == "tiny, 2-core: 2 × 2 × 4, 100.000 % dense"
    table = [line.split() for line in out.splitlines()]
    assert ["as", "given", "3", "3", "6", "66.667", "%"] in table
    assert ["2-core", "2", "2", "4", "100.000", "%"] in table


def test_info_shows_times_repeats_activity_and_titles(run: Run) -> None:
    out = run("info", "tiny", "--from", "given")
    assert "1970-01-01T00:00:01Z to 1970-01-02T00:00:01Z" in out
    assert "1 (7 rows in all)" in out
    assert "One [uncut]" in out
    table = [line.split() for line in out.splitlines()]
    assert ["per", "user", "2", "2", "2", "2", "2", "2", "2", "2.0"] in table
    assert ["per", "item", "1", "1", "1", "2", "2", "2", "3", "2.0"] in table


def test_info_as_json(run: Run) -> None:
    facts = json.loads(run("info", "tiny", "--from", "given", "--json"))
    assert {key: facts[key] for key in ("users", "items", "interactions", "events", "repeated_pairs")} == {
        "users": 3,
        "items": 3,
        "interactions": 6,
        "events": 7,
        "repeated_pairs": 1,
    }
    assert facts["density"] == pytest.approx(6 / 9)
    first = {"user": 1, "item": 1, "title": "One [uncut]", "time": "1970-01-02T00:00:00Z", "count": 1}
    assert facts["rows"][0] == first
    assert facts["fingerprint"] == READER(Path("given")).fingerprint


def test_info_of_a_file_with_named_columns(run: Run) -> None:
    columns = ["--user", "who", "--item", "what", "--time", "when"]
    facts = json.loads(run("info", "clicks.csv", *columns, "--json"))
    assert (facts["users"], facts["items"], facts["interactions"]) == (2, 2, 4)
    assert facts["last"] == "2020-01-03T00:00:00Z"
    better = json.loads(
        run("info", "clicks.csv", *columns, "--rating", "stars", "--min-rating", "3", "--json")
    )
    assert better["interactions"] == 3


def test_info_of_a_file_in_a_form_of_its_own(run: Run, folder: Path) -> None:
    (folder / "odd.txt").write_text(CLICKS.partition("\n")[2].replace(",", "\t"))
    options = ["--separator", "\\t", "--no-header", "--user", "1", "--item", "2", "--time", "4"]
    facts = json.loads(run("info", "odd.txt", *options, "--json"))
    assert (facts["users"], facts["items"], facts["interactions"]) == (2, 2, 4)


def test_info_of_a_query(run: Run, folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE clicks (user TEXT, item INTEGER)")
        shop.executemany("INSERT INTO clicks VALUES (?, ?)", [("a", 1), ("a", 2), ("b", 1), ("b", 3)])
    shop.close()
    facts = json.loads(run("info", "sqlite:///shop.db", "--query", "SELECT * FROM clicks", "--json"))
    assert (facts["users"], facts["items"], facts["interactions"]) == (2, 3, 4)
    assert facts["first"] is None


def test_a_database_is_told_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (user, item)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [("a", "x"), ("b", "y"), ("a", "y")])
    told = command_line.error_of(capsys, "data", "info", path)
    assert f"is an SQLite database; say which rows to read, with '{path}' --query 'SELECT" in told
    assert command_line.call("data", "info", path, "--query", "SELECT * FROM orders") == 0
    assert "2 × 2 × 3" in capsys.readouterr().out


def test_info_of_the_world_that_is_made_here(run: Run) -> None:
    assert "synthetic: " in run("info", "synthetic")


@pytest.mark.parametrize("command", ["list", "get", "info"])
def test_help_teaches_by_example(run: Run, command: str) -> None:
    assert "hdccf data " in run(command, "--help").partition("Usage")[2].partition("\n")[2]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("shop/orders.csv", "orders"),
        ("shop/orders.csv.gz", "orders"),
        ("shop/orders.jsonl.ZST", "orders"),
        ("shop/orders.2026.csv", "orders-2026"),
        ("shop/", "shop"),
        ("ml-100k.csv.gz", "ml-100k-own"),
        (".gz", "-gz"),
    ],
)
def test_own_events_are_called_by_their_file_without_its_endings(source: str, name: str) -> None:
    assert SplitOptions(interactions=source).name == name
