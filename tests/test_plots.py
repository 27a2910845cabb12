"""The figures' one style: rows in the same order in every panel, files in the format of their names."""

from pathlib import Path

import pytest

from hdccf.errors import ConfigError, HdccfError
from hdccf.plots import OURS, REFERENCE, Bar, draw_panels, drawn, ordered

PANELS = {
    "tea": {"most popular": Bar(0.3), "EASE": Bar(0.2), "ours": Bar(0.4, 0.1)},
    "jam": {"most popular": Bar(30.0), "ALS": Bar(20.0), "ours": Bar(10.0, text="ten")},
}


def test_rows_are_ordered_by_their_mean_share_of_the_best() -> None:
    # ours 1 and 1/3, most popular 3/4 and 1, ALS 2/3, EASE 1/2.
    assert ordered(PANELS) == ["most popular", "ours", "ALS", "EASE"]
    assert ordered(PANELS, last=("most popular",)) == ["ours", "ALS", "EASE", "most popular"]


def test_panels_have_the_same_rows_and_name_them_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    colours = dict.fromkeys(("most popular", "EASE", "ALS"), REFERENCE) | {"ours": OURS}
    files = tmp_path / "bars.png", tmp_path / "bars.svg"
    with drawn(*files) as figure:
        left, right = figure.subplots(1, 2)
        draw_panels([left, right], PANELS, colours, across=2, last=("most popular",), line=0.5)
    assert [label.get_text() for label in left.get_yticklabels()] == ["ours", "ALS", "EASE", "most popular"]
    assert {label.get_text() for label in right.get_yticklabels()} == {""}
    assert [text.get_text() for text in left.texts] == ["0.400", " not run", "0.200", "0.300"]
    assert [text.get_text() for text in right.texts] == ["ten", "20.000", " not run", "30.000"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    first = files[1].read_bytes()
    with drawn(*files) as figure:
        left, right = figure.subplots(1, 2)
        draw_panels([left, right], PANELS, colours, across=2, last=("most popular",), line=0.5)
    assert files[1].read_bytes() == first
    with pytest.raises(HdccfError, match="exists"), drawn(files[1], overwrite=False):
        pass


def test_without_matplotlib_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"hdccf\[plots\]"), drawn(tmp_path / "a.png"):
        pass
    assert not list(tmp_path.iterdir())
