"""`hdccf report`: one file that asks nothing of any host, with what the run's folder and the library say."""

import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import hdccf
from command_line import call, error_of
from graphs import small_split, tastes
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.evaluation.compare import evaluate_run
from hdccf.recommend.run_folder import curves, settings_table
from hdccf.report import HEIGHT, WIDTH, line_chart, report, table, write_report
from training import quick

_VOID = {"meta", "line", "circle", "polyline"}
_HOSTILE = "Alien <script>alert('1')</script> & Co"


class _Reader(HTMLParser):
    """Refuses what does not close, and collects what it is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action", "data"}]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With titles, one of them hostile."""
    data = tastes()
    titles = pl.Series([_HOSTILE, *(f"Film {item}" for item in range(1, data.n_items))])
    named = Interactions(
        data.users, data.items, data.times, data.counts, data.user_ids, data.item_ids, titles
    )
    path = tmp_path_factory.mktemp("runs") / "first"
    hdccf.fit(hdccf.leave_one_out(named), quick(omega_items=0.02), out=path)
    return path


def test_the_file_is_whole_and_asks_nothing_of_any_host(run: Path, tmp_path: Path) -> None:
    write_report(hdccf.load_run(run), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    read = _Reader(text)
    assert read.links == []
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_it_says_what_the_library_says(run: Path) -> None:
    known = hdccf.load_run(run)
    words = " ".join(_Reader(report(known)).words)
    evaluation = evaluate_run(known, ks=(10,), again=False)
    assert f"{evaluation.values['full']['ndcg@10']:.4f}" in words
    assert f"{evaluation.groups['users']['heavy']['values']['full']['ndcg@10']:.4f}" in words
    for name in type(known.settings).model_fields:
        assert name in words
    for part in ("Validation", "Training loss", "Share of rows clipped", "effective-negatives", "Data"):
        assert part in words
    assert _HOSTILE in words  # read as text, not as a script
    assert len(re.findall(r"User u\d+, \d+ events", words)) == 3
    user = re.search(r"User (u\d+),", words)
    assert user is not None
    best = known.recommend([user.group(1)], k=1)["title"][0]
    assert best in words


def test_models_without_epochs_and_data_without_titles_or_times(tmp_path: Path) -> None:
    split = hdccf.random_split(tastes(timed=False), seed=0)
    hdccf.fit(split, hdccf.MostPopular(), out=tmp_path / "popular")
    words = " ".join(_Reader(report(hdccf.load_run(tmp_path / "popular"))).words)
    assert "Training loss" not in words
    assert "Examples of recommendations" in words


def test_a_file_that_is_there_stays(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"exists; choose another --out, or replace it with --overwrite"):
        write_report(hdccf.load_run(run), out)
    assert out.read_text() == "mine"
    write_report(hdccf.load_run(run), out, overwrite=True)
    assert out.read_text().startswith("<!doctype html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_command_says_where_the_file_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", run) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert (run / "report.html").stat().st_size > 10_000
    assert "exists" in error_of(capsys, "report", run)


def test_a_chart_puts_its_points_where_they_belong() -> None:
    drawn = line_chart("a < b", {"one": ([0, 1, 2], [0.0, None, 4.0])}, from_zero=True)
    points = re.search(r'points="([^"]+)"', drawn)
    assert points is not None
    (x0, y0), (x1, y1) = ([float(part) for part in pair.split(",")] for pair in points.group(1).split())
    assert (x0, x1) == (48.0, WIDTH - 8)
    assert (y0, y1) == (HEIGHT - 22, 8.0)
    assert "a &lt; b: one from 0 to 4" in drawn
    assert "Nothing was recorded" in line_chart("none", {"one": ([0], [None])})
    assert "<circle" in line_chart("one point", {"one": ([3], [0.0])})


def test_cells_are_escaped_and_numbers_lie_to_the_right() -> None:
    made = table(["name", "value"], [("<b>", 1234), (None, 0.123456)])
    assert "&lt;b&gt;" in made
    assert "<td class=number>1,234</td>" in made
    assert "<td>none</td><td class=number>0.1235</td>" in made


def test_curves_have_gaps_where_a_record_has_no_value() -> None:
    first = {"epoch": 1, "loss": 2.0, "terms": {"clipped-items": 0.5, "user-item": 1.5}, "validation": {}}
    second = {"epoch": 2, "loss": 1.0, "terms": {}, "validation": {"full:ndcg@10": 0.1}, "diagnostics": {}}
    assert curves([first, second]) == {
        "training": {"loss": [2.0, 1.0], "user-item": [1.5, None]},
        "clipped": {"clipped-items": [0.5, None]},
        "validation": {"full:ndcg@10": [None, 0.1]},
    }


def test_settings_are_told_apart_from_their_defaults() -> None:
    rows = {row["name"]: row for row in settings_table(quick(temperature=0.3))}
    assert (rows["temperature"]["value"], rows["temperature"]["default"]) == (0.3, 0.1)
    assert rows["temperature"]["changed"]
    assert not rows["loss"]["changed"]


def test_small_splits_are_reported_too(tmp_path: Path) -> None:
    hdccf.fit(small_split(), quick(epochs=1), out=tmp_path / "small")
    _Reader(report(hdccf.load_run(tmp_path / "small")))
