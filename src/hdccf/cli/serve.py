"""`hdccf serve`: a run answering over HTTP."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hdccf.cli.answering import Run
from hdccf.errors import ConfigError

_WHO = "Who may ask"


def serve(
    run: Run,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen: 127.0.0.1 is reached from this machine only, 0.0.0.0 from everywhere.",
            show_default="127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="0 takes a free one and says which.", show_default="8000")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML with these and more settings; options come after it."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Ask for the key that is in this file, in X-API-Key.", rich_help_panel=_WHO
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Pages from here may ask in a browser, as https://shop.example; repeat for more.",
            rich_help_panel=_WHO,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Take a new model when the run's weights change; SIGHUP does it once."),
    ] = False,
) -> None:
    """Serve a run: REST under /v1, a page at /, and /healthz, /readyz and /metrics beside.

    A new model is taken without a dropped request, and only if it loads. Ctrl-C or SIGTERM stops when what
    is under way has ended.
    """
    # Before polars is loaded: its threads have nothing to share in the few rows of an answer, and handing
    # them over takes longer than the work.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from hdccf.config import build_settings, read_toml

    try:
        from hdccf.serving.server import serve as listen
        from hdccf.serving.settings import ServeSettings
    except ModuleNotFoundError as cause:
        raise ConfigError(
            f"serving needs {cause.name}; install it with: pip install -c constraints.txt 'hdccf[serve]'"
        ) from cause
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_key_file": api_key_file,
        "cors_origins": cors_origin,
        "watch": watch or None,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    settings = build_settings(ServeSettings, read_toml(config) if config else {}, asked)
    assert isinstance(settings, ServeSettings)  # noqa: S101
    listen(run, settings)
