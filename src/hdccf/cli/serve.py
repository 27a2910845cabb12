"""`hdccf serve`: a run behind a REST service and a web page."""

import os
from pathlib import Path
from typing import Annotated

import typer

from hdccf.cli.answering import Run
from hdccf.cli.options import Flag, Panel, with_options
from hdccf.errors import ConfigError
from hdccf.serving.settings import ServeSettings

_ACCESS = "Who may ask"
_FLAGS = {
    "host": Flag(metavar="ADDRESS"),
    "port": Flag(metavar="N"),
    "api_key_file": Flag(metavar="FILE", panel=_ACCESS),
    "cors_origins": Flag("--cors-origin", metavar="ORIGIN", panel=_ACCESS),
    "watch": Flag("--watch"),
}


@with_options
def serve(
    run: Run,
    options: Annotated[ServeSettings, Panel(only=tuple(_FLAGS), flags=_FLAGS)],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML with these and more settings; options come after it."),
    ] = None,
) -> None:
    """Serve a run: REST under /v1, a page at /, and /healthz, /readyz and /metrics beside.

    A new model is taken without a dropped request, and only if it loads. Ctrl-C or SIGTERM stops when what
    is under way has ended.
    """
    # Before polars is loaded: its threads have nothing to share in the few rows of an answer, and handing
    # them over takes longer than the work.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from hdccf.config import read_toml

    try:
        from hdccf.serving.app import serve as listen
    except ModuleNotFoundError as cause:
        raise ConfigError(
            f"serving needs {cause.name}; install it with: pip install -c constraints.txt 'hdccf[serve]'"
        ) from cause
    given = options.model_dump(exclude_unset=True)
    listen(run, ServeSettings(**{**(read_toml(config) if config else {}), **given}))
