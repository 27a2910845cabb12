"""Events between trainings change the answers at once, and survive the process that took them."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from small_service import KEY, Serving, titled_split
from test_endpoints import post, rows
from test_process import started

import hdccf
from hdccf.models import MODELS
from hdccf.recommend.recommender import Recommender

pytest_plugins = ["service_fixtures"]


def clicks(*pairs: tuple[Any, Any], first: int = 0) -> list[dict[str, Any]]:
    """The user and the item of each event, a minute apart."""
    return [
        {"id": f"c{first + n}", "user": user, "item": item, "time": f"2026-05-01T12:{first + n:02}:00Z"}
        for n, (user, item) in enumerate(pairs)
    ]


def unseen(known: Recommender, user: int, n: int) -> list[int]:
    had = set(known.events.by_user.of(user).tolist())
    return [item for item in range(30) if item not in had][:n]


def items_of(made: dict[str, Any]) -> list[Any]:
    return [item["item"] for item in made["items"]]


@pytest.fixture
def logging_client(serving: Serving, tmp_path: Path) -> TestClient:
    return serving(events=tmp_path / "events.jsonl")


def test_events_change_the_answers_at_once(logging_client: TestClient, known: Recommender) -> None:
    first, second = unseen(known, 3, 2)
    before = post(logging_client, "/v1/recommend", users=[3, 4], k=5)["lists"]
    sent = clicks((3, first), ("3", str(second)))
    taken = post(logging_client, "/v1/events", events=sent)
    assert (taken["accepted"], taken["duplicates"]) == (2, 0)
    after = post(logging_client, "/v1/recommend", users=[3, 4], k=5)["lists"]
    expected = known.recommend([3], k=5, fresh=[[first, second]])
    assert after[0]["items"] == rows(expected, "item", "score", "title")
    assert after[0]["items"] != before[0]["items"]
    assert items_of(after[1]) == items_of(before[1])
    again = post(logging_client, "/v1/events", events=[*sent, *clicks((4, first), first=2)])
    assert (again["accepted"], again["duplicates"]) == (1, 2)
    assert logging_client.get("/v1/model").json()["fresh_events"] == 3
    # What else is asked about the user follows.
    scored = post(logging_client, "/v1/score", pairs=[{"user": 3, "item": after[0]["items"][0]["item"]}])
    assert scored["pairs"][0]["score"] == pytest.approx(after[0]["items"][0]["score"], rel=1e-5)
    reasons = post(logging_client, "/v1/explain", user=3, k=1, top=20)["items"][0]["because"]
    assert {first, second} <= {reason["item"] for reason in reasons}
    history = logging_client.get("/v1/page/history", params={"user": "3"}).json()
    assert [(row["item"], row["fresh"]) for row in history["items"][:3]] == [
        (second, True),
        (first, True),
        (int(known.events.by_user.of(3)[-1]), False),
    ]


def test_a_model_that_takes_no_new_history_answers_as_it_was_trained(
    serving: Serving, tmp_path: Path
) -> None:
    settings = MODELS["neumf"].settings(epochs=1, embedding_dim=4)
    model = hdccf.fit(titled_split(), settings, out=tmp_path / "run")
    client = serving(tmp_path / "run", events=tmp_path / "events.jsonl")
    assert post(client, "/v1/events", events=clicks((3, 4), ("ann", 4)))["accepted"] == 2
    (found,) = post(client, "/v1/recommend", users=[3], k=5)["lists"]
    assert items_of(found) == model.recommend([3], k=5)["item"].to_list()
    (found,) = post(client, "/v1/recommend", users=["ann"], k=5, unknown="popular")["lists"]
    assert found["source"] == "popular"


def test_unseen_users_and_items_are_accepted(logging_client: TestClient, known: Recommender) -> None:
    post(
        logging_client, "/v1/events", events=clicks(("ann", 4), ("ann", "unheard of"), ("bob", "unheard of"))
    )
    found = post(logging_client, "/v1/recommend", users=["ann", "bob", 1], k=3)["lists"]
    expected = known.recommend_for_items([[4]], k=3)
    assert found[0]["items"] == rows(expected, "item", "score", "title")
    assert (found[1]["items"], found[1]["problem"]["status"]) == ([], 404)
    assert logging_client.get("/v1/page/history", params={"user": "ann"}).json()["events"] == 2


def test_a_new_model_keeps_the_events(
    serving: Serving, run: Path, other_run: Path, key_file: Path, tmp_path: Path
) -> None:
    current = tmp_path / "current"
    current.symlink_to(run)
    client = serving(current, events=tmp_path / "events.jsonl", api_key_file=key_file)
    client.headers["X-API-Key"] = KEY
    new = hdccf.load_run(other_run)
    items = unseen(new, 3, 2)
    post(client, "/v1/events", events=clicks(*((3, item) for item in items)))
    current.unlink()
    current.symlink_to(other_run)
    assert client.post("/v1/admin/reload").status_code == 200
    (found,) = post(client, "/v1/recommend", users=[3], k=5)["lists"]
    assert found["items"] == rows(new.recommend([3], k=5, fresh=[items]), "item", "score", "title")


def test_a_server_without_a_log_and_a_full_one_refuse_events(serving: Serving, tmp_path: Path) -> None:
    refused = serving().post("/v1/events", json={"events": clicks((1, 2))})
    assert refused.status_code == 403
    assert "start it with --events FILE" in refused.json()["detail"]
    small = serving(events=tmp_path / "events.jsonl", max_events=1)
    full = small.post("/v1/events", json={"events": clicks((1, 2), (1, 3))})
    assert full.status_code == 507
    assert "train with --append" in full.json()["detail"]


def test_unknown_users_have_problems_of_their_own(client: TestClient, known: Recommender) -> None:
    found = post(client, "/v1/recommend", users=[1, "nobody", 2], k=3)["lists"]
    assert [each["user"] for each in found] == [1, "nobody", 2]
    assert found[1]["problem"]["type"] == "urn:hdccf:problem:unknown-id"
    assert found[1]["problem"]["ids"] == ["nobody"]
    for each in (found[0], found[2]):
        assert items_of(each) == known.recommend([each["user"]], k=3)["item"].to_list()
        assert "problem" not in each
    long = post(client, "/v1/recommend", users=[1, "9" * 40], k=3, unknown="popular")["lists"]
    assert [each["user"] for each in long] == [1, "9" * 40]
    skipped = post(client, "/v1/recommend", users=[1, 99], k=3, unknown="skip")["lists"]
    assert [each["user"] for each in skipped] == [1]
    assert post(client, "/v1/recommend", users=[99], unknown="skip")["lists"] == []
    popular = post(client, "/v1/recommend", users=[99, 1], k=3, unknown="popular")["lists"]
    assert [each["source"] for each in popular] == ["popular", "model"]
    assert popular[0]["items"] == post(client, "/v1/recommend", items=[], k=3)["lists"][0]["items"]
    assert popular[0]["items"][0]["score"] == known.events.by_item.degrees.max()


def test_a_user_comes_with_fresh_items(client: TestClient, known: Recommender) -> None:
    items = unseen(known, 7, 2)
    (found,) = post(client, "/v1/recommend", users=[7], items=items, k=4)["lists"]
    assert found["items"] == rows(known.recommend([7], k=4, fresh=[items]), "item", "score", "title")
    explained = post(client, "/v1/explain", user=7, had=items, k=1, top=20)
    assert set(items) <= {reason["item"] for reason in explained["items"][0]["because"]}


def test_acknowledged_events_survive_a_kill(run: Path, known: Recommender, tmp_path: Path) -> None:
    """A real process that is killed without warning, and one more that finds all and half a line."""
    log, options = tmp_path / "events.jsonl", ("--events", str(tmp_path / "events.jsonl"))
    items = unseen(known, 3, 3)
    acknowledged = []
    with started(run, *options) as server:
        address = server.address()
        for n, item in enumerate(items):
            answered = httpx2.post(f"{address}/v1/events", json={"events": clicks((3, item), first=n)})
            assert answered.status_code == 200
            acknowledged.append(f"c{n}")
        server.process.send_signal(signal.SIGKILL)
        assert server.process.wait(60) == -signal.SIGKILL
    assert [json.loads(line)["id"] for line in log.read_text().splitlines()] == acknowledged
    with log.open("ab") as file:
        file.write(b'{"id": "half')
    with started(run, *options) as server:
        address = server.address()
        answered = httpx2.post(f"{address}/v1/recommend", json={"users": [3], "k": 5}).json()
        expected = known.recommend([3], k=5, fresh=[items])
        assert [each["item"] for each in answered["lists"][0]["items"]] == expected["item"].to_list()
        again = httpx2.post(f"{address}/v1/events", json={"events": clicks((3, items[0]))}).json()
        assert again["duplicates"] == 1
