"""Command lines called in this process, for tests of what they print and how they end."""

from pathlib import Path

import pytest

from hdccf.cli import main


def call(*arguments: str | Path) -> int:
    """Runs a command line; gives its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a command line which must fail writes instead of a result."""
    capsys.readouterr()
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if not line.startswith("note:")]
    assert line.startswith("error: ")
    return line
