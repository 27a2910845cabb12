"""Writes events to play with: who watched what when, in a world of invented films.

python examples/make_events.py events.csv [--events 100000]
"""

import argparse
from pathlib import Path

import polars as pl

import hdccf


def main() -> None:
    parser = argparse.ArgumentParser(description="Write events to play with.")
    parser.add_argument("file", type=Path, help="a CSV file")
    parser.add_argument("--events", type=int, default=100_000)
    options = parser.parse_args()
    data = hdccf.synthetic_world(options.events, seed=0).interactions
    assert data.times is not None
    assert data.titles is not None
    frame = pl.DataFrame(
        {
            "who": data.user_ids.gather(data.users),
            "film": data.item_ids.gather(data.items),
            "watched_at": data.times // 1_000_000,
            "title": data.titles.gather(data.items),
        }
    )
    frame.sort("watched_at").write_csv(options.file)
    print(f"{options.file}: {len(frame):,} events")


if __name__ == "__main__":
    main()
