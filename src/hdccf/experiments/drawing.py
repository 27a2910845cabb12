"""What all figures share: PNG and SVG beside each other, atomic, the same bits for the same data."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hdccf.errors import ConfigError
from hdccf.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
COLOURS = ("#3b6ea8", "#c8553d", "#5b8c5a", "#8a6fae")


@contextmanager
def drawn(stem: Path, width: float = 6.0, height: float = 3.0) -> "Iterator[Figure]":
    """A figure to draw on; when the block ends well it is `stem`.png and `stem`.svg."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise ConfigError("figures need matplotlib; install it with: pip install 'hdccf[plots]'") from cause
    # A fixed salt and no date: an SVG that is drawn again is the same file.
    with mpl.rc_context({"svg.hashsalt": "hdccf", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for kind in FORMATS:
            metadata = {"Date": None} if kind == "svg" else None
            with atomic_file(stem.with_name(f"{stem.name}.{kind}")) as part:
                figure.savefig(part, format=kind, dpi=150, metadata=metadata)
