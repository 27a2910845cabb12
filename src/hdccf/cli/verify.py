"""`hdccf verify`: numerical checks of the paper's gradients, propositions, theorem and lower bound."""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Draws the worlds and batches; any seed must do.")
    ] = 0,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="PART,PART,…",
            help="Some of gradients, propositions, theorem, convergence, bound. Without it: all of them.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: each claim with what was drawn and counted for it.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE.png",
            help="Also draw how the losses approach the ideal loss; needs matplotlib. Never overwrites.",
        ),
    ] = None,
) -> None:
    """Check the paper's gradients, propositions, theorem and lower bound on the pieces that training uses.

    Prints claim, predicted, measured, interval and verdict. Exit code 1 if a claim fails.
    """
    import torch

    from hdccf.verify import PARTS
    from hdccf.verify import verify as check
    from hdccf.verify.report import draw, refuse_figure

    parts = PARTS if only is None else tuple(part.strip() for part in only.split(","))
    if figure is not None:
        refuse_figure(figure, parts)
    # Everything here is small. On two busy cores one thread took 82 seconds, and two, which then mostly wait
    # for each other, had not ended after ten minutes.
    torch.set_num_threads(1)
    report = check(seed, parts, progress=True)
    if figure is not None:
        draw(report.curves, figure)
    if as_json:
        typer.echo(report.to_json())
    else:
        from rich.console import Console

        Console().print(report)
    if report.failures:
        raise typer.Exit(1)
