"""Errors as problem details (RFC 9457), ASGI middleware, and the page's static files."""

import asyncio
import hmac
import http
import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import fastapi_offline  # imported here, so that `hdccf serve` says what to install where it is missing
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hdccf.serving.settings import KEY_HEADER, ServeSettings

log = logging.getLogger("hdccf.serving")

MEDIA_TYPE = "application/problem+json"
_ERRORS_SHOWN = 20
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class BodyError(BaseModel):
    """One thing that is wrong with a request."""

    pointer: str
    """Where, as a JSON pointer into the body, or the name of the parameter."""
    detail: str


class Problem(BaseModel):
    """What went wrong, for programs (type, status) and for people (title, detail)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """about:blank where the status says it all; otherwise which problem of ours this is."""
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    """What was given, what is allowed, what to do."""
    kind: str | None = None
    """With unknown ids: "user" or "item"."""
    ids: list[str] | None = None
    """With unknown ids: the first of them."""
    errors: list[BodyError] | None = None
    """With a request that does not fit: what is wrong where."""


class ProblemError(Exception):
    """Raised anywhere below an endpoint, answered as it is."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers or {}


def problem(status: int, detail: str, name: str | None = None, **more: Any) -> Problem:
    """`name` is our own word for it, as in unknown-id."""
    phrase = http.HTTPStatus(status).phrase
    kind = "about:blank" if name is None else f"urn:hdccf:problem:{name}"
    title = phrase if name is None else name.replace("-", " ").capitalize()
    return Problem(type=kind, title=title, status=status, detail=detail, **more)


def response(found: Problem, headers: dict[str, str] | None = None) -> Response:
    # ASCII: whatever came in, lone surrogates included, can be sent back.
    content = json.dumps(found.model_dump(exclude_none=True), ensure_ascii=True)
    return Response(content, found.status, headers, media_type=MEDIA_TYPE)


async def on_error(request: Request, error: Exception) -> Response:
    """What is raised below an endpoint, as a problem; `Gateway` catches unforeseen errors."""
    if isinstance(error, ProblemError):
        return response(error.problem, error.headers)
    if isinstance(error, RequestValidationError):
        return response(_invalid(error, request.headers.get("content-type")))
    if not isinstance(error, HTTPException):  # an error of ours: what the model cannot do with the request
        return response(problem(422, str(error), "cannot-answer"))
    # Unknown paths, wrong methods, bodies that are no JSON.
    details = {
        404: f"{request.url.path} is not here; /openapi.json has what is",
        405: f"{request.method} does not go with {request.url.path}; /openapi.json has what does",
    }
    detail = details.get(error.status_code, str(error.detail))
    return response(problem(error.status_code, detail), dict(error.headers or {}))


def _invalid(error: RequestValidationError, content_type: str | None) -> Problem:
    errors = error.errors()
    if isinstance(error.body, bytes) and errors[0]["loc"] == (
        "body",
    ):  # FastAPI parses JSON by its type only
        given = "has no content type" if content_type is None else f"is {content_type}"
        return problem(415, f"the body {given}; send JSON with the header Content-Type: application/json")
    if errors[0]["type"] == "json_invalid":
        where = f"at character {errors[0]['loc'][-1]}"
        return problem(400, f"the body is no JSON {where}: {errors[0]['ctx']['error']}")
    found = [BodyError(pointer=_pointer(one["loc"]), detail=one["msg"]) for one in errors[:_ERRORS_SHOWN]]
    first = f"{found[0].pointer or 'the body'}: {found[0].detail}"
    return problem(422, f"the request does not fit: {first}", "invalid-request", errors=found)


def _pointer(loc: tuple[int | str, ...]) -> str:
    """Where in the body, as /users/0; or the name of a parameter."""
    if loc[0] != "body":
        return str(loc[-1])
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc[1:])


# -- middleware ----------------------------------------------------------------------------------------------


