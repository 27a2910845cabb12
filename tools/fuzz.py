"""Feeds damaged files to the readers and damaged folders to what opens a run, and counts what goes wrong.

    python tools/fuzz.py --minutes 5 --cases 5000 --seed 0

A case is a file (CSV, JSON Lines, Parquet; plain, gzip or zstd), a folder of saved interactions or of a
split, the files of a named data set, or a run's folder, with random damage and random options. It must be
read, or refused by an `HdccfError` of one line. Anything else is a failure: another exception, a message of
several lines, more than ten seconds, or pairs that differ from those that Polars reads from the same file.
Failures are kept in --out with the seed of their case; the exit code is 1 where there is one.
"""

import argparse
import gzip
import io
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import hdccf
from hdccf.data.datasets import DATASETS
from hdccf.errors import HdccfError
from hdccf.evaluation.compare import evaluate_run
from hdccf.models import MODELS
from hdccf.recommend.run_folder import RunFolder, facts_of

SECONDS = 10.0
SNIPPETS = [
    *(b'"', b'""', b"'", b",", b"\t", b";", b"\n", b"\r\n", b"\r", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"NaN", b"null", b"None", b"inf", b"-1", b"1e308", b"9" * 25, b"a" * 140_000, b"{", b"}", b"[", b"\\"),
    *("é".encode("latin-1"), "日本".encode(), b"2024-13-45", b"0001-01-01", b"999999-12-31", b"1e300"),
]
Rng = np.random.Generator


def damaged(data: bytes, rng: Rng) -> bytes:
    """Some bytes changed, taken out, put in, repeated or cut off."""
    for _ in range(int(rng.choice([0, 1, 1, 1, 2, 3]))):
        at = int(rng.integers(0, len(data) + 1))
        end = min(len(data), at + int(rng.integers(1, 40)))
        kind = rng.choice(5, p=[0.4, 0.15, 0.2, 0.15, 0.1])
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([int(rng.integers(0, 256))]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:at] + SNIPPETS[int(rng.integers(len(SNIPPETS)))] + data[at:]
        elif kind == 3:
            data = data[:end] + data[at:end] * int(rng.integers(1, 4)) + data[end:]
        else:
            data = data[:at]
    return data


def events(rng: Rng) -> pl.DataFrame:
    """A few rows of users, items, times and ratings, as integers or as texts."""
    n = int(rng.integers(1, 30))
    numbers = pl.DataFrame(
        {
            "user": rng.integers(0, 6, n),
            "item": rng.integers(0, 9, n),
            "time": 1_600_000_000 + rng.integers(0, 10**8, n),
            "rating": rng.integers(1, 6, n).astype(float),
        }
    )
    if rng.random() < 0.5:
        return numbers
    return numbers.with_columns(
        pl.format("u{}", "user").alias("user"), pl.format("i,{}", "item").alias("item")
    )


def pairs_of(frame: pl.DataFrame) -> list[tuple[str, str]]:
    texts = frame.select(pl.col("user", "item").cast(pl.String)).unique()
    return sorted(texts.iter_rows())


