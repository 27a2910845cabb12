"""The description at /openapi.json: errors as problem details, the key, examples that work here."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from hdccf.serving.guards import needs_key
from hdccf.serving.problems import MEDIA_TYPE, Problem
from hdccf.serving.served import Served
from hdccf.serving.settings import KEY_HEADER

_ABOUT = """Recommendations of a trained model. Ids are the data's own; errors are problem details (RFC 9457).

Every answer names the version of the model that gave it: a server may take a new one at any time."""

_EVERYWHERE = {500: "A bug; the server's log has it."}
_WITH_BODY = {
    400: "The body is no JSON.",
    408: "The body did not come in time.",
    413: "The body is too large.",
}
_SCORING = {
    422: "The request does not fit, or the model cannot answer it.",
    503: "Too many requests wait; come back soon.",
    504: "The answer took too long.",
}
_IDS = {404: "An id is unknown; `ids` names it."}
_OF_PATH = {
    "/v1/recommend": _WITH_BODY | _SCORING | _IDS,
    "/v1/similar": _WITH_BODY | _SCORING | _IDS,
    "/v1/score": _WITH_BODY | _SCORING | _IDS,
    "/v1/explain": _WITH_BODY | _SCORING | _IDS,
    "/v1/admin/reload": {
        403: "The server has no key.",
        409: "The new model does not load; the old one goes on.",
        408: _WITH_BODY[408],
        413: _WITH_BODY[413],
    },
    "/readyz": {503: "As many requests wait as may."},
}


def install(app: FastAPI, example: Served) -> None:
    """`example` gives ids that exist."""
    examples = _examples(example)

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, examples)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _described(app: FastAPI, examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = get_openapi(title="hdccf", version=version("hdccf"), description=_ABOUT, routes=app.routes)
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    inner = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(inner.pop("$defs", {}))
    schemas["Problem"] = inner
    components["securitySchemes"] = {"key": {"type": "apiKey", "in": "header", "name": KEY_HEADER}}
    for path, operations in found["paths"].items():
        for operation in operations.values():
            _finish(path, operation, examples)
    return found


def _finish(path: str, operation: dict[str, Any], examples: dict[str, dict[str, Any]]) -> None:
    reads = "parameters" in operation or "requestBody" in operation
    statuses = _EVERYWHERE | _OF_PATH.get(path, _SCORING if reads else {})
    if needs_key(path):
        statuses = statuses | {401: "The key is missing or wrong."}
        # The empty alternative: a server may have been started without a key.
        operation["security"] = [{"key": []}, {}]
    operation["responses"].pop("422", None)
    for status, description in sorted(statuses.items()):
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        operation["responses"][str(status)] = {"description": description, "content": content}
    if path in examples and "requestBody" in operation:
        named = {name: {"value": value} for name, value in examples[path].items()}
        operation["requestBody"]["content"]["application/json"]["examples"] = named


def _examples(served: Served) -> dict[str, dict[str, Any]]:
    train = served.recommender.split.train
    users, items = train.user_ids.head(2).to_list(), train.item_ids.head(3).to_list()
    return {
        "/v1/recommend": {
            "two users": {"users": users, "k": 5},
            "somebody new": {"items": items, "k": 5},
            "within limits": {"users": users[:1], "k": 5, "deny": items[:1], "include_seen": True},
        },
        "/v1/similar": {"items": {"items": items[:1], "k": 5}, "users": {"users": users[:1], "k": 5}},
        "/v1/score": {"a pair": {"pairs": [{"user": users[0], "item": items[0]}]}},
        "/v1/explain": {
            "a user's best": {"user": users[0], "k": 2, "top": 3},
            "somebody new": {"had": items, "k": 2},
        },
    }
