"""The published JSON schema of the edge filter's policy says what the loader says."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from mcprun.edge.policy import EdgePolicy, schema_text

from .policies import good_policies

PUBLISHED = Path(__file__).parents[3] / "docs" / "edge-policy.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(schema_text()))


def test_the_published_schema_is_up_to_date() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), "run: python -m mcprun.edge.policy docs/edge-policy.schema.json"


def test_the_schema_is_a_schema_and_describes_every_field() -> None:
    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for model in (schema, *schema["$defs"].values()):
        assert model["additionalProperties"] is False
        for name, field in model["properties"].items():
            assert field["description"], name


@given(good_policies())
@settings(max_examples=60, deadline=None)
def test_it_takes_every_good_policy(values: dict[str, Any]) -> None:
    VALIDATOR.validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"nonsense": 1},
        {"version": 2},
        {"environment": "test"},
        {"breaker": {"probes": 0}},
        {"breaker": {"max_error_ratio": 1.5}},
        {"breaker": {"isolation_seconds": "30"}},
        {"canary": {}},
        {"canary": [{"prefix": "no-slash"}]},
        {"canary": [{"prefix": "/", "tag": "a b"}]},
        {"canary": [{"percent": 100.5, "tag": "a"}]},
        {"canary": [{"header": {"name": "a", "present": False}, "tag": "a"}]},
        {"canary": [{"header": {"exact": "a"}, "tag": "a"}]},
        {"tenants": {"a": {"nodes": []}}},
        {"tenant_identity": {"header": "a b"}},
        {"trust_client_routing": 1},
        {"max_fleets": 4097},
    ],
    ids=json.dumps,
)
def test_it_refuses_what_the_loader_refuses(values: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(values)
    with pytest.raises(ValidationError):
        EdgePolicy.model_validate(values)
