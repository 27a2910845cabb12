"""Reading and k-core against pandas, on one synthetic shop's log of 10 million rows, as Parquet and as CSV.

    python benchmarks/bench_data.py            10 million rows
    python benchmarks/bench_data.py --quick    1 million rows, within a minute
    python benchmarks/bench_data.py --json     also one JSON object of ratios on the last line

The log has the shape of the public shop logs before any filtering: most customers buy once or twice, a few
products sell most, ids are texts of 14 and 10 characters, and rows come in order of time. Both sides read the
same file in the same process, by turns; a ratio compares the best run of each.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
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

_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)
_MEMORY_PROBE = """
import contextlib, io, pathlib, sys
import hdccf, polars
def status(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
with contextlib.redirect_stderr(io.StringIO()):
    # What a process needs only once (threads, allocators, libraries) is not the data's.
    hdccf.read(polars.DataFrame({"user": range(50_000), "item": range(50_000)})).by_item
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    data = hdccf.read(sys.argv[1])
    data.by_user, data.by_item
print(status("VmHWM") - before)
"""


def shop_log(rows: int, seed: int = 0) -> pl.DataFrame:
    """Customers with a log-normal appetite, products with a power law, in order of time."""
    rng = np.random.default_rng(seed)
    n_users, n_items = rows * 2 // 5, rows // 20
    appetite, appeal = rng.lognormal(0, 1.3, n_users), 1 / np.arange(1, n_items + 1) ** 0.8
    users = rng.permutation(n_users)[_draw(appetite, rows, rng)]
    items = rng.permutation(n_items)[_draw(appeal, rows, rng)]
    return pl.DataFrame(
        {
            "customer_id": _texts("A", n_users, 13, rng).gather(users),
            "product_id": _texts("B0", n_items, 8, rng).gather(items),
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


def peak_growth(path: Path) -> int:
    """By how much the peak memory of a fresh process grows while it reads the file."""
    command = [sys.executable, "-c", _MEMORY_PROBE, str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1 million rows instead of 10")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    arguments = parser.parse_args()
    rows, runs = (1_000_000, 3) if arguments.quick else (10_000_000, 2)
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        log = shop_log(rows)
        size = own_size(log)
        print(f"{rows:,} rows; the columns' own size is {size / 1e6:,.0f} MB")
        for kind in ("parquet", "csv"):
            path = Path(folder) / f"log.{kind}"
            log.write_parquet(path) if kind == "parquet" else log.write_csv(path)
            measure_reading(path, kind, runs, size, ratios)
        data = hdccf.read(Path(folder) / "log.parquet")
    measure_core(data, runs, ratios)
    if arguments.json:
        print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


def measure_reading(path: Path, kind: str, runs: int, size: int, ratios: dict[str, float]) -> None:
    mine, usual, same = best_of(
        runs, lambda: ours(path), lambda: usual_pandas(path), lambda: pandas_to_the_same(path)
    )
    growth = peak_growth(path)
    ratios[f"{kind}_faster_than_usual_pandas"] = usual / mine
    ratios[f"{kind}_faster_than_pandas_to_the_same_result"] = same / mine
    ratios[f"{kind}_peak_memory_over_columns"] = growth / size
    print(f"{kind}: hdccf.read with CSR both ways {mine:.2f} s")
    print(f"  {usual / mine:4.1f} times faster than pandas read + factorize + SciPy CSR ({usual:.2f} s)")
    print(f"  {same / mine:4.1f} times faster than pandas to the same, with times and counts ({same:.2f} s)")
    print(f"  peak memory {growth / 1e6:,.0f} MB: {growth / size:.2f} times the columns' own size")


def measure_core(data: hdccf.Interactions, runs: int, ratios: dict[str, float]) -> None:
    frame = pd.DataFrame({"user": data.user_ids.gather(data.users), "item": data.item_ids.gather(data.items)})
    mine, usual = best_of(runs, lambda: hdccf.k_core(data, users=5, items=5), lambda: pandas_core(frame))
    core, kept = hdccf.k_core(data, users=5, items=5), pandas_core(frame)
    if len(core) != len(kept):
        raise SystemExit(f"the 5-cores differ: {len(core)} pairs here, {len(kept)} with pandas")
    ratios["five_core_faster_than_pandas"] = usual / mine
    print(
        f"5-core: {mine:.2f} s, {usual / mine:.1f} times faster than the pandas group-by loop ({usual:.2f} s)"
    )


if __name__ == "__main__":
    main()
