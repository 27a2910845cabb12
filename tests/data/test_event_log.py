"""The event log: durable, idempotent, bounded, and read again after a process was killed."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import hdccf
from graphs import interactions, tastes
from hdccf.data.event_log import Event, EventLog, LogFullError, append_events
from hdccf.errors import DiskFullError, SourceError

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def event(number: int, user: str = "u1", item: str = "100", minutes: int = 0) -> Event:
    return Event(id=f"e{number}", user=user, item=item, time=NOON + timedelta(minutes=minutes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_events_are_kept_in_order_of_time_and_found_again(path: Path) -> None:
    log = EventLog(path)
    given = [event(1, item="a", minutes=5), event(2, item="b", minutes=1), event(3, "u2", "c")]
    assert log.append(given) == (3, 0)
    for _ in range(2):
        assert log.items_of("u1") == ["b", "a"]
        assert log.items_of("u2") == ["c"]
        assert log.items_of("nobody") == []
        assert len(log) == 3
        log.close()
        log = EventLog(path)
    log.close()
    assert hdccf.read(path).n_users == 2  # the file is JSON Lines with the usual names


def test_an_id_counts_once(path: Path) -> None:
    log = EventLog(path)
    assert log.append([event(1), event(1, item="101"), event(2)]) == (2, 1)
    assert log.append([event(2), event(3)]) == (1, 1)
    assert log.items_of("u1") == ["100", "100", "100"]
    log.close()
    again = EventLog(path)
    assert again.append([event(1)]) == (0, 1)
    again.close()
    assert len(path.read_text().splitlines()) == 3


def test_half_a_last_line_is_cut_off_and_what_follows_is_whole(path: Path) -> None:
    log = EventLog(path)
    log.append([event(1), event(2)])
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + event(3).model_dump_json().encode()[:20])
    log = EventLog(path)
    assert len(log) == 2
    assert log.append([event(3)]) == (1, 0)
    log.close()
    assert path.read_bytes() == whole + event(3).model_dump_json().encode() + b"\n"


def test_a_damaged_line_is_named(path: Path) -> None:
    path.write_text(event(1).model_dump_json() + "\nnonsense\n" + event(2).model_dump_json() + "\n")
    with pytest.raises(SourceError, match=r"events.jsonl, line 2 is no event \(.*\); remove the line$"):
        EventLog(path)


def test_the_log_is_bounded_and_has_one_writer(path: Path) -> None:
    log = EventLog(path, most=2)
    with pytest.raises(LogFullError, match=r"holds 0 of at most 2 events; train with --append "):
        log.append([event(1), event(2), event(3)])
    assert not path.exists()
    log.append([event(1), event(2)])
    assert log.append([event(2)]) == (0, 1)
    with pytest.raises(SourceError, match="another process is writing into"):
        EventLog(path)
    log.close()


def test_what_could_not_be_written_leaves_no_part_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(path)
    log.append([event(1)])
    before = path.read_bytes()

    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("hdccf.data.event_log.os.fsync", fails)
        with pytest.raises(
            DiskFullError, match=r"could not be written \(No space left on device\); make room"
        ):
            log.append([event(2)])
    assert path.read_bytes() == before
    assert log.append([event(2)]) == (1, 0)
    log.close()


def test_a_log_is_added_to_interactions_under_their_ids(path: Path) -> None:
    data = tastes()
    log = EventLog(path)
    log.append([event(1, "u1", "129"), event(2, "new", "100"), event(3, "u2", "999")])
    log.close()
    grown = append_events(data, path)
    assert grown.n_users == data.n_users + 1
    assert grown.item_ids.dtype == data.item_ids.dtype
    assert grown.item_ids.to_list() == [*data.item_ids.to_list(), 999]
    rows = grown.frame().filter(pl.col("time") >= NOON.replace(tzinfo=None))
    assert sorted(rows.select("user", "item").rows()) == [("new", 100), ("u1", 129), ("u2", 999)]
    assert grown.by_user.of(1)[-1] == 29  # the latest of its user
    log = EventLog(path)
    log.append([event(4, "u3", "a-new-one")])  # no integer: all items are texts then
    log.close()
    assert append_events(data, path).item_ids.dtype == pl.String
    with pytest.raises(SourceError, match=r"does not exist; give the file of hdccf serve --events$"):
        append_events(data, path.with_name("none"))


def test_logged_events_count_1_where_the_interactions_have_weights(path: Path) -> None:
    plain = tastes()
    data = replace(plain, weights=np.full(len(plain), 3, np.float32))
    path.write_text(event(1, "u1", "129").model_dump_json() + "\n")
    grown = append_events(data, path)
    assert grown.weights is not None
    assert sorted(grown.weights) == [1, *[3] * len(data)]


def test_times_of_a_log_may_have_a_zone_or_none(path: Path) -> None:
    times = ["2026-05-01T12:00:00Z", "2026-05-01T13:00:00", "2026-05-01T16:00:00+02:00"]
    lines = [
        json.dumps({"id": str(number), "user": "u1", "item": f"new{number}", "time": time})
        for number, time in enumerate(times)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    frame = append_events(tastes(), path).frame().filter(pl.col("item").str.starts_with("new"))
    assert [time.hour for time in frame["time"]] == [12, 13, 14]
    path.write_text(lines[0].replace("2026-05-01T12:00:00Z", "0001-01-01T00:00:00+02:00") + "\n")
    with pytest.raises(SourceError, match="between the years 1 and 9999"):
        append_events(tastes(), path)


def test_a_log_without_events_adds_nothing(path: Path) -> None:
    path.touch()
    data = interactions([(0, 0), (0, 1), (1, 1)])
    assert append_events(data, path) is data


def test_of_equal_ids_in_one_call_the_first_is_kept_in_its_place(path: Path) -> None:
    log = EventLog(path)
    found = log.append([event(1, item="1"), event(2, item="2"), event(1, item="3")])
    log.close()
    assert found == (2, 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["id"], line["item"]) for line in lines] == [("e1", "1"), ("e2", "2")]
