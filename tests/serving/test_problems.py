"""Every error is problem details that say what was given, what is allowed and what to do."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from small_service import KEY, Serving

from hdccf.errors import ConfigError, RunError
from hdccf.serving import routes
from hdccf.serving.app import create_app
from hdccf.serving.settings import ServeSettings

pytest_plugins = ["service_fixtures"]


ANSWERS = ["/v1/recommend", "/v1/similar", "/v1/score", "/v1/explain"]


def problem(answered: Response, status: int) -> Any:
    assert answered.status_code == status, answered.text
    assert answered.headers["content-type"] == "application/problem+json"
    found = answered.json()
    assert found["status"] == status
    assert found["title"]
    assert found["detail"]
    return found


@pytest.mark.parametrize(
    ("path", "body", "kind", "ids"),
    [
        ("/v1/recommend", {"users": ["nobody", 99]}, "user", ["nobody", "99"]),
        ("/v1/recommend", {"users": [1], "items": [99]}, "item", ["99"]),
        ("/v1/similar", {"items": [2.0, 30.0]}, "item", ["30"]),
        ("/v1/recommend", {"items": ["é\ud83c\udf89"]}, "item", ["é🎉"]),
        ("/v1/similar", {"items": [30]}, "item", ["30"]),
        ("/v1/similar", {"users": [-1]}, "user", ["-1"]),
        ("/v1/score", {"pairs": [{"user": 1, "item": 30}]}, "item", ["30"]),
        ("/v1/score", {"pairs": [{"user": 41, "item": 3}]}, "user", ["41"]),
        ("/v1/explain", {"user": 1, "items": [77]}, "item", ["77"]),
        ("/v1/explain", {"user": 77}, "user", ["77"]),
        ("/v1/explain", {"had": [77]}, "item", ["77"]),
    ],
)
def test_unknown_ids_are_named(client: TestClient, path: str, body: Any, kind: str, ids: list[str]) -> None:
    # By hand: a client would not send half of a character.
    answered = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    found = problem(answered, 404)
    assert found["type"] == "urn:hdccf:problem:unknown-id"
    assert (found["kind"], found["ids"]) == (kind, ids)
    assert ids[0] in found["detail"]
    assert "known are for example" in found["detail"]


@pytest.mark.parametrize(
    ("path", "body", "pointer", "said"),
    [
        ("/v1/recommend", {}, "", "give users or items, or both"),
        ("/v1/recommend", [], "", "give users or items, or both"),
        ("/v1/recommend", {"users": [1, 2], "items": [2]}, "", "the fresh items of one user; give one"),
        ("/v1/recommend", {"users": [1], "unknown": "guess"}, "/unknown", "'error', 'skip' or 'popular'"),
        ("/v1/events", {"events": [{"id": 1, "user": 1}]}, "/events/0/item", "required"),
        ("/v1/events", {"events": []}, "/events", "at least 1"),
        (
            "/v1/events",
            {"events": [{"id": 1, "user": 1, "item": 2, "time": "0001-01-01T00:00:00+14:00"}]},
            "/events/0/time",
            "between the years",
        ),
        ("/v1/events", {"events": [{"id": 1, "user": 1, "item": 2}] * 1001}, "/events", "at most 1000"),
        (
            "/v1/events",
            {"events": [{"id": 1, "user": 1, "item": 2, "time": "noon"}]},
            "/events/0/time",
            "date",
        ),
        ("/v1/recommend", {"users": []}, "/users", "at least 1"),
        ("/v1/recommend", {"users": 1}, "/users", "list"),
        ("/v1/recommend", {"users": [1] * 257}, "/users", "at most 256"),
        ("/v1/recommend", {"users": [1], "k": 0}, "/k", "greater than or equal to 1"),
        ("/v1/recommend", {"users": [1], "k": 501}, "/k", "less than or equal to 500"),
        ("/v1/recommend", {"users": [1], "k": "5"}, "/k", "integer"),
        ("/v1/recommend", {"users": [1], "k": True}, "/k", "integer"),
        ("/v1/recommend", {"users": [1], "inclued_seen": True}, "/inclued_seen", "not permitted"),
        ("/v1/recommend", {"users": [1, True]}, "/users/1", "an id is an integer of 64 bits or a text"),
        ("/v1/recommend", {"users": [1.5]}, "/users/0", "an id is"),
        ("/v1/recommend", {"users": [1], "deny": [""]}, "/deny/0", "an id is"),
        ("/v1/recommend", {"users": [1], "k": 2.5}, "/k", "integer"),
        ("/v1/recommend", {"users": ["x" * 257]}, "/users/0", "an id is"),
        ("/v1/recommend", {"users": [2**63]}, "/users/0", "an id is"),
        ("/v1/similar", {"k": 3}, "", "give either items or users"),
        ("/v1/score", {"pairs": [{"user": 1}]}, "/pairs/0/item", "required"),
        ("/v1/explain", {"user": 1, "top": 0}, "/top", "greater than or equal to 1"),
        ("/v1/explain", {"users": [1]}, "", "give user or had, or both"),
    ],
)
def test_what_does_not_fit_is_pointed_at(
    client: TestClient, path: str, body: Any, pointer: str, said: str
) -> None:
    found = problem(client.post(path, json=body), 422)
    assert found["type"] == "urn:hdccf:problem:invalid-request"
    first = found["errors"][0]
    assert first["pointer"] == pointer
    assert said in first["detail"]
    assert first["detail"] in found["detail"]


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"k": ' + b"9" * 5000 + b"}", b"nul"])
def test_what_is_no_json_is_refused(client: TestClient, path: str, body: bytes) -> None:
    answered = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answered.status_code in {400, 422}
    problem(answered, answered.status_code)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_json_under_another_content_type_is_told_of(client: TestClient, kind: str) -> None:
    answered = client.post("/v1/recommend", content=b'{"users": [1]}', headers={"content-type": kind})
    assert problem(answered, 415)["detail"] == (
        f"the body is {kind}; send JSON with the header Content-Type: application/json"
    )


def test_half_a_character_is_refused_and_can_be_said(client: TestClient) -> None:
    for body in (b'{"users": ["\\ud800"]}', b'{"users": [1], "\\ud800": 1}'):
        answered = client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
        problem(answered, 422)


def test_unknown_paths_and_methods(client: TestClient) -> None:
    assert "/v1/nothing is not here" in problem(client.get("/v1/nothing"), 404)["detail"]
    problem(client.post("/"), 404)
    problem(client.get("/no/page.html"), 404)
    refused = client.get("/v1/recommend")
    assert "GET does not go with /v1/recommend" in problem(refused, 405)["detail"]
    assert refused.headers["allow"] == "POST"
    problem(client.get("/v1/items?limit=0"), 422)
    problem(client.get("/v1/items", params={"q": "x" * 201}), 422)


def test_what_the_model_cannot_do_is_said(client: TestClient) -> None:
    found = problem(client.post("/v1/recommend", json={"users": [1], "allow": ["none of ours"]}), 422)
    assert found["type"] == "urn:hdccf:problem:cannot-answer"
    assert "none of the allowed items is in the catalogue" in found["detail"]


def test_large_bodies_are_refused_announced_or_not(serving: Serving) -> None:
    client = serving(max_body_bytes=2000)
    large = b'{"users": [' + b"1," * 1000 + b"1]}"
    assert "2,000 bytes" in problem(client.post("/v1/recommend", content=large), 413)["detail"]
    chunked = client.post("/v1/recommend", content=iter([large[:1500], large[1500:]]))
    assert "content-length" not in chunked.request.headers
    problem(chunked, 413)
    fits = client.post("/v1/recommend", content=iter([b'{"users":', b"[1]}"]))
    assert "Content-Type: application/json" in problem(fits, 415)["detail"]
    fits = client.post(
        "/v1/recommend", content=iter([b'{"users":', b"[1]}"]), headers={"content-type": "application/json"}
    )
    assert fits.status_code == 200


def test_a_bug_is_a_500_that_tells_nothing(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret of ours")

    monkeypatch.setattr(routes, "_scored", broken)
    answered = client.post("/v1/score", json={"pairs": [{"user": 1, "item": 1}]})
    assert "secret" not in answered.text
    problem(answered, 500)
    assert "a secret of ours" in caplog.text
    assert client.get("/readyz").status_code == 200


def test_the_key_is_asked_for_before_anything_is_read(serving: Serving, key_file: Path) -> None:
    client = serving(api_key_file=key_file, max_body_bytes=1024)
    body = {"users": [1]}
    for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": "é"}, {"X-API-Key": KEY + "x"}):
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        found = client.post("/v1/recommend", json=body, headers=raw)
        assert problem(found, 401)["type"] == "urn:hdccf:problem:wrong-key"
        assert found.headers["www-authenticate"]
    problem(client.post("/v1/recommend", content=b"x" * 5000), 401)
    for path in ("/v1/model", "/v1/items", "/v1/nothing", "/v1/page/metrics", "/metrics"):
        problem(client.get(path), 401)
    for path in ("/healthz", "/readyz", "/openapi.json", "/"):
        assert client.get(path).status_code == 200
    right = {"x-api-key": KEY}
    assert client.post("/v1/recommend", json=body, headers=right).status_code == 200
    assert client.get("/metrics", headers=right).status_code == 200


def test_browsers_of_other_origins_are_let_in_by_name(serving: Serving, key_file: Path) -> None:
    client = serving(cors_origins=("https://shop.example",), api_key_file=key_file)
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    allowed = client.options("/v1/recommend", headers={"origin": "https://shop.example", **asked})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
    refused = client.options("/v1/recommend", headers={"origin": "https://evil.example", **asked})
    assert "access-control-allow-origin" not in refused.headers
    # Also errors can be read by the page.
    wrong = client.post("/v1/recommend", json={}, headers={"origin": "https://shop.example"})
    assert problem(wrong, 401)
    assert wrong.headers["access-control-allow-origin"] == "https://shop.example"
    plain = serving().post("/v1/recommend", json={"users": [1]}, headers={"origin": "https://shop.example"})
    assert "access-control-allow-origin" not in plain.headers


class Gate:
    """Takes the place of a job: says that it began, and waits to be let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.open, self._job = threading.Semaphore(0), threading.Event(), routes._scored
        monkeypatch.setattr(routes, "_scored", self)

    def __call__(self, *arguments: Any) -> Any:
        self.began.release()
        assert self.open.wait(60)
        return self._job(*arguments)


