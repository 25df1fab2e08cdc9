"""Tenants and environments in the filter itself: whose breakers a request moves, and what a change of one tenant's policy touches."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcprun.edge.policy import EdgePolicy, compiled
from mcprun_filter.app import Guard
from proxy_wasm.testing import Simulation

Property = str | bytes | bool | int

NODES = {"one": ["10.0.0.1:80"], "two": ["10.0.0.2:80"], "three": ["10.0.0.3:80"]}
INFER = "/v2/models/m/infer"
TENANTS: dict[str, Any] = {
    "own": {"breaker": {"consecutive_failures": 2}},
    "other": {"breaker": {"consecutive_failures": 1}},
    "plain": {"canary": [{"name": "beta", "prefix": "/", "tag": "beta"}]},
}


def configuration(*, role: str = "guard", **policy: Any) -> str:
    """As the edge gives it: checked and completed."""
    checked = EdgePolicy.model_validate({"environment": "prod", "breaker": {"panic_ratio": 0}, "tenants": TENANTS, **policy})
    values = compiled(checked, environment="prod", nodes=NODES, node_header="x-mcprun-node")
    return json.dumps({"role": role, "reads_messages": True, "policy": values})


@pytest.fixture
def mesh() -> Iterator[Simulation]:
    with Simulation(Guard, configuration=configuration(), workers=2) as host:
        yield host
        assert not host.exceptions


def ask(mesh: Simulation, *, tenant: str = "", node: str = "10.0.0.1:80", status: int = 200, worker: int = 0, identity: str = "") -> Any:
    """One request of a tenant that ends with a status from a node."""
    headers = {":path": INFER, ":method": "POST", **({"x-tenant": tenant} if tenant else {})}
    connection: dict[tuple[str, ...], Property] = {("connection", "uri_san_peer_certificate"): identity} if identity else {}
    stream = mesh.request(headers, body=b"{}", worker=worker, properties=connection)
    if not stream.answered_locally:
        stream.properties.update({b"upstream\0address": node.encode(), b"response\0code": status.to_bytes(8, "little")})
        stream.properties[b"response\0flags"] = bytes(8)
        stream.respond(status=status, body=b"{}")
    return stream


def records(mesh: Simulation) -> dict[str, bytes]:
    """What is recorded of each tenant's breakers, byte for byte."""
    return {key.removeprefix("breaker/"): value for key, value in mesh.shared_data.as_dict().items() if key.startswith("breaker/")}


def steered(mesh: Simulation, tenant: str) -> list[bytes]:
    """Where the filter sends a tenant's next request; empty: wherever Envoy likes."""
    value = ask(mesh, tenant=tenant, node="10.0.0.2:80").sent_upstream.headers.get("x-mcprun-node")
    return sorted(value.split(b",")) if value else []


def isolated(mesh: Simulation, tenant: str = "") -> bool:
    return bool(steered(mesh, tenant)) and b"10.0.0.1:80" not in steered(mesh, tenant)


def fail(mesh: Simulation, times: int, **request: Any) -> None:
    for number in range(times):
        ask(mesh, status=500, worker=number % 2, **request)


def test_a_tenant_with_a_breaker_of_its_own_moves_no_other(mesh: Simulation) -> None:
    fail(mesh, 3, tenant="own")
    assert isolated(mesh, "own")
    assert not any(isolated(mesh, tenant) for tenant in ("", "other", "plain", "nobody"))
    fail(mesh, 6, tenant="nobody")
    # Who has none of its own shares everybody's.
    assert all(isolated(mesh, tenant) for tenant in ("", "stranger"))
    # All that `plain` asks is canary: the other side of everybody's.
    assert not any(isolated(mesh, tenant) for tenant in ("other", "plain"))


def test_each_tenant_is_judged_by_its_own_thresholds(mesh: Simulation) -> None:
    for tenant, failures in (("other", 2), ("own", 3), ("", 6)):
        fail(mesh, failures - 1, tenant=tenant)
        assert not isolated(mesh, tenant)
    with Simulation(Guard, configuration=configuration(), workers=2) as fresh:
        for tenant, failures in (("other", 2), ("own", 3), ("", 6)):
            fail(fresh, failures, tenant=tenant)
            assert isolated(fresh, tenant)


