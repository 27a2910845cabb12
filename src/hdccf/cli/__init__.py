"""The command line: parse, call, print. Heavy libraries are imported inside the commands that need them."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from hdccf import __version__
from hdccf.cli import data
from hdccf.cli.answering import explain, export, items, report, score, serve, similar
from hdccf.cli.evaluate import compare, evaluate
from hdccf.cli.experiments import reproduce, tune, verify
from hdccf.cli.recommend import models, recommend
from hdccf.cli.train import train
from hdccf.errors import HdccfError

_EPILOGS: dict[Callable[..., None], str | None] = {
    train: "Examples: hdccf train ml-100k  ·  hdccf train events.parquet --user uid --item sku --time ts  ·  "
    "hdccf train --dataset ml-1m --preset paper --set neighbours=4",
    recommend: "Examples: hdccf recommend RUN 196 22  ·  hdccf recommend RUN --items 50 181  ·  "
    "hdccf recommend RUN --all --out recs.parquet",
    similar: "Example: hdccf similar RUN --item 50",
    score: "Examples: hdccf score RUN 196 242  ·  hdccf score RUN --pairs pairs.csv",
    explain: "Examples: hdccf explain RUN 196  ·  hdccf explain RUN 196 242 302",
    export: "Example: hdccf export RUN --out vectors",
    items: "Examples: hdccf items RUN items.parquet  ·  then: hdccf recommend RUN 196 --where category=books",
    serve: "Examples: hdccf serve RUN  ·  hdccf serve RUN --port 9000 --watch",
    report: "Example: hdccf report RUN --out report.html",
    models: "Example: hdccf models hdccf",
    evaluate: "Then: hdccf compare RUN_A RUN_B",
    compare: None,
    tune: "Examples: hdccf tune --model bpr --dataset ml-100k --trials 30 --minutes 20  ·  "
    "hdccf tune --model als --interactions events.csv",
    reproduce: "Examples: hdccf reproduce ablation --dataset ml-100k --budget quick  ·  "
    "hdccf reproduce table --interactions events.csv",
    verify: "Example: hdccf verify --only gradients,bound",
}

app = typer.Typer(
    name="hdccf",
    help="Recommend from clicks: load events, train HDCCF and its competitors, compare them honestly, "
    "serve the result.",
    epilog="Start with: hdccf data info ml-100k",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
for _command, _epilog in _EPILOGS.items():
    app.command(_command.__name__, epilog=_epilog)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hdccf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""


def main(arguments: list[str] | None = None) -> None:
    """Runs a command. An error that the user can mend is one line on standard error and exit code 2.

    An unforeseen error is a bug of ours: exit code 1, and the line says so.
    """
    # Before torch is loaded: its threads would otherwise spin while they wait, and take the processor from
    # the one they wait for wherever something else runs beside (decision 25).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = sys.argv[1:] if arguments is None else arguments
    # Also after the command: --debug is usually added at the end of a line that failed.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if not debug:
        os.environ["RUST_BACKTRACE"] = "0"  # Polars writes one to the screen for each damaged file
    try:
        code = app(args=arguments, prog_name="hdccf", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has closed it (`hdccf data list | head -1`). Python would complain once
        # more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if debug:
            traceback.print_exc()
        _explain(error, arguments)
    if code == 130:  # Typer's word for Ctrl-C
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: BaseException, arguments: list[str]) -> NoReturn:
    """One line about what went wrong, and the exit code that belongs to it."""
    if isinstance(error, HdccfError):
        _fail(str(error), 2)
    if isinstance(error, typer.TyperException):
        message = error.format_message()
        if not message:  # a group without a command: its help has been printed
            sys.exit(0)
        context = getattr(error, "ctx", None)
        commands = ", ".join(getattr(getattr(context, "command", None), "commands", {}))
        choices = f"Choose one of: {commands} " if commands and "command" in message else ""
        message = _setting_hint(getattr(error, "option_name", ""), context, arguments) or message
        _fail(f"{message} {choices}({getattr(context, 'command_path', 'hdccf')} --help explains)", 2)
    if isinstance(error, OSError):  # a full disk, a folder without permission
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error), 2)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is torch's
        _fail("there is not enough memory for this; use smaller settings, less data or a larger machine", 2)
    if not isinstance(error, Exception):  # Polars' panics are none
        _fail(f"Polars cannot work with this data ({error}); write its files again, or mend the query", 2)
    _fail(
        f"{type(error).__name__}: {error} (this is a bug in hdccf; call again with --debug, "
        "and report what it prints)",
        1,
    )


def _setting_hint(option: str, context: Any, arguments: list[str]) -> str:
    """How a setting of a model is given, where one was typed as an option of its own."""
    if not option or not any("--set" in each.opts for each in context.command.params):
        return ""
    from hdccf.models import MODELS

    name = option.lstrip("-").replace("-", "_")
    if not any(name in entry.settings.model_fields for entry in MODELS.values()):
        return ""
    joined = next((each for each in arguments if each.startswith(f"{option}=")), "")
    after = (
        arguments[arguments.index(option) + 1 :][:1] if option in arguments else [joined.partition("=")[2]]
    )
    value = after[0] if after and not after[0].startswith("--") else "VALUE"
    return f"{option} is a setting of a model and no option; write --set {name}={value}"


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write("error: " + " ".join(message.split()) + "\n")
    sys.exit(code)
