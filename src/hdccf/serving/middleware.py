"""ASGI middleware (metrics and error barrier, API key, body limit) and the page's static files."""

import asyncio
import hmac
import logging
import time
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hdccf.serving.problems import Problem, problem, response
from hdccf.serving.service import Metrics
from hdccf.serving.settings import KEY_HEADER

log = logging.getLogger("hdccf.serving")

_METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}


class RequestMetrics:
    """Counts and times requests; an unforeseen error becomes a 500 with a line in the log."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        started = time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.under_way.inc()
        try:
            await self._app(scope, receive, noting)
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


class KeyCheck:
    """Asks for the key before anything is read, for everything that tells of the model."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._key is not None and needs_key(scope["path"]):
            given = Headers(scope=scope).get(KEY_HEADER)
            # In constant time: how long a comparison takes must not tell how much of a key is right.
            if given is None or not hmac.compare_digest(given.encode("latin-1"), self._key):
                said = "is missing" if given is None else "is not the right one"
                found = problem(401, f"the key {said}; send it in the header {KEY_HEADER}", "wrong-key")
                challenge = {"WWW-Authenticate": f"ApiKey header={KEY_HEADER}"}
                await response(found, challenge)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def needs_key(path: str) -> bool:
    """Health, the description and the page's own files are open; the page asks for the key itself."""
    return path.startswith("/v1/") or path == "/metrics"


class BodyLimit:
    """Reads a body to its end, if it is not too large and comes in time, before anything else happens."""

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self._app = app
        self._most = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._most:
            await self._refuse(self._too_large(), scope, receive, send)
            return
        if not announced and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self._seconds)
        except TimeoutError:
            found = problem(408, f"the body did not come within {self._seconds:g} s")
            await self._refuse(found, scope, receive, send)
            return
        if body is None:
            await self._refuse(self._too_large(), scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """None where it is too large."""
        parts, size = [], 0
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> Problem:
        return problem(413, f"the body is larger than {self._most:,} bytes; send several requests")

    async def _refuse(self, found: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        # The rest of the body has not been read: the connection cannot be used again.
        await response(found, {"Connection": "close"})(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replaying() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying


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


def page_files(folder: Path = PAGE) -> ASGIApp:
    """What is asked where no endpoint is: a file of the page, or nothing (404)."""
    files = StaticFiles(directory=folder, html=True) if (folder / "index.html").is_file() else None

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No websockets here: the handshake is refused.
            await send({"type": "websocket.close", "code": 1000})
            return
        path = scope["path"]
        if scope["method"] not in {"GET", "HEAD"} or path.startswith("/v1/"):
            raise HTTPException(404)
        if files is None:
            if path != "/":
                raise HTTPException(404)
            await JSONResponse({"service": "hdccf", "description": "/openapi.json"})(scope, receive, send)
            return
        found = await files.get_response(files.get_path(scope), scope)
        found.headers.update(_HEADERS)
        await found(scope, receive, send)

    return serve
