"""Every endpoint answers what the library answers, under a version."""

import hashlib
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fastapi.testclient import TestClient
from small_service import Serving

import hdccf
from hdccf.recommend.recommender import Recommender

pytest_plugins = ["service_fixtures"]


def post(client: TestClient, path: str, **body: Any) -> Any:
    answered = client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    assert answered.headers["content-type"] == "application/json"
    return answered.json()


def rows(frame: pl.DataFrame, *columns: str) -> list[dict[str, Any]]:
    return frame.select(*columns).to_dicts()


def test_users_get_their_lists_in_the_order_asked_for(
    client: TestClient, known: Recommender, run: Path
) -> None:
    found = post(client, "/v1/recommend", users=[7, "3", 7], k=4)
    assert [each["user"] for each in found["lists"]] == [7, 3]
    expected = known.recommend([7, 3], k=4)
    for each in found["lists"]:
        own = expected.filter(pl.col("user") == each["user"])
        assert each["items"] == rows(own, "item", "score", "title")
    weights = (run / "best.safetensors").read_bytes()
    assert found["model"] == hashlib.sha256(weights).hexdigest()[:16]


def test_limits_of_a_list_reach_the_model(client: TestClient, known: Recommender) -> None:
    found = post(client, "/v1/recommend", users=[1], k=30, include_seen=True, deny=[2, 4, "no such"])
    assert {item["item"] for item in found["lists"][0]["items"]} == set(range(30)) - {2, 4}
    found = post(client, "/v1/recommend", users=[1], k=30, include_seen=True, allow=[2, "4"])
    assert {item["item"] for item in found["lists"][0]["items"]} == {2, 4}


def test_who_has_nothing_left_gets_an_empty_list(client: TestClient, known: Recommender) -> None:
    seen = known.events.by_user.of(5).tolist()
    found = post(client, "/v1/recommend", users=[5, 6], allow=seen)
    assert found["lists"][0] == {"user": 5, "items": [], "source": "model"}


def test_a_new_user_comes_with_items(client: TestClient, known: Recommender) -> None:
    (found,) = post(client, "/v1/recommend", items=[3, 5, 9], k=3)["lists"]
    assert found["user"] is None
    assert found["items"] == rows(known.recommend_for_items([[3, 5, 9]], k=3), "item", "score", "title")


def test_items_and_users_have_others_like_them(client: TestClient, known: Recommender) -> None:
    found = post(client, "/v1/similar", items=[4, 11, "4"], k=3)
    assert found["by"] == known.relation("items").stated
    for each in found["lists"]:
        expected = known.similar_items([each["id"]], k=3)
        assert [one["id"] for one in each["similar"]] == expected["similar"].to_list()
        assert [one["title"] for one in each["similar"]] == expected["title"].to_list()
    assert [each["id"] for each in found["lists"]] == [4, 11]
    found = post(client, "/v1/similar", users=[9], k=2)
    assert found["by"] == known.relation("users").stated
    assert [one["id"] for one in found["lists"][0]["similar"]] == known.similar_users([9], k=2)[
        "similar"
    ].to_list()


def test_pairs_are_scored_in_their_order(client: TestClient, known: Recommender) -> None:
    pairs = [{"user": 3, "item": 8}, {"user": "0", "item": 1}]
    found = post(client, "/v1/score", pairs=pairs)["pairs"]
    assert found == rows(known.score([3, 0], [8, 1]), "user", "item", "score", "title")


def test_reasons_come_with_how_far_to_believe_them(client: TestClient, known: Recommender) -> None:
    found = post(client, "/v1/explain", user=3, items=[8, 1, "8"], top=2)
    expected = known.explain(3, [8, 1], top=2)
    assert found["surrogate"] == expected.surrogate
    assert found["agreement"] == pytest.approx(expected.agreement)
    assert [item["item"] for item in found["items"]] == [8, 1]
    reasons = [reason["item"] for item in found["items"] for reason in item["because"]]
    assert reasons == expected.parts["because"].to_list()
    shares = [reason["share"] for item in found["items"] for reason in item["because"]]
    assert shares == pytest.approx(expected.parts["share"].to_list())
    best = post(client, "/v1/explain", user=3, k=2)["items"]
    assert [item["item"] for item in best] == known.recommend([3], k=2)["item"].to_list()
    new = post(client, "/v1/explain", had=[3, 5], k=1)
    assert {reason["item"] for reason in new["items"][0]["because"]} == {3, 5}


