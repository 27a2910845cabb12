"""Makes the screenshots of the documentation with the page's own tests: python tools/screenshots.py

The tests open every view on a run of MovieLens 100K, at desktop and phone size, light and dark, and check it while
they take its picture. All pictures are in build/screenshots; those that the documentation shows go to docs/images.
"""

import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

import hdccf
from hdccf.data import datasets

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
    tests = str(ROOT / "tests" / "serving" / "test_page.py")
    options = ["--screenshots", str(BUILD), "--screenshots-run", str(run)]
    failed = pytest.main(["-n", "0", tests, "-k", "fits_and_is_readable", *options])
    if failed:
        sys.exit(int(failed))
    for name, taken in IMAGES.items():
        shutil.copyfile(BUILD / f"{taken}.png", ROOT / "docs" / "images" / f"{name}.png")


def prepare(run: Path) -> None:
    """The default model and two simple ones beside it, evaluated; genres and years of the films."""
    split = hdccf.leave_one_out(hdccf.load("ml-100k", core=5))
    for settings, out in (
        (hdccf.EASE(), run.with_name("ease")),
        (hdccf.MostPopular(), run.with_name("most-popular")),
        (hdccf.HDCCF(), run),
    ):
        hdccf.fit(split, settings, seed=0, out=out)
        hdccf.evaluate(out)
    films = pl.read_csv(datasets.get("ml-100k") / "ml-100k.item", separator="\t", infer_schema=False)
    number, _, year, genres = films.columns
    films = films.select(
        id=number, genres=pl.col(genres).str.split(" "), year=pl.col(year).cast(pl.Int64, strict=False)
    )
    known = split.train.item_ids.cast(pl.String).to_list()
    hdccf.load_run(run).with_features(films.filter(pl.col("id").is_in(known)))


if __name__ == "__main__":
    main()
