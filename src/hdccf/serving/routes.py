"""The endpoints under /v1: a body in, an answer of one model out."""

import asyncio
import math
from typing import Annotated, Any

import polars as pl
from fastapi import APIRouter, Body, Query

from hdccf.serving import bodies
from hdccf.serving.access import Service, distinct, require_known
from hdccf.serving.problems import ProblemError, problem
from hdccf.serving.served import Served

router = APIRouter(prefix="/v1")

Text = Annotated[str, Query(max_length=bodies.MAX_QUERY, description="Part of it; nothing finds all.")]
Limit = Annotated[int, Query(ge=1, le=bodies.MAX_FOUND, description="How many at most.")]


@router.post("/recommend", tags=["answers"], summary="The best items for users")
async def recommend(body: Annotated[bodies.RecommendBody, Body()], service: Service) -> bodies.Recommended:
    """The k best items of each user, best first, for users that the model knows or for somebody new.

    What they have had is left out unless asked for.
    """
    return await service.answer(lambda served: _recommended(served, body))


@router.post("/similar", tags=["answers"], summary="Items like an item, or users like a user")
async def similar(body: Annotated[bodies.SimilarBody, Body()], service: Service) -> bodies.Similar:
    """By the model's own f where it was trained with one, otherwise by its vectors; `by` says which."""
    return await service.answer(lambda served: _similar(served, body))


@router.post("/score", tags=["answers"], summary="The model's f of pairs")
async def score(body: Annotated[bodies.ScoreBody, Body()], service: Service) -> bodies.Scored:
    """Scores are comparable within a user, not between users."""
    return await service.answer(lambda served: _scored(served, body))


@router.post("/explain", tags=["answers"], summary="Which of their own items speak for a recommendation")
async def explain(body: Annotated[bodies.ExplainBody, Body()], service: Service) -> bodies.Explained:
    """Shares of a surrogate that is a sum over the user's items; how far to believe it is given with it."""
    return await service.answer(lambda served: _explained(served, body))


@router.get("/items", tags=["looking up"], summary="Items by their titles")
async def items(service: Service, q: Text = "", limit: Limit = 20) -> bodies.FoundItems:
    """All words have to be in the title; capitals and accents do not matter. The most popular come first."""

    def search(served: Served) -> bodies.FoundItems:
        found = [bodies.FoundItem(**row) for row in served.catalogue.search(q, limit)]
        return bodies.FoundItems(model=served.version, items=found)

    return await service.answer(search)


@router.get("/users", tags=["looking up"], summary="Users by their ids")
async def users(service: Service, q: Text = "", limit: Limit = 20) -> bodies.FoundUsers:
    """Those whose id has the text; the most active come first."""

    def search(served: Served) -> bodies.FoundUsers:
        found = [bodies.FoundUser(**row) for row in served.people.search(q, limit)]
        return bodies.FoundUsers(model=served.version, users=found)

    return await service.answer(search)


@router.get("/model", tags=["looking up"], summary="What answers")
async def model(service: Service) -> bodies.ModelFacts:
    """Which model of which run, since when."""
    served = service.holder.current
    known = served.recommender
    return bodies.ModelFacts(
        model=served.version,
        name=known.name,
        run=served.path.name,
        users=known.n_users,
        items=known.n_items,
        events=len(known.events),
        loaded_at=served.loaded_at,
        last_rejection=service.holder.last_rejection,
    )


@router.post("/admin/reload", tags=["operating"], summary="Take the run's model anew")
async def reload(service: Service) -> bodies.Reloaded:
    """Loads beside the old model, which goes on answering; for good if the new one does not load (409)."""
    if service.settings.api_key_file is None:
        detail = "this server has no key, so that nobody may change its model from afar; send it SIGHUP"
        raise ProblemError(problem(403, detail, "no-key-configured"))
    # Not in the pool: loading must not take a thread from those who ask.
    outcome = await asyncio.to_thread(service.reload)
    if not outcome.accepted:
        raise ProblemError(problem(409, f"{outcome.detail}; the old model goes on", "model-rejected"))
    return bodies.Reloaded(model=outcome.version, detail=outcome.detail)


