"""The command line: parse, call, print. Heavy libraries are imported inside the commands that need them."""

import sys
import traceback
from typing import Annotated

import typer

from hdccf import __version__
from hdccf.cli import data as data_commands
from hdccf.errors import HdccfError

app = typer.Typer(
    name="hdccf",
    help="Recommend from clicks: load events, train HDCCF and its competitors, compare them honestly, serve the result.",
    epilog="Start with: hdccf data info ml-100k",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hdccf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""


def main(arguments: list[str] | None = None) -> None:
    """Runs a command. An error that the user can mend is one line on standard error and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Also after the command: who adds --debug to a line that failed adds it at the end.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(args=arguments, prog_name="hdccf", standalone_mode=False)
    except HdccfError as error:
        if debug:
            traceback.print_exc()
        _fail(str(error), 2)
    except typer.TyperException as error:
        # A wrong option or a missing argument: Typer's own words, without its box.
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        _fail(f"{message} (--help explains)", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    sys.stderr.write("error: " + " ".join(message.split()) + "\n")
    sys.exit(code)
