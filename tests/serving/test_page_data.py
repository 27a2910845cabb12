"""What the page asks for: histories, the lens and the run, as the library has them."""

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient
from small_service import Serving, attributes, titled_split
from test_endpoints import post

import hdccf
from hdccf.recommend.lens import estimate
from hdccf.recommend.recommender import Recommender
from hdccf.serving import app
from hdccf.serving.timeline import MAX_SAMPLES, quantile
from training import quick

pytest_plugins = ["service_fixtures"]


def get(client: TestClient, path: str, **query: Any) -> Any:
    answered = client.get(f"/v1/page/{path}", params=query)
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_a_history_has_the_latest_first_and_says_what_was_held_out(
    client: TestClient, known: Recommender
) -> None:
    found = get(client, "history", user=7)
    row = known.users.find(7)
    assert row is not None
    events = known.events.by_user.of(row)[::-1].tolist()
    assert [entry["item"] for entry in found["items"]] == events  # items 0 to 29 are their own ids
    assert [entry["held_out"] for entry in found["items"]] == [True, True, *[False] * (len(events) - 2)]
    assert found["events"] == len(events)
    assert found["items"][0]["title"] == known.split.train.titles[events[0]]  # type: ignore[index]
    assert len(get(client, "history", user=7, limit=1)["items"]) == 1


def test_attributes_are_texts_and_few_values_are_filters(serving: Serving, run: Path, tmp_path: Path) -> None:
    assert get(serving(), "filters") == {"attributes": [], "filters": []}
    assert get(serving(), "attributes", item=[3]) == {"items": [{"item": 3, "attributes": {}}]}
    shutil.copytree(run, tmp_path / "featured")
    numbers = range(30)
    table = (
        attributes()
        .head(30)
        .with_columns(
            genres=pl.Series([["b", "a"] if n % 2 else ["c"] for n in numbers]),
            vector=pl.Series([[float(n), 1.0] for n in numbers]),
            text=pl.Series([f"{n} " * 60 for n in numbers]),
            many=pl.Series([n / 7 for n in numbers]),
            new=pl.Series([n > 20 for n in numbers]),
        )
    )
    hdccf.load_run(tmp_path / "featured").with_features(table)
    client = serving(tmp_path / "featured")
    found = get(client, "filters")
    assert "vector" not in found["attributes"]
    assert "title" not in found["attributes"]
    filters = {each["name"]: each["values"] for each in found["filters"]}
    assert filters["genres"] == ["a", "b", "c"]
    assert filters["parity"] == ["even", "odd"]
    assert filters["new"] == [False, True]
    # What is offered can be asked for.
    for name, values in filters.items():
        post(client, "/v1/recommend", users=[3], filter={name: values[-1]})
    shown = get(client, "attributes", item=[3, "nothing", 4])["items"]
    assert [each["item"] for each in shown] == [3, 4]
    assert shown[0]["attributes"] | {"text": ""} == {
        "parity": "odd",
        "price": "3",
        "genres": "b, a",
        "text": "",
        "many": "0.428571",
        "new": "False",
    }
    assert len(shown[0]["attributes"]["text"]) == 80


def test_the_lens_is_the_librarys(client: TestClient, known: Recommender) -> None:
    found = get(client, "lens", user=7, k=5)
    lens = estimate(known, known.split)
    assert found["omega"] == {
        "value": lens.omega_mid,
        "source": "bounds",
        "least": lens.omega_min,
        "most": lens.omega_max,
    }
    scores = [entry["score"] for entry in found["items"]]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= entry["probability"] <= 1 and 0 <= entry["share"] <= 1 for entry in found["items"])
    assert found["weights"]["stated"].startswith("the contrastive loss")
    assert set(found["curves"]) == {"unobserved", "training", "positives"}
    assert {len(curve) for curve in found["curves"].values()} == {len(found["grid"])}


def test_omega_is_the_askers_then_the_runs_own(serving: Serving, tmp_path: Path) -> None:
    hdccf.fit(titled_split(), quick("block", epochs=1, omega_items=0.013), out=tmp_path / "debiased")
    client = serving(tmp_path / "debiased")
    assert get(client, "lens", user=7)["omega"]["value"] == 0.013
    assert get(client, "lens", user=7)["omega"]["source"] == "run"
    chosen = get(client, "lens", user=7, omega=0.2)
    assert (chosen["omega"]["value"], chosen["omega"]["source"]) == (0.2, "chosen")
    assert chosen["expected"] > get(client, "lens", user=7)["expected"]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("lens", {"user": "nobody"}, 404),
        ("history", {"user": "nobody"}, 404),
        ("lens", {"user": 7, "omega": 2}, 422),
        ("lens", {"user": 7, "omega": "nan"}, 422),
        ("lens", {"user": 7, "k": 0}, 422),
        ("history", {"user": 7, "limit": 100_000}, 422),
        ("lens", {}, 422),
    ],
)
def test_what_does_not_fit_is_a_problem(
    client: TestClient, path: str, query: dict[str, Any], status: int
) -> None:
    answered = client.get(f"/v1/page/{path}", params=query)
    assert answered.status_code == status
    assert answered.json()["status"] == status


