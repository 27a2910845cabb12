"""Reading and k-core against pandas, on one synthetic log of 10 million rows, as Parquet and as CSV.

    python benchmarks/bench_data.py            10 million rows
    python benchmarks/bench_data.py --quick    1.5 million rows and the main shape only, within a minute
    python benchmarks/bench_data.py --json     also one JSON object of ratios on the last line

The main log has the shape of a service with regular users: 200,000 users with log-normal activity, 50,000
items whose popularity is a power law, ids such as user_0012345 and item-00042, and rows in order of time
over three years. A second shape, without a goal, is a shop before any filtering: 2.5 million customers who
mostly buy once or twice, and ids of 14 and 10 random characters. `--quick` shrinks users and items as it
shrinks rows. Files are what Polars' own writers make by default: Parquet with dictionary pages in several
row groups. The main log is also read from what pyarrow writes by default, which has no goal either.

Both sides read the same file in the same process, by turns, and the ratio of times compares the best run of
each. The ratio of processor time is printed too: it says what is left where other jobs leave no processor
for a second thread. The first read of a process also loads the compiled loops, and the first on a machine
compiles them; neither is in the best run, so both are timed in processes of their own and printed.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet
from numpy.typing import NDArray
from scipy import sparse

import hdccf

_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)
_MEMORY_PROBE = """
import contextlib, io, pathlib, sys
import hdccf, polars
from hdccf.data import compiled
compiled.LEAST_ROWS = 50_000
def status(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
with contextlib.redirect_stderr(io.StringIO()):
    # What a process needs only once (threads, allocators, libraries) is not the data's.
    ids = [str(number) for number in range(compiled.LEAST_ROWS)]
    hdccf.read(polars.DataFrame({"user": ids, "item": ids})).by_item
    del ids
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    data = hdccf.read(sys.argv[1])
    data.by_user, data.by_item
print(status("VmHWM") - before)
"""
_FIRST_READ = """
import contextlib, io, sys, time
import hdccf, polars
hdccf.Interactions
start = time.perf_counter()
with contextlib.redirect_stderr(io.StringIO()):
    hdccf.read(sys.argv[1])
print(time.perf_counter() - start)
"""


def regular_log(rows: int, seed: int = 0) -> pl.DataFrame:
    """Users with a log-normal activity, items with a power law, in order of time."""
    n_users, n_items = rows // 50, rows // 200
    users = pl.Series([f"user_{number:07d}" for number in range(n_users)])
    items = pl.Series([f"item-{number:05d}" for number in range(n_items)])
    return _log(rows, users, items, 1.0, np.random.default_rng(seed))


def shop_log(rows: int, seed: int = 0) -> pl.DataFrame:
    """Customers who mostly come once or twice, with random ids."""
    rng = np.random.default_rng(seed)
    return _log(rows, _texts("A", rows * 2 // 5, 13, rng), _texts("B0", rows // 20, 8, rng), 1.3, rng)


def _log(
    rows: int, users: pl.Series, items: pl.Series, spread: float, rng: np.random.Generator
) -> pl.DataFrame:
    activity, appeal = rng.lognormal(0, spread, len(users)), 1 / np.arange(1, len(items) + 1) ** 0.8
    return pl.DataFrame(
        {
            "customer_id": users.gather(rng.permutation(len(users))[_draw(activity, rows, rng)]),
            "product_id": items.gather(rng.permutation(len(items))[_draw(appeal, rows, rng)]),
            "timestamp": np.sort(rng.integers(1_600_000_000, 1_700_000_000, rows)),
        }
    )


def _draw(weights: NDArray[np.float64], rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(rows))


def _texts(prefix: str, count: int, length: int, rng: np.random.Generator) -> pl.Series:
    letters = _ALPHABET[rng.integers(0, len(_ALPHABET), (count, length))].tobytes().decode()
    return pl.Series([prefix + letters[start : start + length] for start in range(0, len(letters), length)])


def own_size(frame: pl.DataFrame) -> int:
    """The bytes of the columns in Arrow's layout: the texts, a 4-byte offset for each, and 8-byte times."""
    texts = sum(int(frame[name].str.len_bytes().sum()) for name in ("customer_id", "product_id"))
    return texts + frame.height * (4 + 4 + 8)


def read_pandas(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def usual_pandas(path: Path) -> object:
    """Read, factorize, SciPy CSR in both directions. Times are read, but end up nowhere."""
    frame = read_pandas(path)
    users, user_ids = pd.factorize(frame["customer_id"])
    items, item_ids = pd.factorize(frame["product_id"])
    return _both_ways(users, items, len(user_ids), len(item_ids)), user_ids, item_ids


def pandas_to_the_same(path: Path) -> object:
    """The same, and what `Interactions` holds besides: each pair's earliest time and count, by time."""
    frame = read_pandas(path)
    users, user_ids = pd.factorize(frame["customer_id"])
    items, item_ids = pd.factorize(frame["product_id"])
    rows = pd.DataFrame({"user": users, "item": items, "time": frame["timestamp"]})
    pairs = rows.groupby(["user", "item"], sort=False)["time"].agg(["min", "size"]).reset_index()
    pairs = pairs.sort_values(["user", "min"], kind="stable")
    both = _both_ways(pairs["user"].to_numpy(), pairs["item"].to_numpy(), len(user_ids), len(item_ids))
    return both, pairs, user_ids, item_ids


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


class Best(NamedTuple):
    """The best run of one side."""

    seconds: float
    processor: float


def best_of(runs: int, *sides: Callable[[], object]) -> list[Best]:
    """The best time of each side; they take turns, so that a busy moment of the machine meets all of them."""
    best = [Best(float("inf"), float("inf"))] * len(sides)
    for _ in range(runs):
        for number, side in enumerate(sides):
            start, processor = time.perf_counter(), time.process_time()
            result = side()
            taken = time.perf_counter() - start, time.process_time() - processor
            best[number] = Best(*(min(pair) for pair in zip(best[number], taken, strict=True)))
            del result
    return best


def peak_growth(path: Path) -> int:
    """By how much the peak memory of a fresh process grows while it reads the file."""
    return int(_in_a_process(_MEMORY_PROBE, path))


def first_read(path: Path, **environment: str) -> float:
    """How long the first read of a fresh process takes, with all that it has to load."""
    return float(_in_a_process(_FIRST_READ, path, **environment))


def _in_a_process(code: str, path: Path, **environment: str) -> str:
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1.5 million rows instead of 10")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    arguments = parser.parse_args()
    rows, runs = (1_500_000, 3) if arguments.quick else (10_000_000, 2)
    ratios: dict[str, float] = {}
    print(f"{rows:,} rows; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        log = regular_log(rows)
        measure_log(log, "", folder, runs, ratios)
        pyarrow.parquet.write_table(log.to_arrow(), folder / "pyarrow.parquet")
        measure_reading(folder / "pyarrow.parquet", "pyarrow_parquet", runs, own_size(log), ratios)
        data = hdccf.read(folder / "log.parquet")
        measure_core(data, runs, ratios)
        measure_loading(folder, ratios)
        if not arguments.quick:
            measure_log(shop_log(rows), "shop_", folder, 1, ratios)
    if arguments.json:
        print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


def measure_log(log: pl.DataFrame, shape: str, folder: Path, runs: int, ratios: dict[str, float]) -> None:
    size = own_size(log)
    n_users, n_items = log["customer_id"].n_unique(), log["product_id"].n_unique()
    print(f"{n_users:,} users, {n_items:,} items; the columns' own size is {size / 1e6:,.0f} MB")
    for kind in ("parquet", "csv"):
        path = folder / f"log.{kind}"
        log.write_parquet(path) if kind == "parquet" else log.write_csv(path)
        measure_reading(path, shape + kind, runs, size, ratios)


def measure_reading(path: Path, kind: str, runs: int, size: int, ratios: dict[str, float]) -> None:
    mine, usual, same = best_of(
        runs, lambda: ours(path), lambda: usual_pandas(path), lambda: pandas_to_the_same(path)
    )
    growth = peak_growth(path)
    print(f"{kind}: hdccf.read with CSR both ways {mine.seconds:.2f} s, processor {mine.processor:.2f} s")
    sides = {"usual_pandas": usual, "pandas_to_the_same_result": same}
    for name, side in sides.items():
        ratios[f"{kind}_faster_than_{name}"] = side.seconds / mine.seconds
        ratios[f"{kind}_processor_time_of_{name}"] = side.processor / mine.processor
        print(
            f"  {side.seconds / mine.seconds:4.1f} times faster than {name.replace('_', ' ')} "
            f"({side.seconds:.2f} s), {side.processor / mine.processor:.1f} times in processor time "
            f"({side.processor:.2f} s)"
        )
    ratios[f"{kind}_peak_memory_over_columns"] = growth / size
    print(f"  peak memory {growth / 1e6:,.0f} MB: {growth / size:.2f} times the columns' own size")


def measure_loading(folder: Path, ratios: dict[str, float]) -> None:
    path = folder / "log.parquet"
    loaded = first_read(path)
    compiling = first_read(path, NUMBA_CACHE_DIR=str(folder / "no-cache-yet"))
    ratios["first_read_seconds"], ratios["first_read_compiling_seconds"] = loaded, compiling
    print(f"first read of a process: {loaded:.2f} s; {compiling:.2f} s where the loops are compiled first")


def measure_core(data: hdccf.Interactions, runs: int, ratios: dict[str, float]) -> None:
    frame = pd.DataFrame({"user": data.user_ids.gather(data.users), "item": data.item_ids.gather(data.items)})
    mine, usual = best_of(runs, lambda: hdccf.k_core(data, users=5, items=5), lambda: pandas_core(frame))
    core, kept = hdccf.k_core(data, users=5, items=5), pandas_core(frame)
    if len(core) != len(kept):
        raise SystemExit(f"the 5-cores differ: {len(core)} pairs here, {len(kept)} with pandas")
    ratio = usual.seconds / mine.seconds
    ratios["five_core_faster_than_pandas"] = ratio
    print(
        f"5-core: {mine.seconds:.2f} s, {ratio:.1f} times faster than the pandas group-by loop "
        f"({usual.seconds:.2f} s)"
    )


if __name__ == "__main__":
    main()
