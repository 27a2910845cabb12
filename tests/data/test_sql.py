"""Queries on a real SQLite file, and through the same call on a real PostgreSQL server."""

import sqlite3
import sys
import tempfile
import traceback
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import hdccf
from command_line import call, error_of
from hdccf.errors import SourceError
from postgres import binaries, server

ROWS = [
    ("ann", 7, "2020-01-01T10:00:00", 5.0, "Seven"),
    ("bob", 7, "2020-01-02T10:00:00", 2.0, "Seven"),
    ("ann", 9, "2020-01-03T10:00:00", 4.0, "Nine"),
    ("ann", 7, "2019-01-01T10:00:00", 5.0, "Seven"),
]
SECOND_OF_2020 = 1_577_872_800_000_000  # 2020-01-01T10:00:00Z


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "create table events (customer_id text, sku integer, ts text, stars real, title text)"
        )
        connection.executemany("insert into events values (?, ?, ?, ?, ?)", ROWS)
        connection.execute("create table odd (user, item)")
        connection.executemany("insert into odd values (?, ?)", [(1, "x"), ("two", None), (3, "y")])
    return f"sqlite:///{path}"


def test_sqlite(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = hdccf.read_sql("select * from events", uri)
    assert data.user_ids.to_list() == ["ann", "bob"]
    assert data.item_ids.to_list() == [7, 9]
    assert data.frame()["count"].to_list() == [2, 1, 1]
    assert data.times is not None
    assert data.times.max() == SECOND_OF_2020 + 2 * 86_400_000_000
    assert data.titles is not None
    assert data.titles.to_list() == ["Seven", "Nine"]
    assert "user='customer_id'" in capsys.readouterr().err


def test_options_are_those_of_read(uri: str) -> None:
    query = "select customer_id as a, sku as b, stars as c from events"
    data = hdccf.read_sql(query, uri, user="a", item=2, rating="c", minimum_rating=2)
    assert data.frame().rows() == [("ann", 7, 2), ("ann", 9, 1), ("bob", 7, 1)]
    with pytest.raises(SourceError, match="column 'a' has one user only, 'ann'"):
        hdccf.read_sql(query, uri, user="a", item=2, rating="c", minimum_rating=4)


def test_several_portions(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hdccf.read_sql("select * from events", uri)
    monkeypatch.setattr("hdccf.data.read._ROWS_AT_A_TIME", 1)
    assert hdccf.read_sql("select * from events", uri).fingerprint == whole.fingerprint
    odd = hdccf.read_sql("select * from odd", uri, drop_nulls=True)
    assert odd.user_ids.to_list() == ["1", "3"]


def test_sqlite_values_of_mixed_type(uri: str) -> None:
    assert hdccf.read_sql("select * from odd", uri, drop_nulls=True).user_ids.to_list() == ["1", "3"]
    with pytest.raises(
        SourceError, match=r"the query on sqlite:.*, row 2: missing value \(1 in column 'item'"
    ):
        hdccf.read_sql("select * from odd", uri)


def test_bytes_beside_other_types(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdccf.data.read._ROWS_AT_A_TIME", 1)
    with pytest.raises(SourceError, match="a column of bytes beside other types") as caught:
        hdccf.read_sql("select 1 as user, x'fffe' as item union all select 2, 3", uri)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from absent", r"failed \(no such table: absent\): select \* from absent"),
        ("selec", r"failed \(.*syntax error\)"),
        ("select 1 as user, 2 as item where 1 = 0", "has no rows"),
        ("select customer_id, customer_id, sku from events", "customer_id more than once; name each column"),
        ("delete from events", "readonly database"),
        ("select 1; select 2", "one statement at a time"),
        ("", "gives no rows; give a SELECT"),
    ],
)
def test_bad_queries(query: str, message: str, uri: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        hdccf.read_sql(query, uri)
    assert "\n" not in str(caught.value)
    assert len(hdccf.read_sql("select * from events", uri)) == 3


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mysql://ann:secret@host/db", r"'mysql://\*\*\*@host/db' is no database that can be read"),
        ("sqlite://", "names no file"),
        ("events.db", "is no database that can be read"),
    ],
)
def test_bad_uris(uri: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        hdccf.read_sql("select 1", uri)


def test_a_file_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no SQLite file"):
        hdccf.read_sql("select 1", f"sqlite:///{tmp_path}/nope.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text(
        "this is no database, though it is long enough to be taken for one" * 20
    )
    with pytest.raises(SourceError, match="not a database"):
        hdccf.read_sql("select * from events", f"sqlite:///{tmp_path}/text.db")


def test_postgres_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SourceError, match=r"pip install 'hdccf\[postgres\]'"):
        hdccf.read_sql("select 1", "postgresql://localhost/db")


