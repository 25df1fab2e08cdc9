"""The edge drains when it is told to stop, and it and its Envoy never outlive each other."""

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from .fake_router import FakeRouter, wait_until
from .running_edge import Caller, Edge


@pytest.fixture
def own_edge(folder: Path, router: FakeRouter) -> Iterator[Edge]:
    """An edge that may be stopped."""
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}")
    yield edge
    edge.stop()


def test_sigterm_finishes_what_is_open_and_takes_nothing_new(own_edge: Edge, router: FakeRouter) -> None:
    with own_edge.channel() as channel, router.holding() as release:
        call = Caller(channel).unary("Held").future(b"open", timeout=20)
        connection = http.client.HTTPConnection("127.0.0.1", own_edge.port, timeout=20)
        connection.request("POST", "/v2/Held", body=b"open too")
        wait_until(lambda: router.seen.waiting == 2, "both are at the router")
        own_edge.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _accepts(own_edge.port), "new connections are refused")
        assert own_edge.process.poll() is None
        release()
        assert call.result() == b"open"
        answer = connection.getresponse()
        assert answer.read() == b"open too"
        assert answer.getheader("connection") == "close"
    assert own_edge.process.wait(timeout=10) == 0


def test_sigterm_sends_an_answer_to_its_end(own_edge: Edge) -> None:
    size = 30 * 1024 * 1024
    with httpx.stream("POST", f"{own_edge.url}/v2/Size", content=str(size).encode()) as answer:
        own_edge.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _accepts(own_edge.port), "new connections are refused")
        assert sum(len(part) for part in answer.iter_raw()) == size
    assert own_edge.process.wait(timeout=10) == 0


def test_a_drain_has_a_bound(folder: Path, router: FakeRouter) -> None:
    arguments = ["--drain-seconds", "0.3"]
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}", arguments=arguments)
    with edge.channel() as channel:
        call = Caller(channel).unary("Hang").future(b"x", timeout=20)
        wait_until(lambda: router.seen.waiting == 1, "the call is at the router")
        assert edge.stop() == 0
        assert call.exception() is not None
    assert "stopped with requests unfinished" in edge.log
    wait_until(lambda: router.seen.waiting == 0, "the router was told")


def test_the_edge_ends_when_envoy_dies_and_tells_its_code(own_edge: Edge) -> None:
    own_edge.envoy.kill()
    assert own_edge.process.wait(timeout=10) == 128 + signal.SIGKILL
    assert '"exit_code":-9' in own_edge.log


def test_a_port_that_is_taken_ends_the_edge_with_a_reason(folder: Path, edge: Edge) -> None:
    with pytest.raises(AssertionError, match=f"port {edge.port} is taken by envoy"):
        Edge(folder, router_http="unix:/nowhere", router_grpc="unix:/nowhere", port=edge.port)


def test_envoy_ends_when_the_edge_is_killed_and_the_next_one_starts_in_its_place(folder: Path, router: FakeRouter) -> None:
    for _ in range(2):
        edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}")
        with edge.channel() as channel:
            assert Caller(channel).unary("Echo")(b"x", timeout=5) == b"x"
        envoy = edge.envoy
        edge.process.kill()
        _, alive = psutil.wait_procs([envoy], timeout=5)
        assert not alive
        assert not _accepts(edge.port)
        edge.stop()


def test_it_stops_with_code_0_and_every_line_of_its_log_is_json_with_service_and_trace(folder: Path, router: FakeRouter) -> None:
    arguments = ["--log-level", "info"]
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}", arguments=arguments)
    envoy = edge.envoy
    assert edge.stop() == 0
    assert not envoy.is_running()
    lines = [json.loads(line) for line in edge.log.splitlines()]
    assert any(line["logger"].startswith("envoy.") for line in lines)
    for line in lines:
        assert line["service_name"] == "mcprun-edge"
        assert {"timestamp", "level", "event", "trace_id", "span_id"} <= set(line)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
