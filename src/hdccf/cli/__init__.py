"""The command line: parse, call, print. Heavy libraries are imported inside the commands that need them."""

import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from hdccf import __version__
from hdccf.cli import answering as answering_commands
from hdccf.cli import data as data_commands
from hdccf.cli import evaluate as evaluate_commands
from hdccf.cli import recommend as recommend_commands
from hdccf.cli import report as report_commands
from hdccf.cli import reproduce as reproduce_commands
from hdccf.cli import serve as serve_commands
from hdccf.cli import train as train_commands
from hdccf.cli import tune as tune_commands
from hdccf.cli import verify as verify_commands
from hdccf.errors import HdccfError

app = typer.Typer(
    name="hdccf",
    help="Recommend from clicks: load events, train HDCCF and its competitors, compare them honestly, "
    "serve the result.",
    epilog="Start with: hdccf data info ml-100k",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands.app, name="data")
app.command(
    "train",
    epilog="Examples: hdccf train --dataset ml-100k  ·  hdccf train --interactions events.parquet --user uid "
    "--item sku --time ts  ·  hdccf train --dataset ml-1m --preset paper --set neighbours=4",
)(train_commands.train)
app.command(
    "recommend",
    epilog="Examples: hdccf recommend RUN 196 22  ·  hdccf recommend RUN --items 50 181  ·  "
    "hdccf recommend RUN --all --out recs.parquet",
)(recommend_commands.recommend)
app.command("similar", epilog="Example: hdccf similar RUN --item 50")(answering_commands.similar)
app.command("score", epilog="Examples: hdccf score RUN 196 242  ·  hdccf score RUN --pairs pairs.csv")(
    answering_commands.score
)
app.command("explain", epilog="Examples: hdccf explain RUN 196  ·  hdccf explain RUN 196 242 302")(
    answering_commands.explain
)
app.command("export", epilog="Example: hdccf export RUN --out vectors")(answering_commands.export)
app.command("serve", epilog="Examples: hdccf serve RUN  ·  hdccf serve RUN --port 9000 --watch")(
    serve_commands.serve
)
app.command("report", epilog="Example: hdccf report RUN --out report.html")(report_commands.report)
app.command("models", epilog="Example: hdccf models hdccf")(recommend_commands.models)
app.command("evaluate", epilog="Then: hdccf compare RUN_A RUN_B")(evaluate_commands.evaluate)
app.command("compare")(evaluate_commands.compare)
app.command("tune", epilog="Example: hdccf tune --model bpr --dataset ml-100k --trials 30 --minutes 20")(
    tune_commands.tune
)
app.command("reproduce", epilog="Example: hdccf reproduce ablation --dataset ml-100k --budget quick")(
    reproduce_commands.reproduce
)
app.command("verify", epilog="Example: hdccf verify --only gradients,bound")(verify_commands.verify)


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

    An error that nobody foresaw is a bug of ours: exit code 1, and the line says so.
    """
    # Before torch is loaded: its threads would otherwise spin while they wait, and take the processor from
    # the one they wait for wherever something else runs beside (decision 25).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = sys.argv[1:] if arguments is None else arguments
    # Also after the command: who adds --debug to a line that failed adds it at the end.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(args=arguments, prog_name="hdccf", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`hdccf data list | head -1`). Python would complain once
        # more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            traceback.print_exc()
        _explain(error)
    if code == 130:  # Typer's word for Ctrl-C
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> NoReturn:
    """One line about what went wrong, and the exit code that belongs to it."""
    if isinstance(error, HdccfError):
        _fail(str(error), 2)
    if isinstance(error, typer.TyperException):
        message = error.format_message()
        if not message:  # a group without a command: its help has been printed
            sys.exit(0)
        _fail(f"{message} {_where_to_look(error)}", 2)
    if isinstance(error, OSError):  # a full disk, a folder without permission
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error), 2)
    if isinstance(error, MemoryError):
        _fail("there is not enough memory for this; use less data or a machine with more", 2)
    _fail(
        f"{type(error).__name__}: {error} (this is a bug in hdccf; call again with --debug, "
        "and report what it prints)",
        1,
    )


def _where_to_look(error: typer.TyperException) -> str:
    """Which commands there are where one is unknown, and whose --help explains."""
    context = getattr(error, "ctx", None)
    if context is None:
        return "(hdccf --help explains)"
    commands = ", ".join(getattr(context.command, "commands", {}))
    choices = f"Choose one of: {commands} " if commands and "command" in error.format_message() else ""
    return f"{choices}({context.command_path} --help explains)"


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write("error: " + " ".join(message.split()) + "\n")
    sys.exit(code)
