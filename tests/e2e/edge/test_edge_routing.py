"""One port for HTTP/1.1, HTTP/2 and gRPC; each request reaches the listener of the router that can answer it, unchanged."""

import gzip
import http.client
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from .fake_router import FakeRouter
from .running_edge import SERVICE, Caller, Edge, frame, http1, raw_call

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_rest_over_http1_reaches_the_http_listener(edge: Edge, router: FakeRouter) -> None:
    answer = httpx.post(f"{edge.url}/v2/models/m/infer", json={"id": "7"})
    assert answer.status_code == 200
    assert answer.http_version == "HTTP/1.1"
    assert answer.json()["path"] == "/v2/models/m/infer"
    assert answer.headers["server"] == "mcprun"
    assert router.seen.listener == "http"


def test_rest_over_http2_without_tls_reaches_the_http_listener(edge: Edge) -> None:
    with httpx.Client(http1=False, http2=True) as client:
        answer = client.post(f"{edge.url}/v2/models/m/infer", content=b"12345")
    assert answer.http_version == "HTTP/2"
    assert answer.json()["bytes"] == 5


def test_a_unary_call_reaches_the_http_listener_as_the_bare_message(edge: Edge, caller: Caller, router: FakeRouter) -> None:
    metadata = (("traceparent", TRACEPARENT), ("x-routing", "v2-canary"), ("x-tenant", "acme"))
    assert caller.unary("ModelInfer")(b"message", timeout=5, metadata=metadata) == b"message"
    seen = router.seen
    assert seen.listener == "http"
    assert seen.paths[-1] == f"{SERVICE}ModelInfer"
    assert seen.headers["content-type"] == "application/x-protobuf"
    assert seen.headers["traceparent"] == TRACEPARENT
    assert seen.headers["x-routing"] == "v2-canary"
    assert seen.headers["x-tenant"] == "acme"
    assert int(seen.headers["grpc-timeout"][:-1]) > 0
    assert edge.stat("cluster.router_http.upstream_rq_timeout") == 0


def test_an_empty_message_passes(caller: Caller) -> None:
    assert caller.unary("ServerLive")(b"", timeout=5) == b""


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto"])
def test_the_answer_has_the_content_type_of_the_call_and_no_helper_headers(edge: Edge, content_type: str) -> None:
    answer = raw_call(edge.port, f"{SERVICE}ModelInfer", frame(b"message"), headers=[("content-type", content_type)])
    assert answer.headers[":status"] == "200"
    assert answer.headers["content-type"] == content_type
    assert answer.body == frame(b"message")
    assert answer.trailers == {"grpc-status": "0"}
    assert not {"x-msg-size", "x-grpc-status", "x-grpc-message"} & set(answer.headers)


@pytest.mark.parametrize(
    "method",
    [
        f"{SERVICE}ModelStreamInfer",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/another.Service/Method",
    ],
)
def test_streams_and_other_services_reach_the_grpc_listener(caller: Caller, router: FakeRouter, method: str) -> None:
    assert list(caller.stream(method)(iter([b"1", b"2", b"3"]), timeout=5)) == [b"1", b"2", b"3"]
    assert router.seen.paths[-1] == method
    assert router.seen.listener == "grpc"


def test_a_refusal_within_a_stream_keeps_its_code_and_message(caller: Caller) -> None:
    answers = caller.stream("ModelStreamInfer")(iter([b"1", b"refuse"]), timeout=5)
    assert next(answers) == b"1"
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "as asked"


def test_a_compressed_call_is_bridged_as_it_came(edge: Edge, router: FakeRouter) -> None:
    message = gzip.compress(b"m" * 10_000)
    raw = raw_call(edge.port, f"{SERVICE}ModelInfer", frame(message, compressed=True), headers=[("grpc-encoding", "gzip")])
    assert raw.trailers["grpc-status"] == "0"
    assert router.seen.listener == "http"
    assert router.seen.headers["grpc-encoding"] == "gzip"


@pytest.mark.parametrize("path", [f"{SERVICE}ModelStreamInfer", "/grpc.health.v1.Health/Check"])
def test_other_compressed_calls_are_refused(edge: Edge, path: str) -> None:
    raw = raw_call(edge.port, path, frame(gzip.compress(b"m"), compressed=True), headers=[("grpc-encoding", "gzip")])
    told = raw.headers | raw.trailers
    assert told["grpc-status"] == "12"
    assert "compressed" in told["grpc-message"]


