"""A process that listens, and is stopped by Ctrl-C or SIGTERM once what is under way has ended."""

import signal
import socket
from contextlib import suppress
from pathlib import Path

import torch
import uvicorn

from hdccf.console import note
from hdccf.errors import ConfigError
from hdccf.serving.app import create_app
from hdccf.serving.settings import ServeSettings

_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 30


def serve(run: Path, settings: ServeSettings) -> None:
    """Serves until it is told to stop."""
    # Requests run beside each other: more threads inside one would only be in each other's way.
    torch.set_num_threads(1)
    listening = _listen(settings.host, settings.port)
    with listening:
        app = create_app(run, settings, reload_on_hangup=True)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
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
        # uvicorn ends well and then raises the signal once more for whoever was there before it: us. Being
        # told to stop is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
        served = app.state.service.holder.current
        note(f"{served.recommender!r} of {served.path}, version {served.version}")
        if not settings.is_local and settings.api_key_file is None:
            note("everybody who reaches this machine can ask; --api-key-file asks for a key")
        note(f"serving on {_address(listening)} (Ctrl-C stops)")
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
        note("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Before the model is loaded: that a port is taken should not be found out after a minute."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With the protocol named: asyncio turns Nagle's algorithm off for those only, and with it every
        # answer would wait 40 ms for the client's delayed acknowledgement of its head.
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_BACKLOG)
        except OSError:
            made.close()
            raise
    except OSError as cause:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({cause.strerror or cause}); choose another one"
        ) from cause
    return made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
