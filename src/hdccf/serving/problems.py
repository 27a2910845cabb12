"""Errors as problem details (RFC 9457): type, title, status, detail and extensions."""

import http
import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hdccf.errors import HdccfError

MEDIA_TYPE = "application/problem+json"
_ERRORS_SHOWN = 20


class BodyError(BaseModel):
    """One thing that is wrong with a request."""

    pointer: str
    """Where, as a JSON pointer into the body, or the name of the parameter."""
    detail: str


class Problem(BaseModel):
    """What went wrong, for programs (type, status) and for people (title, detail)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """about:blank where the status says it all; otherwise which problem of ours this is."""
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    """What was given, what is allowed, what to do."""
    kind: str | None = None
    """With unknown ids: "user" or "item"."""
    ids: list[str] | None = None
    """With unknown ids: the first of them."""
    errors: list[BodyError] | None = None
    """With a request that does not fit: what is wrong where."""


class ProblemError(Exception):
    """Raised anywhere below an endpoint, answered as it is."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers or {}


def problem(status: int, detail: str, name: str | None = None, **more: Any) -> Problem:
    """`name` is our own word for it, as in unknown-id."""
    phrase = http.HTTPStatus(status).phrase
    kind = "about:blank" if name is None else f"urn:hdccf:problem:{name}"
    title = phrase if name is None else name.replace("-", " ").capitalize()
    return Problem(type=kind, title=title, status=status, detail=detail, **more)


def response(found: Problem, headers: dict[str, str] | None = None) -> Response:
    # ASCII: whatever came in, lone surrogates included, can be sent back.
    content = json.dumps(found.model_dump(exclude_none=True), ensure_ascii=True)
    return Response(content, found.status, headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """What is raised below becomes a problem; unforeseen errors are caught by `middleware.RequestMetrics`."""
    app.add_exception_handler(ProblemError, _of_problem)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HdccfError, _of_hdccf)


async def _of_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101
    return response(error.problem, error.headers)


async def _of_http(request: Request, error: Exception) -> Response:
    """Unknown paths, wrong methods, bodies that are no JSON."""
    assert isinstance(error, HTTPException)  # noqa: S101
    details = {
        404: f"{request.url.path} is not here; /openapi.json has what is",
        405: f"{request.method} does not go with {request.url.path}; /openapi.json has what does",
    }
    detail = details.get(error.status_code, str(error.detail))
    return response(problem(error.status_code, detail), dict(error.headers or {}))


async def _of_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    first_error = error.errors()[0]
    if first_error["type"] == "json_invalid":
        where = f"at character {first_error['loc'][-1]}"
        return response(problem(400, f"the body is no JSON {where}: {first_error['ctx']['error']}"))
    found = [
        BodyError(pointer=_pointer(one["loc"]), detail=str(one["msg"]))
        for one in error.errors()[:_ERRORS_SHOWN]
    ]
    first = f"{found[0].pointer or 'the body'}: {found[0].detail}"
    return response(problem(422, f"the request does not fit: {first}", "invalid-request", errors=found))


async def _of_hdccf(request: Request, error: Exception) -> Response:
    """What the model cannot do with a request that is well-formed."""
    return response(problem(422, str(error), "cannot-answer"))


def _pointer(loc: tuple[int | str, ...]) -> str:
    """Where in the body: /users/0. Tags that only tell shapes of one body apart are left out."""
    if loc[0] != "body":
        return str(loc[-1])
    parts = [part for part in loc[1:] if not (isinstance(part, str) and part.startswith("by "))]
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