PAIR = {"pairs": [{"user": 1, "item": 1}]}


def test_more_requests_than_may_wait_are_sent_away(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    client = serving(threads=1, waiting=0)
    with ThreadPoolExecutor(1) as caller:
        first = caller.submit(client.post, "/v1/score", json=PAIR)
        assert gate.began.acquire(timeout=60)
        busy = client.post("/v1/score", json=PAIR)
        assert problem(busy, 503)["type"] == "urn:hdccf:problem:busy"
        assert busy.headers["retry-after"] == "1"
        problem(client.get("/readyz"), 503)
        assert client.get("/healthz").status_code == 200
        gate.open.set()
        assert first.result().status_code == 200
    assert client.get("/readyz").status_code == 200


def test_what_takes_too_long_is_given_up_and_keeps_its_thread_until_it_ends(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    client = serving(threads=1, waiting=1, timeout_seconds=0.2)
    assert "0.2 s" in problem(client.post("/v1/score", json=PAIR), 504)["detail"]
    # It waited for the thread in vain, and has left the queue.
    problem(client.post("/v1/score", json=PAIR), 504)
    pool = client.app.state.service  # type: ignore[attr-defined]
    assert pool.taken == 1
    gate.open.set()
    pool.close()
    assert pool.taken == 0
    assert gate.began.acquire(timeout=0)
    assert not gate.began.acquire(timeout=0)


def test_settings_are_checked(tmp_path: Path, run: Path) -> None:
    (tmp_path / "short").write_text("abc\n")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"port": 70000}, "port=70000 is not possible"),
        ({"cors_origins": ("shop.example",)}, "no origin; write it as https://shop"),
        ({"hosts": "x"}, "no setting 'hosts'; did you mean 'host'"),
        ({"api_key_file": tmp_path / "short"}, "holds no usable key; give one line of at least 16"),
        ({"api_key_file": tmp_path / "none"}, "the key cannot be read from"),
    ]
    for values, message in refused:
        with pytest.raises(ConfigError, match=message):
            create_app(run, ServeSettings(**values))
    with pytest.raises(RunError, match="holds no run"):
        create_app(tmp_path)
    assert ServeSettings().is_local
    assert ServeSettings(host="::1").is_local
    assert not ServeSettings(host="0.0.0.0").is_local


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "a b", "[::1"]
)
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    found = problem(client.get("/v1/page/runs", headers={"Host": host}), 421)
    assert "--allow-host" in found["detail"]


@pytest.mark.parametrize(
    "host", ["localhost:8000", "LOCALHOST", "127.0.0.1:1", "[::1]:8000", "recs.example.", "Bound"]
)
def test_addresses_and_known_names_are_no_foreign_hosts(serving: Serving, host: str) -> None:
    client = serving(host="bound", allowed_hosts=("Recs.example",))
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


def test_every_host_can_be_allowed(serving: Serving) -> None:
    assert serving(allowed_hosts=("*",)).get("/healthz", headers={"Host": "any.example"}).status_code == 200
