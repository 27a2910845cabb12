"""The endpoints: recommendations and look-ups under /v1, health, readiness and metrics."""

import asyncio
import math
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from hdccf.data.event_log import LogFullError
from hdccf.errors import DiskFullError
from hdccf.recommend.frames import Vocabulary
from hdccf.serving import bodies
from hdccf.serving.middleware import Metrics, ProblemError, problem
from hdccf.serving.service import Served, Service, require_known, unknown_ids

answers = APIRouter(prefix="/v1", tags=["answers"])
lookups = APIRouter(prefix="/v1", tags=["looking up"])
operating = APIRouter(tags=["operating"])

Text = Annotated[str, Query(max_length=bodies.MAX_QUERY, description="Part of it; nothing finds all.")]
Limit = Annotated[int, Query(ge=1, le=bodies.MAX_FOUND, description="How many at most.")]


@answers.post("/recommend", summary="The best items for users", response_model=bodies.Recommended)
async def recommend(body: bodies.RecommendBody, service: Service) -> Response:
    """The k best items of each user, best first, for known users or for a new one with a history.

    Items in the history are left out unless asked for.
    """
    return await service.respond(lambda served: _recommended(served, body, service.metrics))


@answers.post("/similar", summary="Items like an item, or users like a user", response_model=bodies.Similar)
async def similar(body: bodies.SimilarBody, service: Service) -> Response:
    """By the model's own f where it was trained with one, otherwise by its vectors; `by` says which."""
    return await service.respond(lambda served: _similar(served, body))


@answers.post("/score", summary="The model's f of pairs", response_model=bodies.Scored)
async def score(body: bodies.ScoreBody, service: Service) -> Response:
    """Scores are comparable within a user, not between users."""
    return await service.respond(lambda served: _scored(served, body))


@answers.post("/explain", summary="Which own items explain a recommendation", response_model=bodies.Explained)
async def explain(body: bodies.ExplainBody, service: Service) -> Response:
    """Shares of a surrogate that is a sum over the user's items; how far to believe it is given with it."""
    return await service.respond(lambda served: _explained(served, body))


@answers.post("/events", summary="Events since the training")
async def events(body: bodies.EventsBody, service: Service) -> bodies.Recorded:
    """Takes events into the histories of their users at once; when it answers they are on the disk.

    An event whose id was sent before is counted and passed over, so that a request can be repeated. Users and
    items that the model does not know are accepted: they wait for the next training.
    """
    log = service.events
    if log is None:
        detail = "this server keeps no events; start it with --events FILE"
        raise ProblemError(problem(403, detail, "no-event-log"))
    try:
        done = await service.answer(lambda _: log.append(event.logged() for event in body.events))
    except (DiskFullError, LogFullError) as full:
        raise ProblemError(problem(507, str(full), "event-log-full")) from full
    service.metrics.events.inc(done.accepted)
    return bodies.Recorded(model=service.current.version, **done._asdict())


@answers.post("/items", summary="Items since the training")
async def add_items(body: bodies.ItemsBody, service: Service) -> bodies.AddedItems:
    """Takes items without interactions into the catalogue, by their features; when it answers they are on the
    disk and can be recommended. Known items get other attributes."""
    if service.items is None:
        detail = "this server takes no items; start it with --items FILE"
        raise ProblemError(problem(403, detail, "no-items-file"))
    rows = [{**item.model_dump(), "id": str(item.id)} for item in body.items]
    try:
        # Not in the pool: a larger model is built.
        added = await asyncio.to_thread(service.add_items, rows)
    except DiskFullError as full:
        raise ProblemError(problem(507, str(full), "items-file-full")) from full
    served = service.current
    return bodies.AddedItems(model=served.version, added=added, items=served.recommender.n_items)


@lookups.get("/items", summary="Items by their titles", response_model=bodies.FoundItems)
async def items(service: Service, q: Text = "", limit: Limit = 20) -> Response:
    """All words have to be in the title; capitals and accents do not matter. The most popular come first."""
    return await service.respond(
        lambda served: {"model": served.version, "items": served.items.search(q, limit)}
    )