def read_file(folder: Path, rng: Rng) -> bool:
    """One file of events, damaged; whether it was compared with Polars' own reading, where both read it."""
    kind = ("csv", "jsonl", "parquet")[int(rng.integers(3))]
    path, frame = folder / f"events.{kind}", events(rng)
    separator = ",\t;| "[int(rng.integers(5))] if rng.random() < 0.3 else ","
    if kind == "csv":
        frame.write_csv(path, separator=separator, include_header=bool(rng.random() < 0.9))
    elif kind == "jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_parquet(path, compression=("uncompressed", "zstd", "snappy")[int(rng.integers(3))])
    data, packing = path.read_bytes(), int(rng.integers(8)) if kind != "parquet" else 0
    pack = {1: gzip.compress, 2: zstd}.get(packing // 2, bytes)
    # Damaged before it is packed or after.
    data = damaged(pack(data), rng) if packing % 2 else pack(damaged(data, rng))
    path.write_bytes(data)
    options = options_for(kind, separator, rng)
    found = hdccf.read(path, **options)
    other_rows = "drop_nulls" in options and options.get("time") != ""  # those without a time are dropped too
    if other_rows or options.keys() & {"minimum_rating", "encoding", "quote", "format"}:
        return False
    theirs = polars_reads(path, kind, options)
    if theirs is not None and pairs_of(found.frame()) != theirs:
        raise AssertionError(f"read {pairs_of(found.frame())}, Polars reads {theirs}")
    return theirs is not None


def options_for(kind: str, separator: str, rng: Rng) -> dict[str, Any]:
    """Mostly those that fit, and at times others."""
    options: dict[str, Any] = (
        {"user": "user", "item": "item"} if rng.random() < 0.9 else {"user": 1, "item": 2}
    )
    if kind == "csv" and rng.random() < 0.8:
        options |= {"separator": separator, "header": True}
    rare: list[dict[str, Any]] = [
        {"rating": "rating", "minimum_rating": 3.0},
        {"drop_nulls": True, "time": ""},
        {"encoding": ("latin-1", "utf-16", "ascii", "cp1252")[int(rng.integers(4))]},
        {"quote": ("", "'")[int(rng.integers(2))]},
        {"format": ("csv", "tsv", "jsonl", "parquet")[int(rng.integers(4))]},
        {"time_format": ("%s", "%Y", "%d/%m/%Y", "%")[int(rng.integers(4))]},
        {"title": "rating"},
        {"time": "item"},
        {"separator": ("::", "::,", "é", "\x00", "\n", '"')[int(rng.integers(6))]},
    ]
    for more in rare:
        if rng.random() < (0.3 if "drop_nulls" in more else 0.03):
            options |= more
    if rng.random() < 0.4:
        options["time"] = ""
    return options


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def polars_reads(path: Path, kind: str, options: dict[str, Any]) -> list[tuple[str, str]] | None:
    """What Polars makes of the file, or None where it cannot read it, or may take ids for other types."""
    try:
        if kind == "csv":
            if options.get("separator") not in list(",\t;| ") or options["user"] != "user":
                return None
            frame = pl.read_csv(path, infer_schema=False, separator=options["separator"])
        elif kind == "jsonl":
            text = path.read_bytes()
            packed = {b"\x1f\x8b": gzip.decompress, b"\x28\xb5": lambda _: path}.get(text[:2], bytes)
            frame = pl.read_ndjson(packed(text), infer_schema_length=None)
        else:
            frame = pl.read_parquet(path)
        if any(not (kind.is_integer() or kind == pl.String) for kind in frame.select("user", "item").dtypes):
            return None
        if options.get("drop_nulls"):
            frame = frame.drop_nulls(["user", "item"])
        return None if frame.select("user", "item").null_count().sum_horizontal()[0] else pairs_of(frame)
    except BaseException:  # panics of Polars are no Exceptions
        return None


def open_folder(folder: Path, rng: Rng) -> None:
    """Saved interactions, a saved split, or the files of a named data set, with one damaged file."""
    place, frame = folder / "saved", pl.concat([events(rng), events(rng)], how="vertical_relaxed")
    kind = int(rng.integers(4))
    use: Callable[[Path], Any] = hdccf.read
    if kind == 0:
        hdccf.read(frame, user="user", item="item").save(place)
    elif kind == 1:
        hdccf.leave_one_out(hdccf.read(frame, user="user", item="item")).save(place)
        use = hdccf.Split.load
    else:
        name, separator, ending, titles = (("ml-100k", "\t", "data", "|"), ("ml-1m", "::", "dat", "::"))[
            kind - 2
        ]
        place.mkdir()
        use = DATASETS[name].sources[0].reader
        rows = frame.select(
            pl.col("user", "item").cast(pl.String).str.replace_all(r"\D", ""), "rating", "time"
        )
        texts = {"u.data" if ending == "data" else "ratings.dat": [map(str, row) for row in rows.rows()]}
        texts["u.item" if ending == "data" else "movies.dat"] = [
            (str(item), f"Title {item} (1999)", "x") for item in range(9)
        ]
        for (file, lines), mark in zip(texts.items(), (separator, titles), strict=True):
            (place / file).write_text("".join(mark.join(line) + "\n" for line in lines))
    damage_one(place, rng)
    use(place)


def damage_one(folder: Path, rng: Rng) -> None:
    """One file of a folder is edited, taken away or damaged."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = files[int(rng.integers(len(files)))]
    if chosen.suffix == ".json" and rng.random() < 0.5:
        chosen.write_text(json.dumps(edited(json.loads(chosen.read_text(encoding="utf-8")), rng)))
    elif chosen.suffix == ".parquet" and rng.random() < 0.3:
        frame = pl.read_parquet(chosen)
        column = frame.columns[int(rng.integers(frame.width))]
        values = (
            pl.lit(None),
            pl.col(column).cast(pl.String),
            pl.lit(-7),
            pl.col(column).cast(pl.Float64, strict=False),
        )
        changed = frame.with_columns(values[int(rng.integers(4))].alias(column))
        (frame.drop(column) if rng.random() < 0.2 else changed).write_parquet(chosen)
    elif rng.random() < 0.1:
        chosen.unlink()
    elif rng.random() < 0.1:
        chosen.unlink()
        chosen.mkdir()
    else:
        chosen.write_bytes(damaged(chosen.read_bytes(), rng))


def open_run(folder: Path, rng: Rng, trained: Path) -> None:
    """A run's folder with one damaged file, opened, asked, evaluated, described or resumed."""
    run = folder / "run"
    shutil.copytree(trained, run)
    damage_one(run, rng)
    uses: list[Callable[[], Any]] = [
        lambda: (known := hdccf.load_run(run)).recommend(known.split.train.user_ids.head(1), k=2),
        lambda: evaluate_run(hdccf.load_run(run), ks=[2]),
        lambda: facts_of(RunFolder.open(run)),
        lambda: hdccf.resume(run),
    ]
    uses[int(rng.integers(len(uses)))]()


def edited(value: Any, rng: Rng) -> Any:
    """JSON with one value replaced or taken out, however deep."""
    replacements = [None, -1, 1e300, "x" * 50, [], {}, True, [[1]]]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = sorted(value)[int(rng.integers(len(value)))]
        if rng.random() < 0.3:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: edited(value[key], rng)}
    return replacements[int(rng.integers(len(replacements)))]


