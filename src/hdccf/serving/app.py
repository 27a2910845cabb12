"""All of the service together: `create_app(run, settings)` gives an ASGI application."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from hdccf.console import note
from hdccf.serving import files, guards, health, openapi, problems, routes
from hdccf.serving.access import AppService
from hdccf.serving.measures import Measures
from hdccf.serving.served import Holder, Loader, load
from hdccf.serving.settings import KEY_HEADER, ServeSettings
from hdccf.serving.work import Pool


def create_app(
    run: str | Path,
    settings: ServeSettings | None = None,
    *,
    loader: Loader | None = None,
    reload_on_hangup: bool = False,
) -> FastAPI:
    """Loads the run, at once, and gives what serves it. An error of the run is raised here.

    `reload_on_hangup` makes SIGHUP take a new model; it needs the main thread.
    """
    settings = settings or ServeSettings()
    key = settings.api_key()
    holder = Holder(Path(run), loader or partial(load, index_above=settings.index_above))
    pool = Pool(settings.threads, settings.waiting, settings.timeout_seconds)
    service = AppService(holder, pool, Measures(), settings)
    service.measures.now_answers(holder.current.version)
    app = FastAPI(
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(service, reload_on_hangup),
    )
    app.state.service = service
    app.include_router(routes.router)
    app.include_router(health.router)
    page_router = _page_router()
    if page_router is not None:
        app.include_router(page_router)
    # Where no endpoint is, not a mount at /: that would answer 404 where a 405 belongs.
    app.router.default = files.page_files()
    problems.install(app)
    openapi.install(app, holder.current)
    # The last that is added is the first that is asked.
    app.add_middleware(guards.BodyLimit, most=settings.max_body_bytes, seconds=settings.timeout_seconds)
    app.add_middleware(guards.KeyCheck, key=key)
    app.add_middleware(guards.Guard, measures=service.measures)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type", KEY_HEADER],
        )
    return app


def _lifespan(
    service: AppService, reload_on_hangup: bool
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        wanted = asyncio.Event()
        tasks = [asyncio.create_task(_reload_when(wanted, service))]
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
            await asyncio.to_thread(service.pool.close)

    return living


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
        if await asyncio.to_thread(lambda: service.holder.has_changed):
            wanted.set()


def _page_router() -> APIRouter | None:
    """What the page asks for beyond the public endpoints, where this installation has a page."""
    if find_spec("hdccf.serving.page_data") is None:
        return None
    router: APIRouter = import_module("hdccf.serving.page_data").page_router
    return router
