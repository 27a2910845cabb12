"""A real browser for tests of the page: Debian's chromium, driven by Playwright."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI
    from playwright.sync_api import Browser

MISSING = "no chromium: install Debian's package, or set PLAYWRIGHT_CHROMIUM to a browser's path"


def executable() -> Path | None:
    path = Path(os.environ.get("PLAYWRIGHT_CHROMIUM", "/usr/bin/chromium"))
    return path if path.exists() else None


@contextmanager
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    path = executable()
    if path is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        # chromium refuses its sandbox to root, which is who runs in containers; it loads our own page only.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def listening(app: "FastAPI") -> Iterator[str]:
    """The app on a free port of loopback, in a thread; gives its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.02)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()
