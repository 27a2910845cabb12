"""For whoever runs the server: does it live, can it answer, what has it done."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from hdccf.serving.access import Service
from hdccf.serving.problems import ProblemError, problem

router = APIRouter(tags=["operating"])


class Alive(BaseModel):
    status: str
    model: str | None = None


@router.get("/healthz", summary="Does the process live?")
async def healthz() -> Alive:
    """200 as long as the event loop turns."""
    return Alive(status="alive")


@router.get("/readyz", summary="Can it answer?")
async def readyz(service: Service) -> Alive:
    """200 with the model's version; 503 while as many requests wait as may."""
    if service.pool.is_full:
        raise ProblemError(
            problem(503, f"{service.pool.taken} requests are under way", "busy"), {"Retry-After": "1"}
        )
    return Alive(status="ready", model=service.holder.current.version)


@router.get(
    "/metrics",
    summary="For Prometheus",
    response_class=Response,
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)
async def metrics(service: Service) -> Response:
    """Requests by route and status, their seconds, the model's seconds, reloads, and the process's memory."""
    return Response(service.measures.text(), media_type=CONTENT_TYPE_LATEST)
