"""The description at /openapi.json is true: generated requests, good and bad, get what it promises."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis import checks as general
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi import checks
from small_service import KEY, Serving, attributes

import hdccf
from hdccf.serving.app import create_app
from hdccf.serving.settings import ServeSettings

pytest_plugins = ["service_fixtures"]


@pytest.fixture(scope="session")
def described(run: Path, tmp_path_factory: pytest.TempPathFactory) -> BaseSchema:
    file = tmp_path_factory.mktemp("key") / "key"
    file.write_text(KEY)
    copy = file.with_name("run")
    shutil.copytree(run, copy)
    hdccf.load_run(copy).with_features(attributes())
    own = ServeSettings(events=file.with_name("events"), items=file.with_name("items"), api_key_file=file)
    app = create_app(copy, own.changed(allowed_hosts=("testserver",)))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


OPERATIONS = [
    "POST /v1/recommend",
    "POST /v1/similar",
    "POST /v1/score",
    "POST /v1/explain",
    "POST /v1/events",
    "POST /v1/items",
    "GET /v1/items",
    "GET /v1/users",
    "GET /v1/model",
    "POST /v1/admin/reload",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
]
CHECKS = [
    general.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


def operations(described: BaseSchema) -> dict[str, Any]:
    found: list[Any] = list(described.get_all_operations())
    return {each.ok().label: each.ok() for each in found}


def test_every_operation_is_tried(described: BaseSchema) -> None:
    own = [name for name in operations(described) if "/v1/page/" not in name]
    assert sorted(own) == sorted(OPERATIONS)


# Not Schemathesis' own `parametrize`, which wants the description when tests are collected.
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("name", OPERATIONS)
def test_generated_requests_get_what_is_described(
    described: BaseSchema, name: str, mode: GenerationMode
) -> None:
    operation = operations(described)[name]
    if mode.is_negative and not (operation.body or operation.query):
        return  # what takes nothing can be given nothing wrong

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def requests_are_answered(case: Any) -> None:
        case.call_and_validate(headers={"X-API-Key": KEY}, checks=CHECKS)

    requests_are_answered()


def test_examples_work_here(serving: Serving, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    hdccf.load_run(tmp_path / "run").with_features(attributes())
    client = serving(tmp_path / "run", events=tmp_path / "events.jsonl", items=tmp_path / "items.jsonl")
    described = client.get("/openapi.json").json()
    tried = 0
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"]
            assert operation["responses"]["500"]["content"].keys() == {"application/problem+json"}
            if "requestBody" not in operation:
                continue
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            for example in examples.values():
                answered = client.request(method, path, json=example["value"])
                assert answered.status_code == 200, answered.text
                tried += 1
    assert tried == 11
    assert "HTTPValidationError" not in described["components"]["schemas"]


def test_limits_are_described(serving: Serving) -> None:
    schemas = serving().get("/openapi.json").json()["components"]["schemas"]
    of = schemas["RecommendBody"]["properties"]
    assert (of["k"]["minimum"], of["k"]["maximum"]) == (1, 500)
    assert (of["users"]["minItems"], of["users"]["maxItems"]) == (1, 256)
    assert schemas["ExplainBody"]["properties"]["top"]["maximum"] == 100


def test_the_key_is_described_where_it_is_asked_for(serving: Serving) -> None:
    paths = serving().get("/openapi.json").json()["paths"]
    assert paths["/v1/recommend"]["post"]["security"] == [{"key": []}, {}]
    assert "security" not in paths["/healthz"]["get"]
    assert "401" in paths["/v1/recommend"]["post"]["responses"]
