"""Makes the screenshots of the documentation with the page's own tests: python tools/screenshots.py

The tests open every view on a run of MovieLens 100K, at desktop and phone size, light and dark, and check it
while they take its picture. build/screenshots has all pictures, docs/images those of the documentation.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl

from hdccf.data import datasets
from hdccf.recommend.recommender import load_run

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "screenshots"
IMAGES = {
    "page": "user-desktop-light",
    "page-start": "start-desktop-light",
    "page-service": "service-desktop-light",
    "page-negatives": "negatives-desktop-light",
    "page-phone": "user-phone-dark",
}


def main() -> None:
    run = BUILD / "runs" / "first"
    if not run.exists():
        prepare(run)
    tests = ROOT / "tests" / "serving" / "test_page.py"
    options = ["--screenshots", BUILD, "--screenshots-run", run]
    command("pytest", "-n", "0", tests, "-k", "fits_and_is_readable", *options)
    for name, taken in IMAGES.items():
        shutil.copyfile(BUILD / f"{taken}.png", ROOT / "docs" / "images" / f"{name}.png")


def prepare(run: Path) -> None:
    """The default model and two simple ones beside it, evaluated; genres and years of the films."""
    for name, out in (("ease", "ease"), ("most-popular", "most-popular"), ("hdccf", run.name)):
        command("hdccf", "train", "--dataset", "ml-100k", "--model", name, "--out", run.with_name(out))
        command("hdccf", "evaluate", run.with_name(out))
    films = pl.read_csv(datasets.get("ml-100k").folder / "ml-100k.item", separator="\t", infer_schema=False)
    number, _, year, genres = films.columns
    years = pl.col(year).cast(pl.Int64, strict=False)
    films = films.select(id=number, genres=pl.col(genres).str.split(" "), year=years)
    known = load_run(run).split.train.item_ids.cast(pl.String).to_list()
    films.filter(pl.col("id").is_in(known)).write_parquet(BUILD / "films.parquet")
    command("hdccf", "items", run, BUILD / "films.parquet")


def command(name: str, *arguments: object) -> None:
    subprocess.run([Path(sys.executable).with_name(name), *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