@lookups.get("/users", summary="Users by their ids", response_model=bodies.FoundUsers)
async def users(service: Service, q: Text = "", limit: Limit = 20) -> Response:
    """Those whose id has the text; the most active come first."""
    return await service.respond(
        lambda served: {"model": served.version, "users": served.users.search(q, limit)}
    )


@lookups.get("/model", summary="What answers")
async def model(service: Service) -> bodies.ModelFacts:
    """Which model of which run, since when."""
    served = service.current
    known = served.recommender
    return bodies.ModelFacts(
        model=served.version,
        name=known.name,
        run=served.path.name,
        users=known.n_users,
        items=known.n_items,
        events=len(known.events),
        fresh_events=0 if service.events is None else len(service.events),
        loaded_at=served.loaded_at,
        last_rejection=service.last_rejection,
    )


@operating.post("/v1/admin/reload", summary="Take the run's model anew")
async def reload(service: Service) -> bodies.Reloaded:
    """Loads beside the old model, which goes on answering; for good if the new one does not load (409)."""
    if service.settings.api_key_file is None:
        detail = "this server has no key, so its model cannot be changed by a request; send it SIGHUP"
        raise ProblemError(problem(403, detail, "no-key-configured"))
    # Not in the pool: loading must not take a thread from requests.
    outcome = await asyncio.to_thread(service.reload)
    if not outcome.accepted:
        raise ProblemError(problem(409, f"{outcome.detail}; the old model goes on", "model-rejected"))
    return bodies.Reloaded(model=outcome.version, detail=outcome.detail)


# -- jobs, in a thread of the pool ---------------------------------------------------------------------------
# They give plain values: an object for each of thousands of items would take longer than to find them.


def _recommended(served: Served, body: bodies.RecommendBody, metrics: Metrics) -> dict[str, Any]:
    known = served.recommender
    limits: dict[str, Any] = {
        "include_seen": body.include_seen,
        "allow": body.allow,
        "deny": body.deny,
        "where": body.filter,
        "diversity": body.diversity,
        "popularity": body.popularity,
    }
    require_known(known.items, body.items or [])
    made: dict[str, dict[str, Any]]
    if body.users is None:
        found = known.recommend_for_items([body.items], k=body.k, **limits)
        made = {"0": {"user": None, "items": [], "source": "model"}}
    else:
        # Each once, as rows are identified by their user; and a user with nothing left has no row at all.
        whose = list({str(own): own for own in map(known.users.spell, body.users)}.values())
        fresh = [[*served.fresh(user), *(body.items or [])] for user in whose]
        made = {str(user): {"user": user, "items": [], "source": "model"} for user in whose}
        lost = [user for user, own in zip(whose, fresh, strict=True) if not own]
        lost = [user for user in lost if known.users.find(user) is None]
        if body.unknown == "error" and len(lost) == len(whose):
            require_known(known.users, lost)
        for user in lost:
            if body.unknown == "error":
                made[str(user)]["problem"] = unknown_ids(known.users, [str(user)]).model_dump(
                    exclude_none=True
                )
            elif body.unknown == "skip":
                del made[str(user)]
        # What is not there is not passed on: known users without fresh items take a shorter way.
        more: dict[str, Any] = {"fresh": fresh} if any(fresh) else {}
        if lost:
            more["unknown"] = "popular" if body.unknown == "popular" else "skip"
        found = known.recommend(whose, k=body.k, **more, **limits)
    for of, _, item, score, *others in found.rows():
        row = dict(zip(found.columns[4:], others, strict=True))
        made[str(of)]["items"].append({"item": item, "score": score, "title": row.get("title")})
        made[str(of)]["source"] = row.get("source", "model")
    _count(served, made, metrics)
    dial = known.calibration.popularity if body.popularity is None else body.popularity
    return {"model": served.version, "lists": list(made.values()), "popularity": dial}


def _count(served: Served, lists: dict[str, dict[str, Any]], metrics: Metrics) -> None:
    """Counts lists by whether their user is in the training data, and items by their popularity there."""
    known = served.recommender
    given = [made for made in lists.values() if "problem" not in made]
    cold = sum(made["user"] is None or known.users.find(made["user"]) is None for made in given)
    metrics.lists.labels("cold").inc(cold)
    metrics.lists.labels("known").inc(len(given) - cold)
    shown = [known.items.find(entry["item"]) for made in given for entry in made["items"]]
    groups = served.item_groups
    counts = np.bincount(groups.which[np.array(shown, np.int64)], minlength=len(groups))
    for name, count in groups.named(counts.tolist()).items():
        metrics.shown.labels(name).inc(count)