# -- PostgreSQL ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    import psycopg

    # Not pytest's own folder: PostgreSQL's user cannot enter that, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="hdccf-pg-") as folder, server(Path(folder)) as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("create role ann login password 'right'")
            connection.execute(
                "create table events (customer_id text, sku bigint, ts timestamp, stars numeric, title text)"
            )
            with connection.cursor() as cursor:
                cursor.executemany("insert into events values (%s, %s, %s, %s, %s)", ROWS)
            connection.execute("create table keys (user_id uuid, item_id numeric, created_at timestamptz)")
            connection.execute(
                "insert into keys select md5(n::text)::uuid, n, to_timestamp(1600000000 + n) "
                "from generate_series(1, 1000) as n"
            )
        yield uri


@pytest.mark.postgres
def test_postgres_gives_what_sqlite_gives(postgres: str, uri: str) -> None:
    data = hdccf.read_sql("select * from events", postgres)
    assert data.fingerprint == hdccf.read_sql("select * from events", uri).fingerprint


@pytest.mark.postgres
def test_postgres_types(postgres: str) -> None:
    data = hdccf.read_sql("select * from keys order by item_id", postgres)
    assert len(data) == 1000
    assert str(uuid.UUID(data.user_ids[0])) == data.user_ids[0]
    assert data.item_ids.to_list() == list(range(1, 1001))
    assert data.times is not None
    assert data.times[0] == 1_600_000_001_000_000


@pytest.mark.postgres
def test_postgres_minimum_rating(postgres: str) -> None:
    data = hdccf.read_sql("select * from events", postgres, minimum_rating=2)
    assert len(data) == 3


@pytest.mark.postgres
def test_postgres_errors(postgres: str) -> None:
    with pytest.raises(SourceError, match='relation "nothing" does not exist') as caught:
        hdccf.read_sql("select * from nothing", postgres)
    assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match="failed"):
        hdccf.read_sql("delete from events returning *", postgres)
    assert len(hdccf.read_sql("select * from events", postgres)) == 3
    with pytest.raises(SourceError, match=r"//\*\*\*@.* failed") as caught:
        hdccf.read_sql("select 1", "postgresql://ann:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)


SECRETS = {
    "wrong": "postgresql://ann:hush@{host}",
    "at sign": "postgresql://ann:a@hush@{host}",
    "percent": "postgresql://ann:a%40hush@{host}",
    "bad percent": "postgresql://ann:hush%ZZ@{host}",
    "bad host": "postgresql://ann:hush@[/db",
    "slash": "postgresql://ann:hush/a@{host}",
    "number sign": "postgresql://ann:a#b?hush@{host}",
    "space": "postgresql://ann:hush a@{host}",
    "parameter": "postgresql://ann@{host}&password=a@hush",
    "bad parameter": "postgresql://ann@{host}&password=a%2hush",
    "parameter with a number sign": "postgresql://ann@{host}&sslpassword=a#hush",
}


@pytest.mark.postgres
@pytest.mark.parametrize("case", sorted(SECRETS))
def test_no_message_holds_a_password(
    case: str, postgres: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    uri = SECRETS[case].format(host=postgres.partition("@")[2])
    with pytest.raises(SourceError, match="failed") as caught:
        hdccf.read_sql("select * from events", uri)
    assert "hush" not in "".join(traceback.format_exception(caught.value))
    for arguments in (["data", "info", uri], ["data", "info", uri, "--fresh"]):
        assert "hush" not in error_of(capsys, *arguments)
    train = ["train", "--interactions", uri, "--query", "select 1"]
    assert "hush" not in error_of(capsys, *train, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.postgres
def test_a_wrong_password_is_said(postgres: str) -> None:
    host = postgres.partition("@")[2]
    with pytest.raises(SourceError, match='password authentication failed for user "ann"') as caught:
        hdccf.read_sql("select 1", f"postgresql://ann:hush@{host}")
    assert "hush" not in str(caught.value)
    with pytest.raises(SourceError, match="permission denied for table events"):
        hdccf.read_sql("select * from events", f"postgresql://ann:right@{host}")


@pytest.mark.postgres
def test_what_is_printed_holds_no_password(postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    uri = postgres + "&password=hush"
    for more in ([], ["--json"]):
        assert call("data", "info", uri, "--query", "select * from events", *more) == 0
        captured = capsys.readouterr()
        assert "hush" not in captured.out + captured.err
