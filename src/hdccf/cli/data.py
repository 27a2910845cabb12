"""`hdccf data`: which data sets there are, getting one, and looking into a file."""

import typer

app = typer.Typer(help="List, get and look into data sets.", no_args_is_help=True)


@app.command("list")
def list_datasets() -> None:
    """List the named data sets."""