class Metrics:
    """A registry of its own, so that two apps in one process do not count each other's requests."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        labels, timed = ["method", "route", "status"], partial(Histogram, buckets=_SECONDS, registry=registry)
        arrival = "From the arrival of a request to the end of its answer."
        self.requests = Counter("hdccf_requests", "Requests answered.", labels, registry=registry)
        self.seconds = timed("hdccf_request_seconds", arrival, ["route"])
        self.scoring = timed("hdccf_scoring_seconds", "What of it the model took.")
        self.under_way = Gauge("hdccf_requests_under_way", "Requests being answered.", registry=registry)
        self.reloads = Counter(
            "hdccf_reloads", "Attempts to take a new model.", ["outcome"], registry=registry
        )
        self.events = Counter("hdccf_events", "Events added to histories.", registry=registry)
        self.lists = Counter("hdccf_lists", "Lists of recommendations.", ["user"], registry=registry)
        self.shown = Counter("hdccf_items_shown", "Items in them.", ["group"], registry=registry)
        self.model = Gauge("hdccf_model", "1 for the model that answers.", ["version"], registry=registry)
        ProcessCollector(registry=registry)

    def now_answers(self, version: str) -> None:
        """Sets the version of the model that answers."""
        self.model.clear()
        self.model.labels(version).set(1)


_METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}


class Gateway:
    """Counts and times requests, checks host and key, and reads a body to its end before all else.

    An unforeseen error becomes a 500 with a line in the log.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, settings: ServeSettings, key: str | None) -> None:
        self._app, self._metrics, self._settings = app, metrics, settings
        self._most, self._seconds = settings.max_body_bytes, settings.timeout_seconds
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 0, time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.under_way.inc()
        try:
            refusal = self._wrong_host(scope) or self._wrong_key(scope)
            if refusal is None:
                refusal, receive = await self._with_body(Headers(scope=scope), receive)
            await (refusal or self._app)(scope, receive, noting)
        except Exception:
            log.exception("%s %s failed; this is a bug in hdccf", scope["method"], scope["path"])
            if status:
                raise
            found = problem(500, "an unforeseen error; the server's log says which")
            await response(found)(scope, receive, noting)
        finally:
            self._metrics.under_way.dec()
            # Templates of paths, never paths: an attacker must not be able to fill the registry.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(method, route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)

    def _wrong_host(self, scope: Scope) -> Response | None:
        """A refusal of names that are not ours: a page of another site may have one point to this address."""
        host = Headers(scope=scope).get("host", "")
        if self._settings.allows_host(host):
            return None
        detail = f"this server is not known as {host!r}; ask it by its address, or start it with --allow-host"
        return response(problem(421, detail, "unknown-host"))

    def _wrong_key(self, scope: Scope) -> Response | None:
        """A refusal without the right key, for everything that tells of the model."""
        if self._key is None or not needs_key(scope["path"]):
            return None
        given = Headers(scope=scope).get(KEY_HEADER)
        # In constant time: how long a comparison takes must not tell how much of a key is right.
        if given is not None and hmac.compare_digest(given.encode("latin-1"), self._key):
            return None
        said = "is missing" if given is None else "is not the right one"
        found = problem(401, f"the key {said}; send it in the header {KEY_HEADER}", "wrong-key")
        return response(found, {"WWW-Authenticate": f"ApiKey header={KEY_HEADER}"})

    async def _with_body(self, headers: Headers, receive: Receive) -> tuple[Response | None, Receive]:
        """What gives the body that was read; or a refusal where it is too large or late."""
        announced = headers.get("content-length", "")
        if not announced and "transfer-encoding" not in headers:
            return None, receive
        body, more = b"", True
        too_large = announced.isdecimal() and int(announced) > self._most
        try:
            async with asyncio.timeout(self._seconds):
                while more and not too_large:
                    message = await receive()
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    too_large = len(body) > self._most
        except TimeoutError:
            found = problem(408, f"the body did not come within {self._seconds:g} s")
        else:
            found = problem(413, f"the body is larger than {self._most:,} bytes; send several requests")
        if more or too_large:
            # The rest of the body has not been read: the connection cannot be used again.
            return response(found, {"Connection": "close"}), receive
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return None, replay


def needs_key(path: str) -> bool:
    """Health, the description and the page's own files are open; the page asks for the key itself."""
    return path.startswith("/v1/") or path == "/metrics"


PAGE = Path(__file__).parent / "page"
_HEADERS = {
    # The browser itself holds the page to this host.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked again each time, and answered with 304 where nothing changed: a new release is seen at once.
    "Cache-Control": "no-cache",
}


DOCS = "/docs"
_SWAGGER = {f"{DOCS}/{name}": name for name in ("swagger-ui-bundle.js", "swagger-ui.css")}


def page_files() -> ASGIApp:
    """What is asked where no endpoint is: a file of the page or of the REST reference, or nothing (404)."""
    files = StaticFiles(directory=PAGE, html=True)
    swagger = StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No websockets here: the handshake is refused.
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["method"] not in {"GET", "HEAD"} or scope["path"].startswith("/v1/"):
            raise HTTPException(404)
        path = scope["path"]
        if path in _SWAGGER:
            found = await swagger.get_response(_SWAGGER[path], scope)
        else:
            found = await files.get_response("docs.html" if path == DOCS else files.get_path(scope), scope)
        found.headers.update(_HEADERS)
        await found(scope, receive, send)

    return serve
