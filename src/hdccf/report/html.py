"""HTML building blocks of a report: sections, escaped tables, and line charts as inline SVG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_STYLE = Path(__file__).with_name("report.css")


def document(title: str, sections: Iterable[str]) -> str:
    """A whole file, which asks nothing of any host."""
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}\n</section>"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def side_by_side(parts: Iterable[str]) -> str:
    return f'<div class="charts">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int = 1) -> str:
    """The first `texts` columns to the left, the numbers behind them to the right."""

    def line(cells: Sequence[Any], tag: str) -> str:
        made = (
            f"<{tag}{'' if place < texts else ' class=number'}>{escape(_shown(cell))}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


# -- line charts, in the colours of the style, so that they follow light and dark ----------------------------

WIDTH, HEIGHT = 520, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 8, 8, 22
_COLOURS = 6

Line = tuple[Sequence[float], Sequence[float | None]]
"""x and y; where y is None there is no point."""


def line_chart(
    title: str,
    lines: Mapping[str, Line],
    *,
    x_label: str = "",
    mark: float | None = None,
    from_zero: bool = False,
) -> str:
    """A figure with its legend; `mark` is a place on x that gets a dashed line."""
    points = {
        name: [(x, y) for x, y in zip(*line, strict=True) if y is not None and math.isfinite(y)]
        for name, line in lines.items()
    }
    everything = [point for some in points.values() for point in some]
    if not everything:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>Nothing was recorded.</p></figure>"
    frame = _Frame([x for x, _ in everything], [y for _, y in everything], from_zero)
    parts = frame.axes(x_label)
    for number, some in enumerate(points.values()):
        parts.append(frame.curve(some, number))
    if mark is not None:
        x = frame.x(mark)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
    legend = "".join(
        f'<li><i style="background:var(--line-{number % _COLOURS})"></i>{escape(name)}</li>'
        for number, name in enumerate(points)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_told(title, points)}">'
        f'{"".join(parts)}</svg><ul class="legend">{legend}</ul></figure>'
    )


class _Frame:
    """Where values lie in the drawing."""

    def __init__(self, xs: list[float], ys: list[float], from_zero: bool) -> None:
        self._x = _range(min(xs), max(xs), 0.5)
        low = min(0.0, *ys) if from_zero else min(ys)
        self._y = _range(low, max(ys), 0.0 if from_zero else 0.5)

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _BOTTOM - _TOP)

    def axes(self, x_label: str) -> list[str]:
        parts = []
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            x = self._x[0] + share * (self._x[1] - self._x[0])
            y = self._y[0] + share * (self._y[1] - self._y[0])
            at = self.y(y)
            parts.append(
                f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:.3g}</text>')
            said = f"{x:.3g} {escape(x_label)}" if share == 1 and x_label else f"{x:.3g}"
            parts.append(f'<text x="{self.x(x):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{said}</text>')
        return parts

    def curve(self, points: Sequence[tuple[float, float]], number: int) -> str:
        colour = f"var(--line-{number % _COLOURS})"
        if len(points) == 1:
            x, y = points[0]
            return f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}"/>'
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline class="curve" points="{path}" stroke="{colour}"/>'


def _range(low: float, high: float, below: float) -> tuple[float, float]:
    """A line that does not move has no range of its own."""
    return (low, high) if high > low else (low - below, high + 1 - below)


def _told(title: str, points: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The chart in words, for those who hear it."""
    each = [f"{name} from {some[0][1]:.3g} to {some[-1][1]:.3g}" for name, some in points.items() if some]
    return escape(f"{title}: {'; '.join(each)}")
