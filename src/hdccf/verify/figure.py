"""The curves of Theorem 1 as an image. Matplotlib is no dependency: who wants the image brings it."""

from importlib.util import find_spec
from pathlib import Path

from hdccf.errors import ConfigError
from hdccf.files import atomic_file
from hdccf.verify.report import Curve


def refuse_figure(path: Path, parts: tuple[str, ...]) -> None:
    """Says before a minute's work, not after it, that there will be no image."""
    if find_spec("matplotlib") is None:
        raise ConfigError("--figure needs matplotlib, which is not installed; pip install matplotlib")
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten; give another name")
    if "convergence" not in parts:
        raise ConfigError("--figure draws the part convergence; name it in --only, or leave --only out")


def draw(curves: list[Curve], path: Path) -> None:
    """Each estimator's loss less the ideal loss, over the size of the world."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        spread = [(high - low) / 2 for low, high in curve.intervals]
        axes.errorbar(curve.sizes, curve.gaps, yerr=spread, marker="o", capsize=3, label=curve.name)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curves[0].sizes, [str(size) for size in curves[0].sizes])
    axes.set_xlabel("users = items; negatives and positives grow in proportion")
    axes.set_ylabel("loss − ideal loss")
    axes.legend()
    with atomic_file(path, overwrite=False) as part:
        figure.savefig(part, format=path.suffix.lstrip(".") or "png", dpi=120)
