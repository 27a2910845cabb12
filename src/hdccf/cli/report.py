"""`hdccf report`: one HTML file about a run."""

from pathlib import Path
from typing import Annotated

import typer

from hdccf.cli.answering import Run


def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file to write; report.html in RUN if not given."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write one HTML file with a run's figures, curves, diagnostics, examples and settings.

    It asks nothing of any host and can be sent as it is. The figures of the test part are those of hdccf
    evaluate, which is done first where it has not been.
    """
    from hdccf.recommend.recommender import load_run
    from hdccf.report.report import write_report

    target = out or run / "report.html"
    write_report(load_run(run), target, overwrite=overwrite, progress=True)
    typer.echo(str(target))
