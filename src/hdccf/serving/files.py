"""The page's files, served at / by the same process. Nothing in them may come from another host."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

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