def _similar(served: Served, body: bodies.SimilarBody) -> dict[str, Any]:
    known = served.recommender
    if body.items is not None:
        asked, by = _own_ids(known.items, body.items), known.relation("items").stated
        found = known.similar_items(asked, body.k)
    else:
        asked, by = _own_ids(known.users, body.users), known.relation("users").stated
        found = known.similar_users(asked, body.k)
    lists: dict[Any, list[dict[str, Any]]] = {own: [] for own in asked}
    for row in found.iter_rows(named=True):
        node = {"id": row["similar"], "score": row["score"], "title": row.get("title")}
        lists[row[found.columns[0]]].append(node)
    made = [{"id": own, "similar": nodes} for own, nodes in lists.items()]
    return {"model": served.version, "by": by, "lists": made}


def _scored(served: Served, body: bodies.ScoreBody) -> dict[str, Any]:
    known = served.recommender
    whose, what = [pair.user for pair in body.pairs], [pair.item for pair in body.pairs]
    fresh = [served.fresh(user) for user in whose]
    require_known(known.users, [user for user, own in zip(whose, fresh, strict=True) if not own])
    require_known(known.items, what)
    rows = known.score(whose, what, fresh=fresh if any(fresh) else None).to_dicts()
    return {"model": served.version, "pairs": [{"title": None, **row} for row in rows]}


def _explained(served: Served, body: bodies.ExplainBody) -> dict[str, Any]:
    known = served.recommender
    items = None if body.items is None else _own_ids(known.items, body.items)
    require_known(known.items, body.had or [])
    if body.user is not None:
        fresh = [*served.fresh(body.user), *(body.had or [])]
        require_known(known.users, [] if fresh else [body.user])
        found = known.explain(body.user, items, k=body.k, top=body.top, fresh=fresh)
    else:
        found = known.explain_for_items(body.had, items, k=body.k, top=body.top)
    made: dict[Any, dict[str, Any]] = {}
    for row in found.parts.iter_rows(named=True):
        shown = {"item": row["item"], "score": row["score"], "title": row.get("title"), "because": []}
        reason = {"item": row["because"], "contribution": row["contribution"], "share": row["share"]}
        reasons = made.setdefault(row["item"], shown)["because"]
        reasons.append({**reason, "title": row.get("because_title")})
    return {
        "model": served.version,
        "surrogate": found.surrogate,
        "agreement": found.agreement if math.isfinite(found.agreement) else None,
        "items": list(made.values()),
    }


def _own_ids(vocabulary: Vocabulary, ids: list[Any]) -> list[Any]:
    """Known ids, each once, as the data spells it, in the order in which they came."""
    require_known(vocabulary, ids)
    codes = dict.fromkeys(vocabulary.codes(ids).tolist())
    own: list[Any] = vocabulary.ids.gather(list(codes)).to_list()
    return own


# -- operation -----------------------------------------------------------------------------------------------


class Alive(BaseModel):
    status: str
    model: str


@operating.get("/healthz", summary="Does the process live?")
async def healthz(service: Service) -> Alive:
    """200 with the model's version as long as the event loop turns."""
    return Alive(status="alive", model=service.current.version)


@operating.get("/readyz", summary="Can it answer?")
async def readyz(service: Service) -> Alive:
    """200 with the model's version; 503 while as many requests wait as may."""
    if service.is_full:
        raise ProblemError(
            problem(503, f"{service.taken} requests are under way", "busy"), {"Retry-After": "1"}
        )
    return Alive(status="ready", model=service.current.version)


@operating.get(
    "/metrics",
    summary="For Prometheus",
    response_class=Response,
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)
async def metrics(service: Service) -> Response:
    """Requests by route and status, their seconds, the model's seconds, events, lists by kind of user, items
    shown by popularity, reloads, and the process's memory."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)
