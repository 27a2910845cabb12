"""Reading and k-core against pandas, on one synthetic log of 10 million rows, as Parquet and as CSV.

    python benchmarks/bench_data.py            10 million rows
    python benchmarks/bench_data.py --quick    1.5 million rows, within a minute
    python benchmarks/bench_data.py --json     also one JSON object of ratios on the last line

The log has a million users with log-normal activity, 100,000 items whose popularity is a power law, ids such
as u123 and i456, and rows in order of time over three years; `--quick` shrinks users and items as it shrinks
rows. Both sides read the same file in the same process, by turns, and a ratio compares the best run of each:
above 1, hdccf is faster. pandas' side is what is usual: read, factorize, SciPy CSR in both directions; times
are read but not kept, and repeats are not counted.
"""

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

import hdccf


def event_log(rows: int, seed: int = 0) -> pl.DataFrame:
    """Users with a log-normal activity, items with a power law, in order of time."""
    users = pl.Series([f"u{number}" for number in range(rows // 10)])
    items = pl.Series([f"i{number}" for number in range(rows // 100)])
    return _log(rows, users, items, np.random.default_rng(seed))


def _log(rows: int, users: pl.Series, items: pl.Series, rng: np.random.Generator) -> pl.DataFrame:
    activity, appeal = rng.lognormal(0, 1.0, len(users)), 1 / np.arange(1, len(items) + 1) ** 0.8
    return pl.DataFrame(
        {
            "customer_id": users.gather(rng.permutation(len(users))[_draw(activity, rows, rng)]),
            "product_id": items.gather(rng.permutation(len(items))[_draw(appeal, rows, rng)]),
            "timestamp": np.sort(rng.integers(1_600_000_000, 1_700_000_000, rows)),
        }
    )


def _draw(weights: NDArray[np.float64], rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(rows))


def read_pandas(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def usual_pandas(path: Path) -> object:
    """Read, factorize, SciPy CSR in both directions. Times are read, but end up nowhere."""
    frame = read_pandas(path)
    users, user_ids = pd.factorize(frame["customer_id"])
    items, item_ids = pd.factorize(frame["product_id"])
    return _both_ways(users, items, len(user_ids), len(item_ids)), user_ids, item_ids


def _both_ways(users: NDArray[np.int64], items: NDArray[np.int64], n_users: int, n_items: int) -> object:
    ones = np.ones(len(users), np.float32)
    by_user = sparse.csr_matrix((ones, (users, items)), shape=(n_users, n_items))
    return by_user, by_user.tocsc()


def ours(path: Path) -> object:
    data = hdccf.read(path)
    return data, data.by_user, data.by_item


def pandas_core(frame: pd.DataFrame) -> pd.DataFrame:
    """The usual loop: count by group, keep those with five, until nothing changes."""
    while True:
        users = frame.groupby("user")["user"].transform("size")
        items = frame.groupby("item")["item"].transform("size")
        kept = frame[(users >= 5) & (items >= 5)]
        if len(kept) == len(frame):
            return kept
        frame = kept


def best_of(runs: int, *sides: Callable[[], object]) -> list[float]:
    """The best time of each side; they take turns, so that a busy moment of the machine meets all of them."""
    best = [float("inf")] * len(sides)
    for _ in range(runs):
        for number, side in enumerate(sides):
            start = time.perf_counter()
            result = side()
            best[number] = min(best[number], time.perf_counter() - start)
            del result
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1.5 million rows instead of 10")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    arguments = parser.parse_args()
    rows, runs = (1_500_000, 3) if arguments.quick else (10_000_000, 3)
    ratios: dict[str, float] = {}
    print(f"{rows:,} rows; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        log = event_log(rows)
        for kind in ("parquet", "csv"):
            path = Path(name) / f"log.{kind}"
            log.write_parquet(path) if kind == "parquet" else log.write_csv(path)
            measure_reading(path, kind, runs, ratios)
        measure_core(hdccf.read(path), runs, ratios)
    if arguments.json:
        print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


def measure_reading(path: Path, kind: str, runs: int, ratios: dict[str, float]) -> None:
    mine, usual = best_of(runs, lambda: ours(path), lambda: usual_pandas(path))
    ratios[f"{kind}_faster_than_pandas"] = usual / mine
    print(f"{kind}: hdccf.read {mine:.2f} s, pandas {usual:.2f} s: {usual / mine:.2f} times as fast")


def measure_core(data: hdccf.Interactions, runs: int, ratios: dict[str, float]) -> None:
    frame = pd.DataFrame({"user": data.user_ids.gather(data.users), "item": data.item_ids.gather(data.items)})
    mine, usual = best_of(runs, lambda: hdccf.k_core(data, users=5, items=5), lambda: pandas_core(frame))
    core, kept = hdccf.k_core(data, users=5, items=5), pandas_core(frame)
    if len(core) != len(kept):
        raise SystemExit(f"the 5-cores differ: {len(core)} pairs here, {len(kept)} with pandas")
    ratio = usual / mine
    ratios["five_core_faster_than_pandas"] = ratio
    print(f"5-core: {mine:.2f} s, {ratio:.1f} times faster than the pandas group-by loop ({usual:.2f} s)")


if __name__ == "__main__":
    main()
