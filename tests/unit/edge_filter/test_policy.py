"""The filter's policy: any bytes make a policy or a ValueError that says where, and each tenant has what is its own."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprun_filter.fields import MAX_DEPTH, MAX_SIZE, load
from mcprun_filter.policy import Policy, fleet_key, fleet_name

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
FIELDS = [
    *("version", "environment", "log_level", "max_fleets", "node_header", "routing_header", "shortest_deadline_seconds", "nodes"),
    *("breaker", "trust_client_routing", "canary", "tenant_identity", "tenants", "other"),
]


def made(**values: Any) -> Policy:
    return Policy.load(json.dumps(values).encode())


def refusal(raw: bytes) -> str:
    with pytest.raises(ValueError, match="expected") as raised:
        Policy.load(raw)
    assert type(raised.value) is ValueError
    return str(raised.value)


# Any bytes


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"\xef\xbb\xbf{}")
def test_any_bytes_are_a_policy_or_an_error(raw: bytes) -> None:
    try:
        Policy.load(raw)
    except ValueError as error:
        assert type(error) is ValueError
        assert ": expected " in str(error)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_json_is_a_policy_or_an_error_that_names_a_field(values: dict[str, Any]) -> None:
    raw = json.dumps(values).encode()
    try:
        Policy.load(raw)
    except ValueError as error:
        assert type(error) is ValueError
        where, said = str(error).split(": expected ", 1)
        assert where.split(".")[0].split("[")[0] in (*FIELDS, "policy")
        assert ", got " in said
        # It becomes a line of a log: short, and of printable ASCII.
        assert len(str(error)) < 1000
        assert str(error).isascii()
        assert str(error).isprintable()


@given(st.dictionaries(st.text(max_size=300), st.text(max_size=300), min_size=1, max_size=2))
def test_names_of_tenants_and_uris_are_names_or_errors(values: dict[str, str]) -> None:
    for written in ({"tenants": {name: {} for name in values}}, {"tenants": {"a": {}}, "tenant_identity": {"uri_sans": values}}):
        try:
            policy = made(**written)
        except ValueError as error:
            assert type(error) is ValueError
            assert len(str(error)) < 1000
        else:
            assert all(name.isascii() and 0 < len(name) <= 63 for name in policy.tenants)
            assert all(uri and b"," not in uri for uri in policy.identities)


@pytest.mark.parametrize("raw", [b"", b" \n", b"{}"])
def test_nothing_at_all_is_all_defaults(raw: bytes) -> None:
    policy = Policy.load(raw)
    assert (policy.environment, policy.log_level, policy.default.thresholds.max_error_ratio) == ("prod", "warn", 0.15)
    assert [rule.name for rule in policy.default.rules.rules] == ["api-v2", "api-v1"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xff", "policy: expected UTF-8, got a wrong byte at 0"),
        (b"{", "policy: expected JSON, got Expecting property name enclosed in double quotes at line 1, column 2"),
        (b"[]", "policy: expected an object, got []"),
        (b'{"version": 1, "version": 1}', 'policy: expected each key once, got "version" twice in one object'),
        (b'{"max_fleets": NaN}', "policy: expected finite numbers, got NaN"),
        (b'{"max_fleets": ' + b"9" * 5000 + b"}", "policy: expected numbers of at most 20 digits, got 5000"),
        (b'{"max_fleets": 1e999}', "max_fleets: expected a whole number from 1 to 4096, got Infinity"),
        (b'{"max_fleets": true}', "max_fleets: expected a whole number from 1 to 4096, got true"),
        (b'{"shortest_deadline_seconds": 1e999}', "shortest_deadline_seconds: expected a number from 0 to 3600, got Infinity"),
        (b"[" * (MAX_DEPTH + 1), f"policy: expected at most {MAX_DEPTH} levels of nesting, got"),
        (b" " * (MAX_SIZE + 1), f"policy: expected at most {MAX_SIZE} bytes, got {MAX_SIZE + 1}"),
        (b'{"nodes": [{"name": "a", "addresses": []}]}', "nodes[0].addresses: expected one address or more, got []"),
        (b'{"nodes": [{"name": "a b", "addresses": ["x"]}]}', "nodes[0].name: expected letters, digits"),
        (b'{"nodes": [{"name": "\\u212a", "addresses": ["x"]}]}', "nodes[0].name: expected letters, digits"),
        (
            b'{"nodes": [{"name": "a", "addresses": ["x"]}, {"name": "a", "addresses": ["y"]}]}',
            'nodes[1].name: expected a name that no other node has, got "a"',
        ),
        (
            b'{"nodes": [{"name": "a", "addresses": ["x"]}, {"name": "b", "addresses": ["x"]}]}',
            'nodes[1].addresses: expected addresses that no other node has, got "x"',
        ),
        (b'{"tenants": {"a": 5}}', "tenants.a: expected an object, got 5"),
        (b'{"tenants": {"\\u0130": {}}}', "tenants.\\u0130: expected a name of 1 to 63 letters"),
        (b'{"tenants": {"\\ud800": {}}}', "tenants.\\ud800: expected a name of 1 to 63 letters"),
        (b'{"tenants": {"a": {}}, "tenant_identity": {"uri_sans": {"": "a"}}}', "tenant_identity.uri_sans: expected URIs as keys"),
    ],
)
def test_errors_say_where_what_was_expected_and_what_came(raw: bytes, said: str) -> None:
    assert refusal(raw).startswith(said)


def test_a_number_from_json_that_writes_all_numbers_as_fractions_is_whole() -> None:
    """As the configuration comes from Istio, through a protobuf Struct."""
    policy = Policy.load(b'{"version": 1.0, "max_fleets": 7.0, "breaker": {"probes": 2.0}}')
    assert (policy.max_fleets, policy.default.thresholds.probes) == (7, 2)


@given(st.binary(max_size=50))
def test_loading_json_says_no_more_than_its_error(raw: bytes) -> None:
    try:
        assert isinstance(load(raw), dict)
    except ValueError as error:
        assert type(error) is ValueError


# Tenants


def test_a_tenant_has_what_is_its_own_and_else_everybodys() -> None:
    policy = made(
        environment="staging",
        breaker={"probes": 7, "max_error_ratio": 0.6},
        tenants={
            "plain": {},
            "strict": {"breaker": {"min_requests": 3}},
            "live": {"environment": "prod"},
            "both": {"environment": "dev", "breaker": {"max_error_ratio": 0.3}},
        },
    )
    told = {}
    for name, tenant in policy.tenants.items():
        thresholds = tenant.thresholds
        told[name] = (tenant.group, tenant.environment, thresholds.probes, thresholds.min_requests, thresholds.max_error_ratio)
    assert told == {
        "plain": ("default", "staging", 7, 20, 0.6),
        "strict": ("strict", "staging", 7, 3, 0.6),
        # Its own environment says how many errors are too many, over what is everybody's.
        "live": ("live", "prod", 7, 20, 0.15),
        "both": ("both", "dev", 7, 20, 0.3),
    }


@pytest.mark.parametrize(
    ("header", "identity", "expected"),
    [
        (None, None, ""),
        (b"a", None, "a"),
        (b"A", None, ""),
        (b"default", None, ""),
        (b"\xff", None, ""),
        (b"a,b", None, ""),
        (None, b"spiffe://b", "b"),
        (b"a", b"spiffe://b", "b"),
        (b"a", b"spiffe://x, spiffe://b", "b"),
        (b"a", b"spiffe://x", "a"),
        (b"a", b"spiffe://b/x", "a"),
        (b"a", b",,", "a"),
    ],
)
def test_a_certificate_that_is_known_outweighs_the_header(header: bytes | None, identity: bytes | None, expected: str) -> None:
    policy = made(tenants={"a": {}, "b": {}}, tenant_identity={"uri_sans": {"spiffe://b": "b"}})
    assert policy.tenant(header=header, identity=identity).name == expected


@given(st.none() | st.binary(), st.none() | st.binary())
def test_any_header_and_certificate_are_somebodys(header: bytes | None, identity: bytes | None) -> None:
    policy = made(tenants={"a": {}}, tenant_identity={"uri_sans": {"spiffe://a": "a"}})
    assert policy.tenant(header=header, identity=identity) in (policy.default, policy.tenants["a"])


# The keys of breakers

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=63)


@given(NAMES, NAMES | st.just(""), NAMES | st.just(""))
def test_a_fleets_key_says_whose_which_model_and_which_side(group: str, model: str, side: str) -> None:
    assert fleet_name(fleet_key(group, model.encode(), side.encode())) == (group, model, side)


def test_the_circuits_of_models_that_clients_make_up_are_bounded() -> None:
    policy = made(max_fleets=2, tenants={"a": {"breaker": {}}})
    seen = set()
    for number in range(1000):
        circuit = policy.circuit(policy.tenants["a"], b"m%d" % number, b"")
        assert circuit.key == b"a/m%d/" % number
        seen.add(len(policy._circuits))
    assert max(seen) <= 8
