"""The ASGI application with its OpenAPI description, and the process that serves it with uvicorn.

uvicorn's HTTP protocol gets limits: a request must arrive in time, and its head has a largest size.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hdccf.console import note
from hdccf.errors import ConfigError, HdccfError
from hdccf.serving import routes
from hdccf.serving.middleware import (
    MEDIA_TYPE,
    Gateway,
    Problem,
    ProblemError,
    needs_key,
    on_error,
    page_files,
    problem,
    response,
)
from hdccf.serving.page_data import page_router
from hdccf.serving.service import AppService, Served
from hdccf.serving.settings import KEY_HEADER, ServeSettings
from hdccf.serving.timeline import SAMPLE_SECONDS


def create_app(
    run: str | Path,
    settings: ServeSettings | None = None,
    *,
    reload_on_hangup: bool = False,
) -> FastAPI:
    """Loads the run at once, and returns the ASGI application that serves it; a run's errors are raised here.

    `reload_on_hangup` makes SIGHUP take a new model; it needs the main thread.
    """
    settings = settings or ServeSettings()
    key = settings.api_key()
    service = AppService(Path(run), settings)
    app = FastAPI(
        title="hdccf",
        version=version("hdccf"),
        description=_ABOUT,
        docs_url=None,  # its scripts would come from another host: `page_files` has them
        redoc_url=None,
        redirect_slashes=False,
        lifespan=partial(_lifespan, reload_on_hangup=reload_on_hangup),
    )
    app.state.service = service
    for router in (routes.answers, routes.lookups, routes.operating, page_router):
        app.include_router(router)
    # Where no endpoint is, not a mount at /: that would answer 404 where a 405 belongs.
    app.router.default = page_files()
    for kind in (ProblemError, HTTPException, RequestValidationError, HdccfError):
        app.add_exception_handler(kind, on_error)
    _describe(app, _examples(service.current))
    # The last that is added is the first that is asked.
    app.add_middleware(Gateway, service.metrics, settings, key)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type", KEY_HEADER],
        )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI, reload_on_hangup: bool) -> AsyncIterator[None]:
    """Reloads the model when asked for while the app is up, and then closes the service."""
    service: AppService = app.state.service
    wanted = asyncio.Event()
    tasks = [asyncio.create_task(_reload_when(wanted, service)), asyncio.create_task(_sample(service))]
    if service.settings.watch:
        tasks.append(asyncio.create_task(_watch(wanted, service)))
    if reload_on_hangup:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, wanted.set)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(service.close)


async def _reload_when(wanted: asyncio.Event, service: AppService) -> None:
    """One reload after another; what is asked for during one is done after it."""
    while True:
        await wanted.wait()
        wanted.clear()
        outcome = await asyncio.to_thread(service.reload)
        note(outcome.detail if outcome.accepted else f"the old model goes on: {outcome.detail}")


async def _watch(wanted: asyncio.Event, service: AppService) -> None:
    while True:
        await asyncio.sleep(service.settings.watch_seconds)
        if await asyncio.to_thread(lambda: service.has_changed):
            wanted.set()


async def _sample(service: AppService) -> None:
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        service.timeline.sample()


# -- the OpenAPI description ---------------------------------------------------------------------------------

_ABOUT = """Recommendations of a trained model. Ids are the data's own; errors are problem details (RFC 9457).