@pytest.mark.parametrize(
    "change",
    [
        {"own": {"breaker": {"consecutive_failures": 9, "isolation_seconds": 1}}},
        {"own": {"breaker": {"consecutive_failures": 2}, "environment": "dev"}},
        {"own": {"breaker": {"consecutive_failures": 2}, "canary": [], "trust_client_routing": True}},
        {"own": None},
        {"newcomer": {"breaker": {"probes": 16}}},
    ],
    ids=["other thresholds", "another environment", "other rules", "gone", "one more"],
)
def test_a_change_of_one_tenants_policy_touches_no_others_state(mesh: Simulation, change: dict[str, Any]) -> None:
    fail(mesh, 6)
    fail(mesh, 1, node="10.0.0.3:80")
    fail(mesh, 2, tenant="other")
    fail(mesh, 3, tenant="own")
    mesh.advance(5)
    before = records(mesh)
    assert set(before) == {"default/m/", "other/m/", "own/m/"}
    tenants = {name: value for name, value in {**TENANTS, **change}.items() if value is not None}
    mesh.configure(configuration(tenants=tenants))
    # Byte for byte, also its own: thresholds are no part of what is recorded.
    assert records(mesh) == before
    assert isolated(mesh)
    assert isolated(mesh, "other")
    mesh.advance(24)
    assert isolated(mesh)
    assert isolated(mesh, "other")


def test_a_change_of_a_tenants_policy_counts_for_its_state_at_once(mesh: Simulation) -> None:
    fail(mesh, 3, tenant="own")
    fail(mesh, 6)
    assert isolated(mesh, "own")
    shorter = {**TENANTS, "own": {"breaker": {"isolation_seconds": 1, "max_isolation_seconds": 2}}}
    mesh.configure(configuration(tenants=shorter))
    mesh.advance(3)
    # The bound of now holds for an isolation of before; everybody's goes on.
    assert ask(mesh, tenant="own").sent_upstream.headers["x-mcprun-node"] == b"10.0.0.1:80"
    assert isolated(mesh)


def test_a_tenant_that_goes_and_comes_back_finds_its_state(mesh: Simulation) -> None:
    fail(mesh, 3, tenant="own")
    mesh.configure(configuration(tenants={}))
    assert not isolated(mesh, "own")
    mesh.configure(configuration())
    assert isolated(mesh, "own")


def test_a_certificate_says_whose_a_request_is_and_a_header_cannot_say_otherwise() -> None:
    identities = {"uri_sans": {"spiffe://mesh/own": "own"}}
    with Simulation(Guard, configuration=configuration(tenant_identity=identities), workers=2) as mesh:
        fail(mesh, 3, tenant="other", identity="spiffe://mesh/own")
        assert isolated(mesh, "own")
        assert not isolated(mesh, "other")


@pytest.mark.parametrize(("environment", "opens_at"), [("dev", 81), ("staging", 36), ("prod", 16)])
def test_an_environment_says_how_many_errors_of_a_hundred_isolate(environment: str, opens_at: int) -> None:
    breaker = {"min_requests": 100, "consecutive_failures": 1000, "panic_ratio": 0}
    for failures in (opens_at - 1, opens_at):
        for tenants, asked in (({}, ""), ({"a": {"environment": environment}}, "a")):
            edge = {"environment": environment} if not tenants else {"environment": "prod" if environment != "prod" else "dev"}
            with Simulation(Guard, configuration=configuration(breaker=breaker, tenants=tenants, **edge), workers=2) as mesh:
                fail(mesh, failures, tenant=asked)
                for _ in range(100 - failures):
                    ask(mesh, tenant=asked)
                assert isolated(mesh, asked) == (failures == opens_at)


def test_a_tenants_rules_are_its_own(mesh: Simulation) -> None:
    def tag(tenant: str, path: str) -> bytes | None:
        headers = {":path": path, ":method": "POST", "x-tenant": tenant, "x-routing": "mine"}
        value = mesh.request(headers, body=b"{}").sent_upstream.headers.get("x-routing")
        assert value is None or isinstance(value, bytes)
        return value

    assert tag("plain", "/api/v2/v1/infer") == b"beta"
    assert tag("own", "/api/v2/v1/infer") == b"v2-canary"
    assert tag("own", "/v1/infer") is None
    mesh.configure(configuration(tenants={**TENANTS, "own": {"trust_client_routing": True}}))
    assert tag("own", "/v1/infer") == b"mine"
    assert tag("other", "/v1/infer") is None