def test_a_call_that_says_it_is_not_compressed_is_bridged(edge: Edge, router: FakeRouter) -> None:
    answer = raw_call(edge.port, f"{SERVICE}ModelInfer", frame(b"m"), headers=[("grpc-encoding", "identity")])
    assert answer.trailers == {"grpc-status": "0"}
    assert router.seen.listener == "http"


def test_a_call_without_any_message_is_answered_by_the_grpc_listener(edge: Edge, router: FakeRouter) -> None:
    answer = raw_call(edge.port, f"{SERVICE}ModelInfer")
    assert "grpc-status" in answer.headers | answer.trailers
    assert router.seen.listener == "grpc"


def test_the_content_type_of_bridged_calls_does_not_make_a_request_one(edge: Edge) -> None:
    answer = httpx.post(f"{edge.url}{SERVICE}Refuse", content=b"3;no", headers={"content-type": "application/x-protobuf"})
    assert answer.status_code == 429
    assert answer.json() == {"error": "no"}


@pytest.mark.parametrize("path", ["/v2/models/a%2Fb/infer", "/v2/models/%E6%A8%A1%2e%2E%5c", "/v2//models/../m/./infer?x=%20+&y"])
def test_a_path_reaches_the_router_as_it_was_sent(edge: Edge, router: FakeRouter, path: str) -> None:
    with http1(edge.port) as connection:
        connection.request("GET", path)
        assert connection.getresponse().status == 200
    assert router.seen.paths[-1] == path.partition("?")[0]


def test_a_request_id_is_kept_or_made_and_returned(edge: Edge, router: FakeRouter) -> None:
    kept = httpx.get(f"{edge.url}/v2", headers={"x-request-id": "my own"})
    assert router.seen.headers["x-request-id"] == "my own"
    assert kept.headers["x-request-id"] == "my own"
    made = httpx.get(f"{edge.url}/v2")
    assert len(made.headers["x-request-id"]) == 36
    assert router.seen.headers["x-request-id"] == made.headers["x-request-id"]


def test_the_router_is_told_who_calls(edge: Edge, router: FakeRouter) -> None:
    httpx.get(f"{edge.url}/v2", headers={"x-forwarded-for": "203.0.113.7"})
    first, *others = router.seen.headers["x-forwarded-for"].split(",")
    assert first == "203.0.113.7"
    assert len(others) == 1


def test_clients_cannot_steer_envoy(edge: Edge, router: FakeRouter) -> None:
    answer = httpx.get(f"{edge.url}/v2", headers={"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-retry-on": "5xx"})
    assert answer.status_code == 200
    assert not {name for name in router.seen.headers if name.startswith("x-envoy-") and name != "x-envoy-external-address"}
    assert not [name for name in answer.headers if name.startswith("x-envoy-")]


@pytest.mark.parametrize("headers", [{"big": "x" * 70_000}, {f"header-{number}": "x" for number in range(300)}], ids=["bytes", "count"])
def test_too_large_headers_are_refused(edge: Edge, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{edge.url}/v2", headers=headers)
    assert answer.status_code == 431
    assert "error" in answer.json()


def test_events_arrive_as_they_are_sent(edge: Edge, router: FakeRouter) -> None:
    with router.holding() as release, httpx.stream("GET", f"{edge.url}/v2/events") as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"data: first\n\n"
        release()
        assert next(parts) == b"data: last\n\n"


def test_prometheus_metrics_are_at_the_admin_address(edge: Edge) -> None:
    with edge.admin as admin:
        text = admin.get("/stats/prometheus").text
    assert "envoy_http_downstream_rq_total" in text
    assert 'envoy_cluster_name="router_http"' in text


def test_the_access_log_is_a_line_of_json_for_each_request(folder: Path, router: FakeRouter) -> None:
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}", arguments=["--access-log"])
    try:
        with edge.channel() as channel:
            assert Caller(channel).refused("Refuse", b"8;full") == ("RESOURCE_EXHAUSTED", "full")
        httpx.get(f"{edge.url}/v2/models", headers={"traceparent": TRACEPARENT})
    finally:
        assert edge.process.stdout is not None
        edge.process.terminate()
        lines: list[dict[str, Any]] = [json.loads(line) for line in edge.process.stdout]
        assert edge.stop() == 0
    assert [line["path"] for line in lines] == [f"{SERVICE}Refuse", "/v2/models"]
    assert lines[0]["grpc_status"] == "8"
    assert lines[1]["http_status"] == 200
    assert lines[1]["traceparent"] == TRACEPARENT
    assert {line["service_name"] for line in lines} == {"mcprun-edge"}


def test_a_request_that_is_no_http_is_refused(edge: Edge) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", edge.port, timeout=5)
    connection.connect()
    connection.sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 400")
    connection.close()