def test_models_without_such_weights_have_a_lens_all_the_same(serving: Serving, tmp_path: Path) -> None:
    hdccf.fit(titled_split(), hdccf.MostPopular(), out=tmp_path / "popular")
    client = serving(tmp_path / "popular")
    found = get(client, "lens", user=7, k=3)
    assert found["weights"] is None
    assert [entry["share"] for entry in found["items"]] == [None] * 3
    assert get(client, "run")["epochs"] == []


def test_the_run_has_its_settings_curves_and_data(client: TestClient, known: Recommender, run: Path) -> None:
    found = get(client, "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found["epochs"] == [line["epoch"] for line in lines]
    assert found["curves"]["training"]["loss"] == [line["loss"] for line in lines]
    assert found["curves"]["clipped"]["clipped-items"] == [line["terms"]["clipped-items"] for line in lines]
    assert "effective-negatives" in found["curves"]["diagnostics"]
    assert found["result"] == json.loads((run / "result.json").read_text())
    assert found["data"]["interactions"] == len(known.split.train)
    settings = {row["name"]: row for row in found["settings"]}
    assert settings["embedding_dim"]["value"] == 4
    assert settings["embedding_dim"]["changed"]
    assert not settings["sampler"]["changed"]
    assert all(row["meaning"] for row in found["settings"])


def test_runs_beside_are_listed_and_what_is_none_is_not(serving: Serving, run: Path, tmp_path: Path) -> None:
    for name in ("served", "other", "damaged"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "damaged" / "run.json").write_text("{")
    (tmp_path / "notes.txt").write_text("no run")
    found = get(serving(tmp_path / "served"), "runs")
    assert found["own"] == "served"
    assert [each["name"] for each in found["runs"]] == ["served", "other"]
    assert found["runs"][1]["test"] is None
    assert found["runs"][1]["result"]["best_epoch"] >= 1


def test_metrics_over_time_count_requests_events_cold_users_and_the_long_tail(
    serving: Serving, known: Recommender, tmp_path: Path
) -> None:
    client = serving(events=tmp_path / "events.jsonl")
    timeline = client.app.state.service.timeline  # type: ignore[attr-defined]
    assert get(client, "metrics")["total"] | {"time": 0} == {
        "time": 0,
        "requests": 0,
        "median": None,
        "p95": None,
        "events": 0,
        "users": 0,
        "cold": 0,
        "tail": None,
    }
    found = post(client, "/v1/recommend", users=[1, 2, "new"], unknown="popular", k=5)["lists"]
    timeline.sample()
    event = {"id": 1, "user": "ann", "item": 3}
    post(client, "/v1/events", events=[event, event])
    post(client, "/v1/recommend", items=[3], k=5)
    client.post("/v1/recommend", json={"users": ["nobody"]})
    first, last = (series := get(client, "metrics"))["steps"]
    assert (first["requests"], first["events"], first["users"], first["cold"]) == (1, 0, 3, 1)
    assert (last["requests"], last["events"], last["users"], last["cold"]) == (3, 1, 1, 1)
    assert 0 < last["median"] <= last["p95"]
    assert (series["total"]["requests"], series["total"]["users"]) == (4, 4)
    # The tail is the items with the fewest users, which together have up to a third of the interactions.
    popularity = np.diff(known.split.train.by_item.starts)
    ascending = np.sort(popularity)
    limit = ascending[np.searchsorted(np.cumsum(ascending), ascending.sum() / 3, side="right")]
    shown = [entry["item"] for each in found for entry in each["items"]]
    assert first["tail"] == pytest.approx(np.mean(popularity[shown] < limit))


def test_metrics_over_time_are_bounded(serving: Serving) -> None:
    client = serving()
    timeline = client.app.state.service.timeline  # type: ignore[attr-defined]
    post(client, "/v1/recommend", users=[1])
    for _ in range(MAX_SAMPLES + 5):
        timeline.sample()
    series = get(client, "metrics")
    assert len(series["steps"]) == MAX_SAMPLES + 1
    assert sum(step["requests"] for step in series["steps"]) == 0  # that sample is gone
    assert series["total"]["requests"] == 1


def test_samples_are_taken_while_the_server_runs(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SAMPLE_SECONDS", 0.01)
    client = serving()
    deadline = time.monotonic() + 20
    while len(get(client, "metrics")["steps"]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("share", "expected"), [(0.125, 0.05), (0.5, 0.15), (0.75, 0.2), (0.95, 0.2)])
def test_a_quantile_is_linear_within_its_bucket(share: float, expected: float) -> None:
    assert quantile({0.1: 1, 0.2: 3, math.inf: 4}, share) == pytest.approx(expected)
    assert quantile({0.1: 0, math.inf: 0}, share) is None


def test_the_pages_own_endpoints_are_not_described_to_others(client: TestClient) -> None:
    assert not [path for path in client.get("/openapi.json").json()["paths"] if "page" in path]
