"""Findings of the checks, the statistics behind them, and their output as table, JSON and figure."""

import math
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from scipy.stats import chi2
from scipy.stats import t as student

from hdccf.errors import ConfigError
from hdccf.plots import drawn

Verdict = Literal["holds", "fails", "not checked"]
Interval = tuple[float, float]
ROUNDING = 1e-9
_STYLE = {"holds": "green", "fails": "bold red", "not checked": "dim"}


@dataclass(frozen=True)
class Finding:
    """One claim. Statistical ones have a confidence interval of the measurement, exact ones a tolerance."""

    part: str
    """Which of the paper's statements, such as `Theorem 1`."""
    claim: str
    predicted: float | None
    measured: float | None
    interval: Interval | None
    verdict: Verdict
    not_equal: bool = False
    """The claim is that the measured value is *not* the predicted one."""
    detail: str = ""
    """What was drawn, counted and compared."""

    @classmethod
    def exact(
        cls,
        part: str,
        claim: str,
        predicted: float,
        measured: float,
        *,
        tolerance: float = ROUNDING,
        detail: str = "",
    ) -> "Finding":
        """Holds where the measured value is the predicted one but for rounding."""
        region = (predicted - tolerance, predicted + tolerance)
        return cls.accepted(part, claim, predicted, measured, region, detail)

    @classmethod
    def accepted(
        cls, part: str, claim: str, predicted: float, measured: float, region: Interval, detail: str = ""
    ) -> "Finding":
        """Holds where the measured value lies in the region that the prediction gives it."""
        verdict: Verdict = "holds" if region[0] <= measured <= region[1] else "fails"
        return cls(part, claim, predicted, measured, region, verdict, detail=detail)

    @classmethod
    def estimated(
        cls,
        part: str,
        claim: str,
        predicted: float,
        measured: float,
        interval: Interval,
        detail: str = "",
        *,
        provided: bool = True,
        not_equal: bool = False,
    ) -> "Finding":
        """Holds where the measured value's interval has the predicted one (or has not), if `provided`."""
        agrees = interval[0] <= predicted <= interval[1]
        # A measurement that is not a number agrees with nothing, and differs from nothing either.
        holds = provided and math.isfinite(measured) and agrees != not_equal
        verdict: Verdict = "holds" if holds else "fails"
        return cls(part, claim, predicted, measured, interval, verdict, not_equal, detail)

    @classmethod
    def unchecked(cls, part: str, claim: str, reason: str) -> "Finding":
        """A claim that cannot be checked here."""
        return cls(part, claim, None, None, None, "not checked", detail=reason)


@dataclass(frozen=True)
class Curve:
    """How far a loss is from the ideal one, over sizes of the world and of its samples."""

    name: str
    sizes: list[int]
    gaps: list[float]
    intervals: list[Interval]


@dataclass(frozen=True)
class Report:
    """All findings and curves, to be printed by Rich or written as JSON."""

    findings: list[Finding] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    seed: int = 0

    @property
    def failures(self) -> list[Finding]:
        """The findings that fail."""
        return [finding for finding in self.findings if finding.verdict == "fails"]

    def to_json(self) -> str:
        """All of it; infinity and NaN, which JSON lacks, become null."""
        return to_json(asdict(self), indent=2, inf_nan_mode="null").decode()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()
        if self.curves:
            table = Table(title="Loss less ideal loss, by size of the world")
            table.add_column("estimator", overflow="fold")
            for size in self.curves[0].sizes:
                table.add_column(f"{size} × {size}", justify="right", no_wrap=True)
            for curve in self.curves:
                gaps = zip(curve.gaps, curve.intervals, strict=True)
                cells = [f"{gap:+.4f} ± {(high - low) / 2:.4f}" for gap, (low, high) in gaps]
                table.add_row(curve.name, *cells)
            yield table
        held = sum(finding.verdict == "holds" for finding in self.findings)
        yield f"{held} claims hold, {len(self.failures)} fail (seed {self.seed})"
        for finding in self.findings:
            if finding.verdict == "not checked":
                yield f"{finding.part}, {finding.claim}: not checked, {finding.detail}"

    def _table(self) -> Table:
        table = Table(title="The paper's theory, checked")
        table.add_column("claim", overflow="fold")
        for name in ("predicted", "measured", "interval", "verdict"):
            table.add_column(name, justify="right", no_wrap=True)
        part = ""
        for finding in self.findings:
            if finding.part != part:
                part = finding.part
                table.add_section()
                table.add_row(f"[bold]{part}[/bold]")
            predicted = ("≠ " if finding.not_equal else "") + _number(finding.predicted)
            verdict = f"[{_STYLE[finding.verdict]}]{finding.verdict}[/]"
            table.add_row(
                finding.claim, predicted, _number(finding.measured), _range(finding.interval), verdict
            )
        return table


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if value == round(value) else f"{value:.4f}"


