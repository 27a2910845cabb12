"""Private endpoints of the web page: histories, item attributes, the lens, runs, and metrics.

They may change with the page, so they are no part of the OpenAPI description.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import numpy as np
import polars as pl
from fastapi import APIRouter, Query

from hdccf.errors import DataError
from hdccf.recommend.lens import negatives_of
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder, data_facts, facts_of, runs_beside, settings_table
from hdccf.serving.bodies import MAX_TOP
from hdccf.serving.service import Served, Service, require_known

page_router = APIRouter(prefix="/v1/page", include_in_schema=False)

UserId = Annotated[str, Query(min_length=1, max_length=256)]
_MOST_HISTORY = 200
_DIGITS = 6
_MOST_CHOICES = 100
_MOST_FILTERS = 8
_LONGEST_TEXT = 80


@page_router.get("/history")
async def history(
    service: Service, user: UserId, limit: Annotated[int, Query(ge=1, le=_MOST_HISTORY)] = 50
) -> dict[str, Any]:
    """A user's history, the latest first, and which of it was held out from training."""
    return await service.answer(lambda served: _history(served, user, limit))


@page_router.get("/lens")
async def lens(
    service: Service,
    user: UserId,
    k: Annotated[int, Query(ge=1, le=MAX_TOP)] = 20,
    omega: Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)] = None,
) -> dict[str, Any]:
    """The hardest unobserved items of a user, as training saw them; without `omega` the lens chooses it."""
    return await service.answer(lambda served: _lens(served, user, k, omega))


@page_router.get("/filters")
async def filters(service: Service) -> dict[str, Any]:
    """Attributes of items, and the values to filter by of those that have few."""
    return await service.answer(_filters)


@page_router.get("/attributes")
async def attributes(
    service: Service, item: Annotated[list[str], Query(min_length=1, max_length=_MOST_HISTORY)]
) -> dict[str, Any]:
    """The attributes of some items as texts; unknown items are left out."""
    return await service.answer(lambda served: _attributes(served, item))


@page_router.get("/run")
async def run(service: Service) -> dict[str, Any]:
    """The run that answers: settings, data, curves."""
    return await service.answer(_run)


@page_router.get("/runs")
async def runs(service: Service) -> dict[str, Any]:
    """The run that answers and those in the same folder, with their curves and kept evaluations."""
    return await service.answer(
        lambda served: {
            "own": served.path.name,
            "runs": [facts_of(each) for each in runs_beside(served.path)],
        }
    )


@page_router.get("/metrics")
async def metrics(service: Service) -> dict[str, Any]:
    """The service's counters over the last hour."""
    return service.timeline.series()


# -- jobs, in a thread of the pool ---------------------------------------------------------------------------


def _row(known: Recommender, user: str) -> int:
    require_known(known.users, [user])
    return int(known.users.codes([user])[0])


def _history(served: Served, user: str, limit: int) -> dict[str, Any]:
    known = served.recommender
    logged = [] if served.events is None else served.events.events_of(served.key(user))[::-1]
    row = known.users.find(user) if logged else _row(known, user)
    events = known.events
    places = np.arange(*events.by_user.starts[row : row + 2])[::-1] if row is not None else np.zeros(0, int)
    trained = set() if row is None else set(known.split.train.by_user.of(row).tolist())
    rows = []
    for time, item_id in logged[:limit]:
        code = known.items.find(item_id)
        named = {"item": item_id, "title": None} if code is None else _named(known, code)
        rows.append({**named, "time": time.date().isoformat(), "held_out": False, "fresh": True})
    for place in places[:limit]:
        item = int(events.items[place])
        rows.append(
            {
                **_named(known, item),
                "time": None if events.times is None else _day(int(events.times[place])),
                "held_out": item not in trained,
                "fresh": False,
            }
        )
    return {"user": user, "events": len(logged) + len(places), "items": rows[:limit]}


def _shown(known: Recommender) -> pl.DataFrame:
    """The attributes of all items without titles, which are shown anyway, and vectors."""
    if known.item_table is None:
        return pl.DataFrame()
    plain = [
        column
        for column in known.attributes.drop("given", "title", strict=False)
        if not isinstance(column.dtype, pl.Array | pl.Struct | pl.Object)
        and not (isinstance(column.dtype, pl.List) and column.dtype.inner.is_numeric())
    ]
    return pl.DataFrame(plain)


def _filters(served: Served) -> dict[str, Any]:
    columns = _shown(served.recommender)
    made = []
    for column in columns:
        each = column.explode() if isinstance(column.dtype, pl.List) else column
        # As filters compare them: numbers and truth values by value, all else as text.
        plain = each if each.dtype.is_numeric() or each.dtype == pl.Boolean else each.cast(pl.String)
        values = plain.drop_nulls().unique().sort()
        if values.dtype.is_float():
            values = values.filter(values.is_finite())
        if 1 < len(values) <= _MOST_CHOICES:
            made.append({"name": column.name, "values": values.to_list()})
    return {"attributes": columns.columns, "filters": made[:_MOST_FILTERS]}


def _attributes(served: Served, items: list[str]) -> dict[str, Any]:
    known = served.recommender
    codes = known.items.known(items)
    columns = _shown(known)
    rows = columns[codes].to_dicts() if columns.width else [{} for _ in codes]
    texts = [{name: _text(value) for name, value in row.items()} for row in rows]
    return {
        "items": [
            {"item": known.split.train.item_ids[int(code)], "attributes": {k: v for k, v in row.items() if v}}
            for code, row in zip(codes, texts, strict=True)
        ]
    }


def _text(value: Any) -> str:
    if isinstance(value, list):
        return _text(", ".join(str(one) for one in value if one is not None))
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _lens(served: Served, user: str, k: int, omega: float | None) -> dict[str, Any]:
    known = served.recommender
    row = _row(known, user)
    made = served.lens
    chosen, source = omega, "chosen"
    if chosen is None:
        own = known.settings.false_negative_rate
        chosen, source = (own, "run") if own else (made.omega_mid, "bounds")
    found = negatives_of(made, known.model, known, known.split, row, k=k, omega=chosen)
    shares = found.all_shares
    items = [
        {
            **_named(known, int(item)),
            "score": round(float(found.scores[place]), _DIGITS),
            "probability": round(float(found.probabilities[place]), _DIGITS),
            "share": None if found.shares is None else round(float(found.shares[place]), _DIGITS),
            "held_out": bool(found.held_out[place]),
        }
        for place, item in enumerate(found.items)
    ]
    return {
        "user": user,
        "omega": {"value": chosen, "source": source, "least": made.omega_min, "most": made.omega_max},
        "expected": round(found.expected, 2),
        "unobserved": known.n_items - len(known.split.train.by_user.of(row)),
        "weights": None if shares is None else {"stated": shares.stated, "effective": shares.effective},
        "items": items,
        "grid": _rounded(found.grid),
        "curves": {name: _rounded(values) for name, values in found.curves.items()},
    }


def _run(served: Served) -> dict[str, Any]:
    known = served.recommender
    return {
        **facts_of(RunFolder.open(served.path)),
        "settings": settings_table(known.settings),
        "data": data_facts(known.split),
    }


def _named(known: Recommender, item: int) -> dict[str, Any]:
    train = known.split.train
    return {"item": train.item_ids[item], "title": None if train.titles is None else train.titles[item]}


def _day(microseconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return None  # before the year 1 or after 9999: no meaningful date


def _rounded(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    if not np.isfinite(values).all():
        raise DataError("the model's scores are no numbers; train again")
    return [round(float(value), _DIGITS) for value in values]
