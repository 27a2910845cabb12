"""One style for all figures. Matplotlib is loaded when a figure is drawn."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from hdccf.errors import ConfigError
from hdccf.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3b6ea8", "#c8553d", "#5b8c5a", "#8a6fae", "#b8862b", "#4a9a9a", "#a8577e", "#7a5c44", "#8a8a8a")
OURS, REFERENCE = COLOURS[0], "#b3b3b3"
PALER = {OURS: "#a9c1dd", REFERENCE: "#dedede"}
"""For a second kind of the same."""
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "figure.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 4,
    "svg.hashsalt": "hdccf",
}


def refuse_without_matplotlib() -> None:
    """For before the work whose results are to be drawn."""
    if find_spec("matplotlib") is None:
        raise ConfigError("figures need matplotlib; install it with: pip install 'hdccf[plots]'")


@contextmanager
def drawn(
    *paths: Path, width: float = 6.0, height: float = 3.0, overwrite: bool = True
) -> "Iterator[Figure]":
    """A figure to draw on; when the block ends well it is in each of the files, in its suffix's format."""
    refuse_without_matplotlib()
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.figure import Figure

    with mpl.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for path in paths:
            kind = path.suffix.lstrip(".") or "png"
            # With a fixed salt and without a date an SVG that is drawn again is the same file.
            metadata = {"Date": None} if kind == "svg" else None
            with atomic_file(path, overwrite=overwrite) as part:
                figure.savefig(part, format=kind, dpi=150, metadata=metadata)


class Bar(NamedTuple):
    """A value, its deviation over seeds, and how the value is printed."""

    value: float
    spread: float = 0.0
    text: str = ""


Panels = Mapping[str, Mapping[str, Bar]]
"""Title → row → its bar."""


def ordered(panels: Panels, last: Collection[str] = ()) -> list[str]:
    """The rows of all panels, the best first: by the mean over panels of the share of the panel's best."""
    shares: dict[str, list[float]] = {}
    for bars in panels.values():
        best = max((bar.value for bar in bars.values()), default=0.0) or 1.0
        for row, bar in bars.items():
            shares.setdefault(row, []).append(bar.value / best)
    return sorted(shares, key=lambda row: (row in last, -mean(shares[row])))


def draw_panels(
    axes: "Sequence[Axes]",
    panels: Panels,
    colours: Mapping[str, str],
    *,
    across: int,
    last: Collection[str] = (),
    line: float | None = None,
) -> None:
    """Horizontal bars, a panel on each of the axes, rows in one order, their names at the left panels only.

    A row that a panel lacks is marked as not run. `line` is a value that all are compared with.
    """
    rows = ordered(panels, last)
    for place, (axis, (title, bars)) in enumerate(zip(axes, panels.items(), strict=False)):
        for height, row in enumerate(rows):
            if row not in bars:
                axis.text(0, height, " not run", va="center", color="0.5", fontsize=7, style="italic")
                continue
            value, spread, text = bars[row]
            error = {"lw": 0.9, "capsize": 2}
            axis.barh(height, value, xerr=spread or None, color=colours[row], error_kw=error)
            axis.annotate(
                text or f"{value:.3f}",
                (value + spread, height),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                # The line does not cross the number.
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
            )
        if line is not None:
            axis.axvline(line, color="0.4", linewidth=0.8, zorder=0.5)
        axis.set_yticks(range(len(rows)), rows if place % across == 0 else [""] * len(rows))
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlim(0, 1.22 * max(bar.value + bar.spread for bar in bars.values()))
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(title)