Every answer names the version of the model that gave it: a server may take a new one at any time."""

_EVERYWHERE = {421: "The server does not go by this name.", 500: "A bug; the server's log has it."}
_WITH_BODY = {
    400: "The body is no JSON.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not sent as JSON.",
}
_SCORING = {
    422: "The request does not fit, or the model cannot answer it.",
    503: "Too many requests wait; come back soon.",
    504: "The answer took too long.",
}
_IDS = {404: "An id is unknown; `ids` names it."}
_OF_PATH = {
    **{f"/v1/{name}": _WITH_BODY | _SCORING | _IDS for name in ("recommend", "similar", "score", "explain")},
    "/v1/events": {
        **_WITH_BODY,
        **_SCORING,
        403: "The server keeps no events.",
        507: "The log is full, or the disk is.",
    },
    "/v1/items": {
        **_WITH_BODY,
        **_SCORING,
        403: "The server takes no items.",
        507: "The disk is full.",
    },
    "/v1/admin/reload": {
        403: "The server has no key.",
        409: "The new model does not load; the old one goes on.",
        408: _WITH_BODY[408],
        413: _WITH_BODY[413],
    },
    "/readyz": {503: "As many requests wait as may."},
}


def _describe(app: FastAPI, examples: dict[str, dict[str, Any]]) -> None:
    """Completes FastAPI's description, which the app keeps: problems, the key, examples."""
    found = app.openapi()
    components, schemas = found["components"], found["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    inner = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(inner.pop("$defs", {}))
    schemas["Problem"] = inner
    components["securitySchemes"] = {"key": {"type": "apiKey", "in": "header", "name": KEY_HEADER}}
    for path, operations in found["paths"].items():
        for operation in operations.values():
            _finish(path, operation, examples)


def _finish(path: str, operation: dict[str, Any], examples: dict[str, dict[str, Any]]) -> None:
    reads = "parameters" in operation or "requestBody" in operation
    statuses = _EVERYWHERE | _OF_PATH.get(path, _SCORING if reads else {})
    if needs_key(path):
        statuses = statuses | {401: "The key is missing or wrong."}
        # The empty alternative: a server may have been started without a key.
        operation["security"] = [{"key": []}, {}]
    operation["responses"].pop("422", None)
    for status, description in sorted(statuses.items()):
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        operation["responses"][str(status)] = {"description": description, "content": content}
    if path in examples and "requestBody" in operation:
        named = {name: {"value": value} for name, value in examples[path].items()}
        operation["requestBody"]["content"]["application/json"]["examples"] = named


def _examples(served: Served) -> dict[str, dict[str, Any]]:
    """Requests by path, with ids that exist."""
    train = served.recommender.split.train
    users, items = train.user_ids.head(2).to_list(), train.item_ids.head(3).to_list()
    return {
        "/v1/recommend": {
            "two users": {"users": users, "k": 5},
            "a new user": {"items": items, "k": 5},
            "fresh clicks": {"users": users[:1], "items": items, "k": 5},
            "within limits": {"users": users[:1], "k": 5, "deny": items[:1], "include_seen": True},
        },
        "/v1/similar": {"items": {"items": items[:1], "k": 5}, "users": {"users": users[:1], "k": 5}},
        "/v1/score": {"a pair": {"pairs": [{"user": users[0], "item": items[0]}]}},
        "/v1/items": {"a new item": {"items": [{"id": 1 << 40, "title": "New"}]}},
        "/v1/events": {"a click": {"events": [{"id": "click-1", "user": users[0], "item": items[0]}]}},
        "/v1/explain": {
            "a user's best": {"user": users[0], "k": 2, "top": 3},
            "a new user": {"had": items, "k": 2},
        },
    }


# -- the process ---------------------------------------------------------------------------------------------

MAX_HEAD_BYTES = 64 << 10
_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 30


def serve(run: Path, settings: ServeSettings) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    # Requests run beside each other: more threads inside one would only be in each other's way.
    torch.set_num_threads(1)
    listening = _listen(settings.host, settings.port)
    with listening:
        app = create_app(run, settings, reload_on_hangup=True)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=partial(LimitedProtocol, seconds=settings.timeout_seconds),  # type: ignore[arg-type]
                lifespan="on",
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=settings.shutdown_seconds,
            )
        )
        # uvicorn ends well and then raises the signal once more for the handler before its own: ours. Being
        # told to stop is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
        served = app.state.service.current
        note(f"{served.recommender!r} of {served.path}, version {served.version}")
        if served.events is not None:
            waits = "" if served.takes_fresh else "; this model uses them after the next training only"
            note(f"{len(served.events):,} events in {served.events.path}{waits}")
        if not settings.is_local and settings.api_key_file is None:
            note("all who reach this machine can send requests; --api-key-file asks for a key")
        host, port = listening.getsockname()[:2]
        note(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C stops)")
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
        note("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Before the model is loaded: that a port is taken should not be found out after a minute."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # Connections inherit it. With Nagle's algorithm every answer would wait 40 ms for the client's
        # delayed acknowledgement of its head; asyncio turns it off only for sockets that name a protocol.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as cause:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({cause.strerror or cause}); choose another one"
        ) from cause
    return made


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections whose request does not arrive, and refuses heads that are too large."""

    def __init__(self, *arguments: Any, seconds: float, **named: Any) -> None:
        """A head has so many `seconds`; a body twice as many, as the gateway answers late ones itself."""
        super().__init__(*arguments, **named)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None
        self._awaits_head = True
        self._head_bytes = 0  # received of a head that is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_within(self._seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._expect_within(self._seconds)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_within(self._seconds)

    def on_headers_complete(self) -> None:
        self._awaits_head, self._head_bytes = False, 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._head_bytes = MAX_HEAD_BYTES + 1
            raise ValueError  # the parser stops, and calls `send_400_response`
        self._expect_within(2 * self._seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._awaits_head = True
        self._expect_within(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            _TOO_LARGE if self._head_bytes > MAX_HEAD_BYTES else problem(400, "this is no HTTP request")
        )

    def _expect_within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._is_late)

    def _is_late(self) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._expect_within(self._seconds)
        elif self._head_bytes:
            self._refuse(problem(408, f"the head of the request did not come within {self._seconds:g} s"))
        else:
            self.transport.close()

    def _refuse(self, found: Problem) -> None:
        answer = response(found, {"Connection": "close"})
        lines = [f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body))
        self.transport.close()


_TOO_LARGE = problem(431, f"the head of the request is larger than {MAX_HEAD_BYTES:,} bytes; send less")
