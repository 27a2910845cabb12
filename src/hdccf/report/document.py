"""HTML from plain values. Everything that comes from data or settings is escaped here, once."""

from collections.abc import Iterable, Sequence
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
