"""The policy that people write and the filter's own reading of it: both take the same, refuse the same, and mean the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from pydantic import ValidationError
from ruamel.yaml import YAML

from mcprun.document import ConfigError
from mcprun.edge.policy import MAX_BYTES, EdgePolicy, compiled, load_policy
from mcprun_filter.fields import MAX_SIZE
from mcprun_filter.policy import ENVIRONMENTS, Policy
from mcprun_filter.routing import Rules

from .policies import good_policies, touched_policies

HEADER = "x-mcprun-node"


def meaning(policy: Policy) -> dict[str, Any]:
    """All that a policy says, comparable."""

    def of_rules(rules: Rules) -> Any:
        return rules.trust_client, [tuple(getattr(rule, name) for name in rule.__slots__) for rule in rules.rules]

    def of_tenant(tenant: Any) -> Any:
        return tenant.name, tenant.group, tenant.environment, tenant.thresholds, of_rules(tenant.rules)

    return {
        "environment": policy.environment,
        "log_level": policy.log_level,
        "max_fleets": policy.max_fleets,
        "shortest_deadline": policy.shortest_deadline,
        "headers": (policy.tenant_header, policy.routing_header, policy.node_header),
        "identities": policy.identities,
        "default": of_tenant(policy.default),
        "tenants": {name: of_tenant(tenant) for name, tenant in policy.tenants.items()},
    }


def by_filter(values: dict[str, Any]) -> Policy:
    return Policy.load(json.dumps(values).encode())


def by_loader(values: dict[str, Any]) -> Policy:
    """As an edge does it: checked, completed, and then read by the filter, which must take whatever was checked."""
    policy = EdgePolicy.model_validate(values)
    return by_filter(compiled(policy, environment="prod", nodes={}, node_header=HEADER))


@given(good_policies())
@settings(max_examples=150, deadline=None)
def test_a_good_policy_is_taken_by_both_and_means_the_same(values: dict[str, Any]) -> None:
    assert meaning(by_loader(values)) == meaning(by_filter(values))


def tried(take: Any, values: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return meaning(take(values))
    except ValueError:
        return None


@given(touched_policies())
@settings(max_examples=400, deadline=None)
@example({"breaker": {"isolation_seconds": 100}, "tenants": {"a": {"breaker": {"max_isolation_seconds": 60}}}})
@example({"breaker": {"isolation_seconds": 10}, "tenants": {"a": {"breaker": {"max_isolation_seconds": 20}}}})
@example({"breaker": {"isolation_seconds": 10, "max_isolation_seconds": 20}, "tenants": {"a": {"breaker": {"isolation_seconds": 60}}}})
@example({"breaker": {"isolation_seconds": 10, "max_isolation_seconds": 20}, "tenants": {"a": {"environment": "dev"}}})
@example({"breaker": {"max_isolation_seconds": 29.9}})
@example({"tenants": {"a": {}}, "tenant_identity": {"uri_sans": {"spiffe://a": "b"}}})
@example({"tenants": {"a": {}}, "tenant_identity": {"uri_sans": {"spiffe://a,spiffe://b": "a"}}})
@example({"tenants": {"a": {}}, "tenant_identity": {"uri_sans": {"": "a"}}})
@example({"canary": [{"prefix": "/", "tag": "\u212a"}]})
@example({"canary": [{"prefix": "/", "tag": "\u0130"}]})
@example({"canary": [{"prefix": "/", "tag": ""}]})
@example({"tenant_identity": {"header": "\u212a"}})
@example({"version": True})
@example({"canary": [{"header": {"name": "a", "present": 1}, "tag": "b"}]})
def test_what_one_refuses_the_other_refuses(values: dict[str, Any]) -> None:
    try:
        checked = EdgePolicy.model_validate(values)
    except ValidationError:
        checked = None
    own = tried(by_filter, values)
    assert (own is None) == (checked is None)
    # Whatever is checked is taken: else a policy that `mcprun edge check` calls good would be refused by Envoy.
    if checked is not None:
        assert tried(by_loader, values) == own


@pytest.mark.parametrize("environment", ["dev", "staging", "prod"])
def test_an_empty_policy_has_the_same_defaults_by_both(environment: Any) -> None:
    for policy in (None, EdgePolicy()):
        assert meaning(by_filter(compiled(policy, environment=environment, nodes={}, node_header=HEADER))) == meaning(
            by_filter({"environment": environment})
        )
    assert meaning(by_loader({})) == meaning(Policy.load(b""))


@pytest.mark.parametrize(("environment", "ratio", "level"), [("dev", 0.80, "debug"), ("staging", 0.35, "info"), ("prod", 0.15, "warn")])
def test_an_environment_picks_how_many_errors_open_a_breaker_and_what_is_logged(environment: str, ratio: float, level: str) -> None:
    assert ENVIRONMENTS[environment] == (ratio, level)
    policy = by_loader({"environment": environment})
    assert (policy.default.thresholds.max_error_ratio, policy.log_level) == (ratio, level)
    written = by_loader({"environment": environment, "log_level": "error", "breaker": {"max_error_ratio": 0.5}})
    assert (written.default.thresholds.max_error_ratio, written.log_level) == (0.5, "error")


def test_the_edges_own_environment_holds_unless_the_policy_names_one() -> None:
    for written, expected in ((EdgePolicy(), "dev"), (EdgePolicy(environment="staging"), "staging")):
        values = compiled(written, environment="dev", nodes={"r": ["10.0.0.1:80"]}, node_header=HEADER)
        assert by_filter(values).environment == expected


# What is said of mistakes: where, what was expected, what came

MISTAKES = [
    ("breaker: {probes: 0}", "breaker.probes", "at least 1", "whole number from 1 to 16", "0"),
    ("breaker: {probes: many}", "breaker.probes", "a whole number", "whole number", "many"),
    ("breaker: {max_error_ratio: 15}", "breaker.max_error_ratio", "at most 1", "a number from 0 to 1", "15"),
    ("breaker: {isolation_seconds: 60, max_isolation_seconds: 59}", "breaker.max_isolation_seconds", "60, or more", "60, or more", "59"),
    ("environment: test", "environment", "dev", "dev, staging, prod", "test"),
    ("log_level: loud", "log_level", "critical", "critical", "loud"),
    ("trust_client_routing: perhaps", "trust_client_routing", "true or false", "true or false", "perhaps"),
    ("canary: {}", "canary", "a list", "a list", ""),
    ("canary: [{tag: a, prefix: /, percent: 5}]", "canary[0]", "exactly one of", "exactly one of", "prefix"),
    ("canary: [{tag: a b, prefix: /}]", "canary[0].tag", "text of the form", "letters, digits", "a b"),
    ("canary: [{percent: 5}]", "canary[0].tag", "a tag", "a tag", ""),
    ("canary: [{tag: a, percent: 101}]", "canary[0].percent", "at most 100", "a number from 0 to 100", "101"),
    ("canary: [{tag: a, percent: 1, rewrite: /}]", "canary[0].rewrite", "only rules by prefix", "only rules by 'prefix'", "/"),
    ("canary: [{tag: a, percent: 1, key: header}]", "canary[0].key_header", "a header's name", "a header's name", ""),
    ("canary: [{tag: a, percent: 1, key_header: abc}]", "canary[0].key_header", "when key is header", "no such field", "abc"),
    ("canary: [{tag: a, prefix: /, salt: xyz}]", "canary[0].salt", "only rules by percent", "no such field", "xyz"),
    ("tenants: {default: {}}", "tenants.default", "another name", "another name", "default"),
    ("tenants: {a: {environment: x}}", "tenants.a.environment", "staging", "staging", "x"),
    ("tenants: {a: {breaker: {probes: 99}}}", "tenants.a.breaker.probes", "at most 16", "from 1 to 16", "99"),
    ("tenants: {a: {breaker: {max_isolation_seconds: 1}}}", "tenants.a.breaker.max_isolation_seconds", "30, or more", "30, or more", "1"),
    ("tenant_identity: {uri_sans: {'spiffe://a': b}}", "tenant_identity.uri_sans.spiffe://a", "names in tenants", "names in tenants", "b"),
    ("tenant_identity: {header: 'a b'}", "tenant_identity.header", "text of the form", "a header's name", "a b"),
    ("max_fleets: 0", "max_fleets", "at least 1", "from 1 to 4096", "0"),
]


@pytest.mark.parametrize(("written", "field", "by_loader", "by_filter", "came"), MISTAKES, ids=[f"{m[1]}-{m[4]}" for m in MISTAKES])
def test_both_tell_the_field_what_was_expected_and_what_came(
    tmp_path: Path, written: str, field: str, by_loader: str, by_filter: str, came: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(written)
    with pytest.raises(ConfigError) as loaded:
        load_policy(file)
    (problem,) = loaded.value.problems
    assert problem.field == field
    assert by_loader in problem.expected
    assert came in problem.got
    assert str(problem).startswith(f"{file}:1:")

    with pytest.raises(ValueError, match=r"expected .*, got ") as read:
        Policy.load(json.dumps(YAML(typ="safe").load(written)).encode())
    text = str(read.value)
    assert text.startswith(f"{field}: expected ")
    assert by_filter in text
    assert came in text.rsplit(", got ", maxsplit=1)[-1]


def test_a_field_that_is_not_known_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("breaker:\n  isolation_second: 5\n")
    with pytest.raises(ConfigError) as loaded:
        load_policy(file)
    assert str(loaded.value).startswith(f"{file}:2:3: breaker.isolation_second: expected one of window_seconds, ")
    assert str(loaded.value).endswith("got 'isolation_second' (did you mean 'isolation_seconds'?)")
    with pytest.raises(ValueError, match=re.escape("breaker.isolation_second: expected no such field (there are ")):
        Policy.load(b'{"breaker": {"isolation_second": 5}}')


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("max_fleets: 0\nbreaker: {probes: 0}\ncanary:\n  - {tag: a}\n")
    with pytest.raises(ConfigError) as loaded:
        load_policy(file)
    assert [(problem.line, problem.field) for problem in loaded.value.problems] == [
        (1, "max_fleets"),
        (2, "breaker.probes"),
        (4, "canary[0]"),
    ]


def test_a_policy_that_aliases_make_too_large_for_the_filter_is_told(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    rules = "".join(f"- {{prefix: /{'p' * 1000}{number}}}\n" for number in range(100))
    for tenants, fits in ((30, True), (60, False)):
        file.write_text(f"canary: &rules\n{rules}tenants:\n" + "".join(f"  t{number}: {{canary: *rules}}\n" for number in range(tenants)))
        if fits:
            Policy.load(json.dumps(compiled(load_policy(file), environment="prod", nodes={}, node_header=HEADER)).encode())
            continue
        with pytest.raises(ConfigError, match=r"policy\.yaml:1:1: expected a policy of at most 4000000 bytes as JSON, got \d+"):
            load_policy(file)
    # The edge adds 64 nodes at most, with two addresses each.
    assert MAX_BYTES + 64 * 1024 < MAX_SIZE
