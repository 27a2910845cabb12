"""Every Python block of README and docs runs, on small data; every `hdccf` line of a console block parses."""

import re
import shlex
import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from scipy import sparse

import hdccf
from hdccf.cli import app
from hdccf.data import datasets

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALLER = {
    "100_000": "3_000",
    "range(8)": "range(1)",
    "epochs=20": "epochs=1",
    "trials=30": "trials=1, epochs=1",
}
"""What is large in a snippet."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def small_events() -> pl.DataFrame:
    """320 users and items by number, with times, ratings and event types."""
    pairs = np.random.default_rng(0)
    users, items = (
        np.repeat(np.arange(1, 321), 20),
        np.concatenate([pairs.permutation(320)[:20] for _ in range(320)]),
    )
    return pl.DataFrame(
        {
            "uid": users,
            "sku": items + 1,
            "rating": pairs.integers(1, 6, len(users)),
            "ts": 1_600_000_000 + pairs.permutation(len(users)),
            "type": pairs.choice(["view", "cart", "buy"], len(users)),
        }
    )


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder with the files that snippets name; named data sets, and the automatic choice, are small."""
    monkeypatch.chdir(tmp_path)
    events = small_events()
    plain = events.select("uid", "sku", "ts")
    for name in ("events.csv", "orders.csv"):
        plain.write_csv(name)
    plain.write_parquet("events.parquet")
    events.select("uid", "sku", "rating", "ts").write_csv("ratings.dat", separator="\t", include_header=False)
    events.select("uid", "sku", "ts", "type").write_csv("clicks.csv")
    genres = [["Comedy"] if number % 2 else ["Drama", "Comedy"] for number in range(1, 321)]
    pl.DataFrame({"id": range(1, 321), "genres": genres}).write_parquet("items.parquet")
    Path("logs").mkdir()
    plain.rename({"uid": "customer_id"}).write_parquet("logs/2024-01.parquet")
    with sqlite3.connect("shop.db") as shop:
        shop.execute("create table events (user_id, item_id, created_at)")
        shop.executemany("insert into events values (?, ?, ?)", plain.rows())
    shop.close()
    data = hdccf.read(plain, user="uid", item="sku", time="ts")
    split = hdccf.leave_one_out(data)
    monkeypatch.setattr(datasets, "load", lambda name, **_: data)
    monkeypatch.setattr(datasets, "load_split", lambda name: split)
    quick = {"quick": hdccf.HDCCF(epochs=1, embedding_dim=8)}
    monkeypatch.setattr("hdccf.training.fit.automatic_candidates", lambda *_, **__: quick)
    hdccf.fit(split, hdccf.HDCCF(epochs=1, embedding_dim=8, user_vector="free"), out="runs/time-blind")
    return {
        "hdccf": hdccf,
        "frame": plain,
        "matrix": sparse.csr_array(np.eye(30, 40, dtype=np.float32)),
    }


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem
)
def test_python_blocks_run(page: Path, reader: dict[str, Any]) -> None:
    for number, block in enumerate(blocks(page, "python")):
        for large, small in SMALLER.items():
            block = block.replace(large, small)
        exec(compile(block, f"{page.name}, block {number}", "exec"), reader)


def commands() -> Iterator[str]:
    for page in PAGES:
        for block in blocks(page, "console"):
            for line in re.findall(r"^\$ (hdccf .*(?:\\\n.*)*)", block, re.MULTILINE):
                yield f"{page.name}: {line}"


def arguments_of(line: str) -> list[str]:
    """Up to a pipe or a redirection; `…` is the reader's."""
    words = shlex.split(line.partition(": ")[2], comments=True)
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&", "&&", ";")]
    return [word for word in words[1 : min(ends, default=None)] if word != "…"]


def without_work(command: Any) -> Any:
    """The command with its options and nothing behind them."""
    command.callback = lambda **_: None
    for child in getattr(command, "commands", {}).values():
        without_work(child)
    return command


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_parse(line: str) -> None:
    without_work(typer.main.get_command(app)).main(
        args=arguments_of(line), prog_name="hdccf", standalone_mode=False
    )


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(typer.TyperException, match="--nonsense"):
        test_commands_parse("page: hdccf train --nonsense 3")


def test_the_readme_names_every_extra_and_the_version_of_torch() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"dev", "docs", "mutants"}
    assert [extra for extra in extras if f"`{extra}`" not in readme] == []
    pinned = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert f"pip install {pinned[0]} " in readme