def test_items_are_found_by_words_of_their_titles(client: TestClient, known: Recommender) -> None:
    found = client.get("/v1/items", params={"q": "NUMBER cafe", "limit": 100}).json()["items"]
    assert {item["item"] for item in found} == {item for item in range(30) if item % 3}
    taken = [item["users"] for item in found]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] == len(known.events.by_item.of(found[0]["item"]))
    # "12" is an item's id, and stands in no other title.
    assert [item["item"] for item in client.get("/v1/items", params={"q": "12"}).json()["items"]] == [12]
    # "1" is an id, and in many titles.
    ones = client.get("/v1/items", params={"q": "1"}).json()["items"]
    assert ones[0] == {"item": 1, "title": "The Café of Number 1", "users": ones[0]["users"]}
    assert len(ones) > 1
    begins = client.get("/v1/items", params={"q": "harbour 2"}).json()["items"]
    assert {item["item"] for item in begins} == {12, 21, 24, 27}
    assert {item["item"] for item in begins[:3]} == {21, 24, 27}
    assert client.get("/v1/items", params={"q": ".*"}).json()["items"] == []
    assert len(client.get("/v1/items?limit=5").json()["items"]) == 5


def test_users_are_found_by_their_ids(client: TestClient) -> None:
    found = [user["user"] for user in client.get("/v1/users", params={"q": "3", "limit": 50}).json()["users"]]
    assert found[0] == 3
    assert set(found[1:11]) == set(range(30, 40))
    assert set(found[11:]) == {13, 23}
    assert len(client.get("/v1/users").json()["users"]) == 20


def test_titles_may_be_missing(serving: Serving, tmp_path: Path) -> None:
    from graphs import small_split

    hdccf.fit(small_split(), hdccf.MostPopular(), out=tmp_path / "plain")
    client = serving(tmp_path / "plain")
    (found,) = post(client, "/v1/recommend", users=["u1"], k=1)["lists"]
    assert found["items"][0]["title"] is None
    (item,) = client.get("/v1/items", params={"q": "112"}).json()["items"]
    assert item["item"] == 112
    assert item["title"] is None


def test_the_model_is_named(client: TestClient, known: Recommender) -> None:
    found = client.get("/v1/model").json()
    assert found["name"] == "hdccf"
    assert (found["users"], found["items"], found["events"]) == (40, 30, len(known.events))
    assert found["run"] == "first"
    assert client.get("/readyz").json() == {"status": "ready", "model": found["model"]}
    assert client.get("/healthz").json() == {"status": "alive", "model": found["model"]}


def test_prometheus_finds_requests_by_route_and_status(client: TestClient) -> None:
    post(client, "/v1/recommend", users=[1])
    client.post("/v1/recommend", json={"users": ["nobody"]})
    client.get("/no/such/path")
    client.request("BREW", "/v1/recommend")
    text = client.get("/metrics").text
    assert 'hdccf_requests_total{method="POST",route="/v1/recommend",status="200"} 1.0' in text
    assert 'hdccf_requests_total{method="POST",route="/v1/recommend",status="404"} 1.0' in text
    assert 'hdccf_requests_total{method="GET",route="other",status="404"} 1.0' in text
    assert 'hdccf_requests_total{method="other",route="/v1/recommend",status="405"} 1.0' in text
    assert "/no/such/path" not in text
    assert "hdccf_scoring_seconds_count 2.0" in text
    assert "hdccf_requests_under_way 1.0" in text
    version = client.get("/v1/model").json()["model"]
    assert f'hdccf_model{{version="{version}"}} 1.0' in text
    assert "process_resident_memory_bytes" in text


def test_the_reference_at_docs_names_no_other_host(client: TestClient) -> None:
    answered = client.get("/docs")
    assert answered.status_code == 200
    assert answered.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:src|href)="([^"]+)"', answered.text)
    assert "docs/swagger-ui-bundle.js" in named
    assert "//" not in answered.text
    for name in ("docs", *named):
        found = client.get(f"/{name}")
        assert found.status_code == 200, name
        policy = found.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "script-src" not in policy  # so the default holds: no inline script, none of another host
    assert client.get("/docs/redoc.standalone.js").status_code == 404
    assert client.post("/docs").status_code == 404


def test_the_page_or_a_pointer_is_at_the_root(client: TestClient) -> None:
    assert client.get("/").status_code == 200
    # Files outside the page's folder are not served, however they are spelt.
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd"):
        assert client.get(path).status_code == 404