def small_run(path: Path) -> Path:
    world = hdccf.synthetic_world(250, n_users=40, n_items=30, liked=0.4, seed=0)
    settings = MODELS["hdccf"].settings(epochs=1, embedding_dim=4)
    hdccf.fit(hdccf.leave_one_out(world.interactions), settings, out=path)
    return path


OUTCOMES = ("read", "compared", "refused")


def outcome(case: Callable[[], bool | None]) -> str:
    """One of `OUTCOMES`, or what went wrong."""
    started = time.monotonic()
    try:
        result = "compared" if case() else "read"
    except HdccfError as error:
        result = "refused" if "\n" not in str(error) and str(error) else f"not one line: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # panics of Polars are no Exceptions
        result = traceback.format_exc()
    seconds = time.monotonic() - started
    return result if seconds < SECONDS else f"took {seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"))
    given = parser.parse_args()
    end, counts = time.monotonic() + 60 * given.minutes, Counter[str]()
    with tempfile.TemporaryDirectory() as scratch, redirect_stderr(io.StringIO()):
        trained = small_run(Path(scratch) / "trained")
        for number in range(given.seed, given.seed + given.cases):
            if time.monotonic() > end:
                break
            rng, folder = np.random.default_rng(number), Path(scratch) / "case"
            folder.mkdir()
            draw = rng.random()
            case: Callable[[Path, Rng], bool | None] = read_file
            if draw < 0.3:
                case = partial(open_run, trained=trained) if draw < 0.15 else open_folder
            result = outcome(partial(case, folder, rng))
            counts[result if result in OUTCOMES else "failed"] += 1
            if result not in OUTCOMES:
                kept = given.out / f"case-{number}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                (kept / "failure.txt").write_text(result, encoding="utf-8")
                print(f"case {number}: {result.strip().splitlines()[-1][:150]}", flush=True)
            shutil.rmtree(folder)
    print(f"{sum(counts.values())} cases: {dict(counts)}")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
