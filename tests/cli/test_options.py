"""Options from option classes: names, defaults and limits are the fields'; only what is typed is given."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from hdccf.cli.data import ReadOptions, SplitOptions
from hdccf.cli.options import Flag, Panel, as_typed, with_options
from hdccf.config import Options
from hdccf.errors import ConfigError


class Reading(Options):
    """How to read."""

    folder: Annotated[Path | None, Flag("--from", metavar="DIR")] = None
    """Where the files are."""
    rows: int = Field(default=7, ge=1)
    """How many
    rows."""
    quiet: bool = False
    """Say nothing; needs hdccf[quiet]."""
    tags: tuple[str, ...] = ()
    """Words; repeat for more."""
    sizes: tuple[int, ...] = (1, 2)
    """Whole numbers."""


class Workers(Options):
    """Processes that work together."""

    workers: int
    """How many."""
    address: str | None = None
    """Where."""


SIZES = Flag("--size", shown="1,2", parse=lambda text: tuple(int(part) for part in text.split(",")))


@pytest.fixture
def filled() -> list[Any]:
    return []


@pytest.fixture
def app(filled: list[Any]) -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @with_options
    def read(
        name: str,
        reading: Annotated[Reading, Panel("Reading", flags={"sizes": SIZES})],
        workers: Workers | None,
        again: bool = False,
    ) -> None:
        """Read it."""
        filled.extend([name, reading, workers, again])

    return made


def test_what_is_not_typed_is_left_to_the_class(app: typer.Typer, filled: list[Any]) -> None:
    assert CliRunner().invoke(app, ["x"]).exit_code == 0
    name, reading, workers, again = filled
    assert (name, reading, workers, again) == ("x", Reading(), None, False)
    assert reading.model_fields_set == set()


def test_what_is_typed_fills_the_groups(app: typer.Typer, filled: list[Any]) -> None:
    typed = "x --from there --rows 3 --quiet --tags a --tags b --size 4,5 --workers 2 --again"
    assert CliRunner().invoke(app, typed.split()).exit_code == 0
    given: dict[str, Any] = {
        "folder": Path("there"),
        "rows": 3,
        "quiet": True,
        "tags": ("a", "b"),
        "sizes": (4, 5),
    }
    assert filled == ["x", Reading(**given), Workers(workers=2), True]


def test_the_help_is_that_of_the_fields(app: typer.Typer) -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
    for part in (
        "Reading",
        "--from",
        "DIR",
        "Where the files are.",
        "How many rows.",
        "[default: 7]",
        "1,2",
        "[quiet]",
    ):
        assert part in text
    assert "--no-quiet" not in text


def test_limits_and_missing_parts_are_refused(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["x", "--rows", "0"]).exit_code == 2
    error = CliRunner().invoke(app, ["x", "--address", "here"]).exception
    assert isinstance(error, ConfigError)
    assert str(error) == "--address goes with --workers N; give both or neither"


def test_options_as_they_are_typed() -> None:
    data = SplitOptions(interactions="postgresql://me:secret@host/a b", core=0)
    read = ReadOptions(user="who is", header=False, drop_nulls=True, event_weights={"view": 1, "buy": 2.5})
    assert as_typed(data, read) == (
        "--interactions 'postgresql://***@host/a b' --core 0 --user 'who is' --event-weights view=1,buy=2.5 "
        "--no-header --drop-nulls"
    )
    assert as_typed(SplitOptions()) == ""