def _range(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    low, high = interval
    spread = (high - low) / 2
    if spread >= 1e-4:
        return f"{low:.4f} … {high:.4f}"
    return f"{_number((low + high) / 2)} ± {spread:.0e}" if spread else "exact"


LEVEL = 0.999
"""A right implementation fails a statistical claim once in a thousand seeds."""

Floats = NDArray[np.float64]


def mean_interval(values: Floats, around: Floats | None = None) -> tuple[float, Interval]:
    """The mean of independent values and Student's interval of it.

    `around` are expectations, one for each value, where these differ: the spread is that of the differences.
    """
    deviations = values if around is None else values - around
    error = deviations.std(ddof=1) / np.sqrt(len(values))
    spread = float(student.ppf((1 + LEVEL) / 2, len(values) - 1) * error)
    mean = float(values.mean())
    return mean, (mean - spread, mean + spread)


def global_test(deviations: Floats) -> tuple[float, Interval]:
    """One test of all cells at once: do the means over independent repetitions vanish in every column?

    `deviations` is repetitions × cells, measured less predicted. If the prediction is right, the squared
    length of the columns' sums is a weighted sum of squares of normal numbers, however the cells are
    correlated. Its mean Σ_r ‖x_r‖² and variance 2·Σ_{r≠s} (x_r·x_s)² are in the products of repetitions, and
    it is approximated by a multiple of a chi-square with them (Box 1954). Gives the squared length
    over its mean, 1 in expectation, and where it must lie.
    """
    products = deviations @ deviations.T
    mean = float(np.trace(products))
    if mean == 0:
        return 1.0, (1.0, 1.0)
    variance = 2 * float((products**2).sum() - (np.diag(products) ** 2).sum())
    freedom = 2 * mean**2 / variance
    low, high = (float(chi2.ppf(tail, freedom)) / freedom for tail in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(products.sum()) / mean, (low, high)


def refuse_figure(path: Path, parts: tuple[str, ...]) -> None:
    """Refuses before a minute's work what would prevent the figure."""
    if find_spec("matplotlib") is None:
        raise ConfigError("--figure needs matplotlib, which is not installed; pip install 'hdccf[plots]'")
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten; give another name")
    if "convergence" not in parts:
        raise ConfigError("--figure draws the part convergence; name it in --only, or leave --only out")


def draw(curves: list[Curve], path: Path) -> None:
    """Each estimator's loss less the ideal loss, over the size of the world."""
    with drawn(path, width=7.0, height=4.0, overwrite=False) as figure:
        axes = figure.subplots()
        for curve in curves:
            spread = [(high - low) / 2 for low, high in curve.intervals]
            axes.errorbar(curve.sizes, curve.gaps, yerr=spread, marker="o", capsize=3, label=curve.name)
        axes.axhline(0.0, color="0.4", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(curves[0].sizes, [str(size) for size in curves[0].sizes])
        axes.set_xlabel("users = items; negatives and positives grow in proportion")
        axes.set_ylabel("loss − ideal loss")
        axes.legend()
