"""A new model is taken while requests are answered, none of which is dropped; a bad one is not taken."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from small_service import KEY, Serving

from hdccf import checkpoint
from hdccf.errors import RunError
from hdccf.recommend.recommender import load_run
from hdccf.serving import service
from hdccf.serving.service import AppService, Served
from hdccf.serving.settings import ServeSettings
from training import give_weights

pytest_plugins = ["service_fixtures"]

RIGHT = {"X-API-Key": KEY}


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_requests_go_on_through_every_swap(
    serving: Serving, copy: Path, run: Path, other_run: Path, key_file: Path
) -> None:
    client = serving(copy, api_key_file=key_file)
    expected = {}
    for source in (other_run, run):
        give_weights(source, copy)
        version = client.post("/v1/admin/reload", headers=RIGHT).json()["model"]
        answered = client.post("/v1/recommend", json={"users": [4], "k": 5}, headers=RIGHT).json()
        assert answered["model"] == version
        expected[version] = answered["lists"]
    assert len(expected) == 2
    ended = threading.Event()

    def keep_asking() -> list[str]:
        versions = []
        while not ended.is_set():
            answered = client.post("/v1/recommend", json={"users": [4], "k": 5}, headers=RIGHT)
            assert answered.status_code == 200, answered.text
            # Whole answers of one model, never a mixture.
            assert answered.json()["lists"] == expected[answered.json()["model"]]
            versions.append(answered.json()["model"])
        return versions

    with ThreadPoolExecutor(3) as callers:
        asking = [callers.submit(keep_asking) for _ in range(3)]
        try:
            for swap in range(6):
                give_weights(other_run if swap % 2 == 0 else run, copy)
                assert client.post("/v1/admin/reload", headers=RIGHT).status_code == 200
        finally:
            ended.set()
        seen = {version for each in asking for version in each.result()}
    assert seen == set(expected)


def break_weights(folder: Path) -> None:
    (folder / "best.safetensors").write_bytes(b"not weights")


def take_weights_away(folder: Path) -> None:
    (folder / "best.safetensors").unlink()


def make_weights_nan(folder: Path) -> None:
    tensors, facts = checkpoint.load(folder / "best.safetensors")
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    checkpoint.save(folder / "best.safetensors", broken, facts)


def break_description(folder: Path) -> None:
    (folder / "run.json").write_text("{")


def take_all_away(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "harm", [break_weights, take_weights_away, make_weights_nan, break_description, take_all_away]
)
def test_what_does_not_load_is_rejected_and_the_old_model_goes_on(
    serving: Serving, copy: Path, key_file: Path, harm: Callable[[Path], None]
) -> None:
    client = serving(copy, api_key_file=key_file)
    body = {"users": [4], "k": 5}
    before = client.post("/v1/recommend", json=body, headers=RIGHT).json()
    harm(copy)
    refused = client.post("/v1/admin/reload", headers=RIGHT)
    assert refused.status_code == 409, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:hdccf:problem:model-rejected"
    assert refused.json()["detail"].endswith("the old model goes on")
    assert client.post("/v1/recommend", json=body, headers=RIGHT).json() == before
    assert client.get("/v1/model", headers=RIGHT).json()["last_rejection"] in refused.json()["detail"]
    assert 'hdccf_reloads_total{outcome="rejected"} 1.0' in client.get("/metrics", headers=RIGHT).text


def test_only_with_a_key_can_a_model_be_changed_from_afar(serving: Serving, key_file: Path) -> None:
    refused = serving().post("/v1/admin/reload")
    assert refused.status_code == 403
    assert "SIGHUP" in refused.json()["detail"]
    assert serving(api_key_file=key_file).post("/v1/admin/reload").status_code == 401


def test_a_link_that_is_set_to_another_run_is_followed(
    serving: Serving, run: Path, other_run: Path, tmp_path: Path, key_file: Path
) -> None:
    link = tmp_path / "current"
    link.symlink_to(run)
    client = serving(link, api_key_file=key_file)
    assert client.get("/v1/model", headers=RIGHT).json()["run"] == "first"
    link.unlink()
    link.symlink_to(other_run)
    assert client.post("/v1/admin/reload", headers=RIGHT).status_code == 200
    assert client.get("/v1/model", headers=RIGHT).json()["run"] == "second"


def wait_for_version(client: TestClient, version: str) -> None:
    for _ in range(3000):
        if client.get("/readyz").json()["model"] == version:
            return
    raise AssertionError(f"{version} was never taken")


def test_a_watched_run_is_taken_when_its_weights_change(
    serving: Serving, copy: Path, other_run: Path, run: Path
) -> None:
    client = serving(copy, watch=True, watch_seconds=0.01)
    for source in (other_run, run):
        give_weights(source, copy)
        wait_for_version(client, service.load(copy).version)
        break_weights(copy)


def test_what_was_rejected_is_not_tried_again_until_it_changes(copy: Path, other_run: Path) -> None:
    holder = AppService(copy, ServeSettings())
    assert not holder.has_changed
    break_weights(copy)
    assert holder.has_changed
    assert not holder.reload().accepted
    assert not holder.has_changed
    give_weights(other_run, copy)
    assert holder.has_changed
    outcome = holder.reload()
    assert outcome.accepted
    assert outcome.version == holder.current.version == service.load(copy).version
    assert holder.last_rejection is None


def test_weights_that_are_replaced_while_they_are_read_are_read_again(
    copy: Path, other_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def replaced_meanwhile(path: Path, index_above: int | None = None) -> object:
        nonlocal calls
        calls += 1
        loaded = load_run(path, index_above=index_above)
        if calls == 1:
            give_weights(other_run, copy)
        return loaded

    expected = service.load(other_run)
    monkeypatch.setattr(service, "load_run", replaced_meanwhile)
    found = service.load(copy)
    assert calls == 2
    assert found.version == service.load(copy).version
    answers = [each.recommender.recommend([4], k=5) for each in (found, expected)]
    assert answers[0].equals(answers[1])


def test_weights_that_never_hold_still_are_an_error(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter(range(100))
    monkeypatch.setattr(service, "signature", lambda path: (next(counter),))
    with pytest.raises(RunError, match="change faster than they can be read"):
        service.load(copy)


def test_a_request_keeps_the_model_it_began_with(
    serving: Serving, copy: Path, run: Path, other_run: Path, key_file: Path
) -> None:
    """The swap happens in the middle of a request."""
    client = serving(copy, api_key_file=key_file)
    serving_app = client.app.state.service  # type: ignore[attr-defined]
    before = serving_app.current

    def job(model: Served) -> tuple[str, str]:
        give_weights(other_run, copy)
        serving_app.reload()
        return model.version, serving_app.current.version

    began, ended = client.portal.call(serving_app.answer, job)  # type: ignore[union-attr]
    assert began == before.version
    assert ended == serving_app.current.version != began