# -- jobs, in a thread of the pool ---------------------------------------------------------------------------


def _recommended(
    served: Served, body: bodies.RecommendToUsers | bodies.RecommendToItems
) -> bodies.Recommended:
    known = served.recommender
    limits: dict[str, Any] = {"include_seen": body.include_seen, "allow": body.allow, "deny": body.deny}
    if isinstance(body, bodies.RecommendToItems):
        require_known(known.items, body.items)
        found = known.recommend_for_items([body.items], k=body.k, **limits)
        lists = [bodies.RecommendedList(user=None, items=_scored_items(found))]
        return bodies.Recommended(model=served.version, lists=lists)
    require_known(known.users, body.users)
    # Each once, as rows are told apart by their user; and a user with nothing left has no row at all.
    asked = distinct(known.users, body.users)
    parts = known.recommend(asked, k=body.k, **limits).partition_by("user", as_dict=True)
    made = {user: _scored_items(rows) for (user,), rows in parts.items()}
    lists = [bodies.RecommendedList(user=user, items=made.get(user, [])) for user in asked]
    return bodies.Recommended(model=served.version, lists=lists)


def _similar(served: Served, body: bodies.SimilarItems | bodies.SimilarUsers) -> bodies.Similar:
    known = served.recommender
    if isinstance(body, bodies.SimilarItems):
        require_known(known.items, body.items)
        asked = distinct(known.items, body.items)
        found, by = known.similar_items(asked, body.k), known.relation("items").stated
    else:
        require_known(known.users, body.users)
        asked = distinct(known.users, body.users)
        found, by = known.similar_users(asked, body.k), known.relation("users").stated
    of = found.columns[0]
    parts = found.rename({"similar": "id"}).drop("rank").partition_by(of, as_dict=True, include_key=False)
    made = {
        own: [bodies.SimilarNode.model_construct(**row) for row in rows.to_dicts()]
        for (own,), rows in parts.items()
    }
    lists = [bodies.SimilarList(id=own, similar=made.get(own, [])) for own in asked]
    return bodies.Similar(model=served.version, by=by, lists=lists)


def _scored(served: Served, body: bodies.ScoreBody) -> bodies.Scored:
    known = served.recommender
    whose, what = [pair.user for pair in body.pairs], [pair.item for pair in body.pairs]
    require_known(known.users, whose)
    require_known(known.items, what)
    rows = known.score(whose, what).to_dicts()
    return bodies.Scored(model=served.version, pairs=[bodies.ScoredPair(**row) for row in rows])


def _explained(served: Served, body: bodies.ExplainToUser | bodies.ExplainToHistory) -> bodies.Explained:
    known = served.recommender
    items = None
    if body.items is not None:
        require_known(known.items, body.items)
        items = distinct(known.items, body.items)
    if isinstance(body, bodies.ExplainToUser):
        require_known(known.users, [body.user])
        found = known.explain(body.user, items, k=body.k, top=body.top)
    else:
        require_known(known.items, body.had)
        found = known.explain_for_items(body.had, items, k=body.k, top=body.top)
    made: dict[Any, bodies.ExplainedItem] = {}
    for row in found.parts.to_dicts():
        item = made.setdefault(
            row["item"],
            bodies.ExplainedItem(item=row["item"], score=row["score"], title=row.get("title"), because=[]),
        )
        item.because.append(
            bodies.Reason(
                item=row["because"],
                contribution=row["contribution"],
                share=row["share"],
                title=row.get("because_title"),
            )
        )
    agreement = found.agreement if math.isfinite(found.agreement) else None
    return bodies.Explained(
        model=served.version, surrogate=found.surrogate, agreement=agreement, items=list(made.values())
    )


def _scored_items(rows: pl.DataFrame) -> list[bodies.ScoredItem]:
    columns = [name for name in ("item", "score", "title") if name in rows.columns]
    # They come from a typed frame, so that each is not validated again.
    return [bodies.ScoredItem.model_construct(**row) for row in rows.select(columns).to_dicts()]
