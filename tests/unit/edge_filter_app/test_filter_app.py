"""The edge filter's glue, in process, with a simulated clock and several workers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcprun_filter.app import Guard
from proxy_wasm.testing import ConfigurationRefused, Simulation

NODES = [{"name": "one", "addresses": ["10.0.0.1:80", "10.0.0.1:81"]}, {"name": "two", "addresses": ["10.0.0.2:80", "10.0.0.2:81"]}]
CANARY = [
    {"name": "api-v2", "prefix": "/api/v2/", "rewrite": "/", "tag": "v2-canary"},
    {"name": "api-v1", "prefix": "/api/v1/", "rewrite": "/"},
]
POLICY: dict[str, Any] = {"nodes": NODES, "canary": CANARY, "breaker": {"panic_ratio": 0}}
INFER = "/v2/models/m/infer"


def configuration(role: str = "guard", **policy: Any) -> str:
    return json.dumps({"role": role, "reads_messages": True, "policy": {**POLICY, **policy}})


@pytest.fixture
def mesh() -> Iterator[Simulation]:
    with Simulation(Guard, configuration=configuration(), workers=2) as host:
        yield host
        assert not host.exceptions


def ask(mesh: Simulation, path: str = INFER, *, worker: int = 0, node: str = "10.0.0.1:80", status: int = 200, **headers: str) -> Any:
    """One request that ends with a status from a node, unless the filter answers it."""
    stream = mesh.request({":path": path, ":method": "POST", **headers}, body=b"{}", worker=worker)
    if not stream.answered_locally:
        stream.properties.update({b"upstream\0address": node.encode(), b"response\0code": status.to_bytes(8, "little")})
        stream.properties[b"response\0flags"] = bytes(8)
        stream.respond(status=status, body=b"{}")
    return stream


def steered(stream: Any) -> list[bytes]:
    value = stream.sent_upstream.headers.get("x-mcprun-node")
    return value.split(b",") if value else []


def test_a_request_of_an_untroubled_model_is_not_steered(mesh: Simulation) -> None:
    stream = ask(mesh)
    assert steered(stream) == []
    assert stream.response.status == 200


def test_six_failures_in_a_row_isolate_the_node_for_every_worker(mesh: Simulation) -> None:
    for number in range(6):
        assert steered(ask(mesh, worker=number % 2, status=500)) == []
    for worker in (0, 1):
        assert steered(ask(mesh, worker=worker, node="10.0.0.2:81")) == [b"10.0.0.2:80", b"10.0.0.2:81"]
    assert mesh.metric("tenant=.=default;.;model=.=m;.;side=.=;.;node=.=one;.;mcprun_edge_breaker_state") == 2


def test_a_success_that_another_worker_saw_ends_the_row(mesh: Simulation) -> None:
    for number in range(20):
        ask(mesh, worker=0, status=500 if number % 5 else 200)
        ask(mesh, worker=1)
    assert mesh.metric("tenant=.=default;.;model=.=m;.;side=.=;.;node=.=one;.;mcprun_edge_breaker_state") != 0  # by the share
    with Simulation(Guard, configuration=configuration(environment="dev"), workers=2) as other:
        for number in range(20):
            ask(other, worker=0, status=500 if number % 5 else 200)
            ask(other, worker=1)
        assert steered(ask(other)) == []


def test_after_the_isolation_probes_decide(mesh: Simulation) -> None:
    for _ in range(6):
        ask(mesh, status=500)
    mesh.advance(29)
    assert steered(ask(mesh, node="10.0.0.2:80"))[0] == b"10.0.0.2:80"
    mesh.advance(1.1)
    for _ in range(3):
        assert steered(ask(mesh)) == [b"10.0.0.1:80", b"10.0.0.1:81"]
    assert steered(ask(mesh)) == []


def test_no_more_probes_are_under_way_than_allowed(mesh: Simulation) -> None:
    for _ in range(6):
        ask(mesh, status=500)
    mesh.advance(31)
    streams = [mesh.open({":path": INFER, ":method": "POST"}, worker=number % 2) for number in range(10)]
    assert sum(steered(stream)[0] == b"10.0.0.1:80" for stream in streams) == 3


def test_a_probe_that_went_elsewhere_says_nothing(mesh: Simulation) -> None:
    for _ in range(6):
        ask(mesh, status=500)
    mesh.advance(31)
    for _ in range(5):
        ask(mesh, node="10.0.0.2:80")
    (fleet,) = status(mesh)["fleets"]
    assert fleet["nodes"][0]["state"] == "half-open"


def status(mesh: Simulation) -> Any:
    """What the status listener tells, which lives in the same virtual machine."""
    mesh.configure(configuration("status"))
    told = mesh.request({":path": "/"}).response.json()
    mesh.configure(configuration())
    return told


def test_the_status_tells_each_breaker(mesh: Simulation) -> None:
    began = mesh.now
    for _ in range(6):
        ask(mesh, status=500)
    ask(mesh, node="10.0.0.2:80")
    mesh.advance(2)
    told = status(mesh)
    assert told["environment"] == "prod"
    (fleet,) = told["fleets"]
    assert (fleet["tenant"], fleet["model"], fleet["side"]) == ("default", "m", "")
    one, two = fleet["nodes"]
    assert (one["node"], one["state"], one["reason"]) == ("one", "open", "6 failures in a row")
    assert one["since_seconds"] == pytest.approx(began, abs=0.01)
    assert one["until_seconds"] == pytest.approx(began + 30, abs=0.01)
    assert (two["node"], two["state"], two["requests"], two["failures"]) == ("two", "closed", 1, 0)


def test_with_no_node_left_the_caller_is_told_when_to_come_back(mesh: Simulation) -> None:
    mesh.configure(configuration(breaker={"panic_ratio": 0, "max_isolated_ratio": 1}))
    for node in ("10.0.0.1:80", "10.0.0.2:80"):
        for _ in range(6):
            ask(mesh, node=node, status=500)
    refused = ask(mesh)
    assert not refused.reached_upstream
    assert refused.response.status == 503
    assert refused.response.headers["retry-after"] == b"30"
    assert refused.response.json()["error"].startswith("Model m is unavailable: 2 of 2 nodes are isolated")
    assert mesh.metric("tenant=.=default;.;model=.=m;.;side=.=;.;mcprun_edge_refusals_total") == 1
    # The refusal itself is no outcome.
    assert {node["failures"] for fleet in status(mesh)["fleets"] for node in fleet["nodes"]} == {0}
    assert ask(mesh, "/v2/models/m/ready").response.status == 200


def frame(message: bytes) -> bytes:
    return bytes(1) + len(message).to_bytes(4, "big") + message


def test_a_grpc_call_waits_for_the_name_of_its_model(mesh: Simulation) -> None:
    stream = mesh.open({":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc", ":method": "POST"})
    assert stream.request_paused
    assert isinstance(mesh.root, Guard)
    mesh.root.reads_messages = False
    other = mesh.open({":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc", ":method": "POST"})
    assert not other.request_paused
    mesh.root.reads_messages = True


@pytest.mark.parametrize(
    ("path", "headers", "goes_to", "tag"),
    [
        ("/api/v2/v2/models/m/infer?x=1", {}, b"/v2/models/m/infer?x=1", b"v2-canary"),
        ("/api/v1/v1/infer", {}, b"/v1/infer", None),
        ("/v1/infer", {"x-routing": "v2-canary"}, b"/v1/infer", None),
        ("/api/v2", {}, b"/", b"v2-canary"),
    ],
)
def test_tags_and_rewrites(mesh: Simulation, path: str, headers: dict[str, str], goes_to: bytes, tag: bytes | None) -> None:
    stream = ask(mesh, path, **headers)  # type: ignore[arg-type]
    assert stream.sent_upstream.headers[":path"] == goes_to
    assert stream.sent_upstream.headers.get("x-routing") == tag
    assert stream.response.headers.get("x-routing") == tag


def test_a_model_that_loads_is_no_failure(mesh: Simulation) -> None:
    for _ in range(10):
        stream = mesh.request({":path": INFER, ":method": "POST"}, body=b"{}")
        stream.properties.update({b"upstream\0address": b"10.0.0.1:80", b"response\0code": (503).to_bytes(8, "little")})
        stream.respond({"x-mcprun-refusal": "loading"}, status=503)
    assert steered(ask(mesh)) == []


def test_nodes_that_the_policy_does_not_name_are_learned() -> None:
    with Simulation(Guard, configuration=configuration(nodes=[]), workers=1) as mesh:
        for node in ("10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80"):
            ask(mesh, node=node)
        mesh.advance(1.1)
        for _ in range(6):
            ask(mesh, node="10.0.0.1:81", status=500)
        assert steered(ask(mesh, node="10.0.0.2:80")) == [b"10.0.0.2:80"]


@pytest.mark.parametrize(
    "wrong",
    [b"[]", b"{", b'{"policy": {"nonsense": 1}}', b'{"policy": {"breaker": {"probes": 0}}}', b'{"policy": 5}', b"\xff"],
)
def test_a_wrong_configuration_is_refused_and_changes_nothing(wrong: bytes) -> None:
    with Simulation(Guard, configuration=configuration()) as mesh:
        with pytest.raises(ConfigurationRefused):
            mesh.configure(wrong)
        assert ask(mesh, "/api/v2/v1/infer").sent_upstream.headers["x-routing"] == b"v2-canary"


def test_names_that_clients_choose_do_not_grow_the_metrics() -> None:
    with Simulation(Guard, configuration=configuration(max_fleets=4, trust_client_routing=True), workers=2) as host:
        for number in range(40):
            for worker in (0, 1):
                for status in (200, 500):
                    ask(host, f"/v2/models/m{number}/infer", worker=worker, status=status, **{"x-routing": f"tag{number}"})
            host.advance(1)
        shown = [name for name in host.metrics if name.endswith("mcprun_edge_breaker_state")]
        assert 5 <= len(shown) <= 2 * 5  # four fleets and the one of all others, with two nodes at most
        assert any("model=.=*" in name for name in shown)
        assert sum("tag39" in name for name in host.metrics) == 0
        assert host.metric("rule=.=client;.;tag=.=*;.;mcprun_edge_tagged_requests_total") == 160
        assert not host.exceptions
        for each in host.workers:
            assert isinstance(each.root, Guard)
            assert len(each.root._circuits) <= 5


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"environment": "dev"}, {"failed", "isolated", "probed", "back"}),
        ({"environment": "staging"}, {"isolated", "probed", "back"}),
        ({"environment": "prod"}, {"isolated"}),
        ({"environment": "prod", "log_level": "info"}, {"isolated", "probed", "back"}),
        ({"environment": "dev", "log_level": "error"}, set()),
    ],
)
def test_the_policy_says_which_lines_are_told(policy: dict[str, str], told: set[str]) -> None:
    with Simulation(Guard, configuration=configuration(**policy)) as host:
        for _ in range(6):
            ask(host, status=500)
        host.advance(31)
        for _ in range(20):
            ask(host)
        lines = [line.message for line in host.logs]
    words = {"failed": "failed: ", "isolated": " is isolated for ", "probed": " is probed", "back": " is back"}
    assert {name for name, words in words.items() if any(words in line for line in lines)} == told


def test_every_success_counts_once_whatever_way_it_takes(mesh: Simulation) -> None:
    for turn in range(5):
        for number in range(12):
            ask(mesh, worker=number % 2, node=("10.0.0.1:80", "10.0.0.2:80")[number % 3 == 0])
        if turn == 2:
            ask(mesh, status=500)
        mesh.advance(1)
    (fleet,) = status(mesh)["fleets"]
    assert {node["node"]: (node["requests"], node["failures"]) for node in fleet["nodes"]} == {"one": (41, 1), "two": (20, 0)}
