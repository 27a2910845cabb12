"""Items since the training: filters over REST, and items that are recommended when they are added."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from small_service import Serving, attributes
from test_endpoints import post

import hdccf

pytest_plugins = ["service_fixtures"]


@pytest.fixture
def featured(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that has item features."""
    copy = tmp_path / "featured"
    shutil.copytree(run, copy)
    hdccf.load_run(copy).with_features(attributes())
    return copy


def shown(client: TestClient, **asked: Any) -> list[int]:
    (found,) = post(client, "/v1/recommend", users=[3], k=50, include_seen=True, **asked)["lists"]
    return [item["item"] for item in found["items"]]


def test_attributes_and_diversity_reach_the_model(serving: Serving, featured: Path) -> None:
    client = serving(featured)
    assert sorted(shown(client)) == list(range(35))
    assert sorted(shown(client, filter={"parity": "odd"})) == list(range(1, 35, 2))
    assert sorted(shown(client, filter={"price": [3, 4.0], "parity": ["odd"]})) == [3]
    known = hdccf.load_run(featured)
    expected = known.recommend([3], k=5, diversity=0.6)["item"].to_list()
    (found,) = post(client, "/v1/recommend", users=[3], k=5, diversity=0.6)["lists"]
    assert [item["item"] for item in found["items"]] == expected
    refused = client.post("/v1/recommend", json={"users": [3], "filter": {"colour": "red"}})
    assert refused.status_code == 422
    assert "items have no attribute 'colour'" in refused.json()["detail"]


def test_items_are_served_when_they_are_added_and_found_again(
    serving: Serving, featured: Path, tmp_path: Path
) -> None:
    kept = {"items": tmp_path / "items.jsonl", "events": tmp_path / "events.jsonl"}
    client = serving(featured, **kept)
    new = {"id": 900, "title": "The Newest", "parity": "odd", "price": 12.5}
    added = post(client, "/v1/items", items=[new, {"id": "1", "price": 99}])
    assert (added["added"], added["items"]) == (1, 36)
    assert 900 in shown(client)
    assert shown(client, filter={"price": 99}) == [1]
    assert client.get("/v1/items", params={"q": "newest"}).json()["items"][0]["item"] == 900
    assert post(client, "/v1/similar", items=[900], k=3)["lists"][0]["similar"]
    # It is part of a history at once.
    post(client, "/v1/events", events=[{"id": 1, "user": "ann", "item": 900}])
    (found,) = post(client, "/v1/recommend", users=["ann"], k=4)["lists"]
    assert found["source"] == "model"
    assert len(found["items"]) == 4
    service: Any = client.app.state.service  # type: ignore[attr-defined]
    # A new model takes them over, and so does a new process.
    assert service.reload().accepted
    assert 900 in shown(client)
    service.items.close()
    service.events.close()
    with (tmp_path / "items.jsonl").open("ab") as file:
        file.write(b'{"id": "half')
    assert 900 in shown(serving(featured, **kept))


def test_what_cannot_be_added_is_refused_and_not_kept(serving: Serving, featured: Path, run: Path) -> None:
    client = serving(featured)
    body = {"items": [{"id": 900, "parity": "odd"}]}
    assert "start it with --items FILE" in client.post("/v1/items", json=body).json()["detail"]
    file = featured.with_name("items.jsonl")
    client = serving(featured, items=file)
    refused = client.post("/v1/items", json={"items": [{"id": "no-integer"}]})
    assert refused.status_code == 422
    assert not file.exists()
    nested = client.post("/v1/items", json={"items": [{"id": 900, "parity": {"a": 1}}]})
    assert nested.status_code == 422
    many = {"id": 900, **{f"a{n}": n for n in range(101)}}
    assert client.post("/v1/items", json={"items": [many]}).status_code == 422
    plain = serving(run, items=file.with_name("other.jsonl"))
    assert "no item features to learn from" in plain.post("/v1/items", json=body).json()["detail"]
