"""Tags, and the paths that requests go on with."""

import httpx
import pytest

from .guarded_edge import QUICK, GuardedEdge
from .replica import Replica


def seen(replicas: list[Replica]) -> tuple[str, dict[str, str]]:
    """Path and headers of the only request."""
    (request,) = [request for replica in replicas for request in replica.requests]
    for replica in replicas:
        replica.requests.clear()
    return request.path, request.headers


def test_api_v2_is_the_canary_of_the_same_api(edge: GuardedEdge, replicas: list[Replica]) -> None:
    answer = httpx.post(f"{edge.url}/api/v2/v2/models/m/infer?a=b%20c", content=b"{}")
    path, headers = seen(replicas)
    assert path == "/v2/models/m/infer?a=b%20c"
    assert headers["x-routing"] == "v2-canary"
    assert answer.headers["x-routing"] == "v2-canary"
    answer = httpx.post(f"{edge.url}/api/v1/v2/models/m/infer", content=b"{}")
    path, headers = seen(replicas)
    assert path == "/v2/models/m/infer"
    assert "x-routing" not in headers
    assert "x-routing" not in answer.headers


@pytest.mark.parametrize("path", ["/api/v20/x", "/api/v3/x", "/apiv2/", "/v2/models/api/v2/infer"])
def test_other_paths_are_left_alone(edge: GuardedEdge, replicas: list[Replica], path: str) -> None:
    httpx.get(f"{edge.url}{path}")
    assert seen(replicas)[0] == path


def test_the_route_is_picked_anew_after_the_rewrite(edge: GuardedEdge) -> None:
    answer = httpx.get(f"{edge.url}/api/v1/metrics")
    assert answer.status_code == 404
    assert answer.json() == {"error": "nothing is at /metrics"}


def test_a_clients_own_tag_is_not_trusted(edge: GuardedEdge, replicas: list[Replica]) -> None:
    httpx.post(f"{edge.url}/v2/models/m/infer", content=b"{}", headers={"x-routing": "v2-canary"})
    assert "x-routing" not in seen(replicas)[1]
    httpx.post(f"{edge.url}/v2/models/m/infer", content=b"{}", headers={"x-routing": "v2-canary", "x-tenant": "trusted"})
    assert seen(replicas)[1]["x-routing"] == "v2-canary"


def test_a_clients_choice_of_node_never_leaves_the_edge(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    address = f"127.0.0.1:{replicas[0].http_port}"
    chosen = {edge.infer(model, headers={"x-mcprun-node": address}).headers["x-replica"] for _ in range(30)}
    assert chosen == {"router-1", "router-2", "router-3"}
    assert not [request for replica in replicas for request in replica.requests if "x-mcprun-node" in request.headers]


def test_rules_by_header_metadata_and_share(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    rules = [
        {"tag": "beta", "header": {"name": "x-group", "exact": "beta"}},
        {"tag": "gold", "metadata": {"name": "x-plan", "prefix": "gold"}},
        {"tag": "some", "percent": 30, "key": "header", "key_header": "x-user"},
    ]
    assert edge.apply({**QUICK, "canary": rules}).outcome == "applied"
    assert edge.infer(model, headers={"x-group": "beta"}).headers["x-routing"] == "beta"
    assert "x-routing" not in edge.infer(model, headers={"x-group": "betas"}).headers
    assert edge.call(model, metadata=[("x-plan", "gold-1")])[1]["x-routing"] == "gold"
    with httpx.Client() as client:
        tagged = [
            user for user in range(300) if "x-routing" in edge.infer(model, client=client, headers={"x-user": f"user-{user}"}).headers
        ]
        again = [user for user in range(300) if "x-routing" in edge.infer(model, client=client, headers={"x-user": f"user-{user}"}).headers]
    assert tagged == again
    assert 60 <= len(tagged) <= 120
