"""A small run with integer ids, which generated requests hit often, and with titles."""

from collections.abc import Callable

import polars as pl
from fastapi.testclient import TestClient

import hdccf
from graphs import tastes
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split

KEY = "a-key-for-these-tests"

Serving = Callable[..., TestClient]
"""A client of an app, by a run's folder and settings."""


def titled_split(seed: int = 0) -> Split:
    """Users 0 to 39, items 0 to 29."""
    data = tastes(seed)
    titles = pl.Series(
        [f"The Café of Number {item}" if item % 3 else f"Harbour {item}" for item in range(30)]
    )
    users, items = pl.Series(range(40)), pl.Series(range(30))
    return hdccf.leave_one_out(
        Interactions(data.users, data.items, data.times, data.counts, users, items, titles)
    )


def attributes() -> pl.DataFrame:
    """Items 0 to 34, of which the last five have no interactions."""
    numbers = range(35)
    return pl.DataFrame(
        {
            "id": list(numbers),
            "title": [f"Item {n}" for n in numbers],
            "parity": ["odd" if n % 2 else "even" for n in numbers],
            "price": [float(n) for n in numbers],
        }
    )
