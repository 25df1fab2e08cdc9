"""A filter in a real Envoy: what it asks of its host, what becomes of its exceptions, and of a trap."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy_wasm.testing.envoy import EnvoyFilter

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def host(built: Callable[[Path], Path]) -> Iterator[EnvoyFilter]:
    """The filter of all these tests."""
    with EnvoyFilter(built(Path(__file__).parent / "programs" / "many_calls.py"), clusters=["helper"]) as running:
        yield running


def test_shared_data_properties_queues_and_gauges(host: EnvoyFilter) -> None:
    sent = host.request(body=b"x").sent_upstream
    assert sent.headers["x-method"] == b"POST"
    assert sent.body == b"x"
    visit = sent.headers.text("x-visit")
    assert host.metric("many_last") == int(visit or 0)
    host.until(lambda: f"queued {visit}" in [line.message for line in host.logs])


def test_a_call_is_answered_while_the_request_waits(host: EnvoyFilter) -> None:
    stream = host.request({":path": "/call"})
    assert not stream.reached_upstream
    call = host.next_call()
    assert (call.cluster, call.request.path, call.request.body) == ("helper", "/asked", b"question")
    call.respond(body=b"42")
    assert stream.sent_upstream.headers["x-answer"] == b"42"


def test_a_call_that_is_reset_is_answered_by_envoy(host: EnvoyFilter) -> None:
    stream = host.request({":path": "/call"})
    call = host.next_call()
    call.fail()
    # Envoy makes an answer of status 503 of a reset.
    assert stream.sent_upstream.headers.text("x-answer") is not None


def test_a_timer_lets_the_request_go_on(host: EnvoyFilter) -> None:
    assert host.request({":path": "/sleep"}).sent_upstream.path == "/sleep"


def test_trailers_are_seen_and_added(host: EnvoyFilter) -> None:
    stream = host.request()
    stream.respond(body=b"b", trailers={"x-upstream": "t"})
    assert stream.response.trailers["x-seen"] == b"t"


def test_a_grpc_caller_is_answered_in_grpc(host: EnvoyFilter) -> None:
    response = host.request({":path": "/grpc", "content-type": "application/grpc"}, body=b"\0\0\0\0\0").local_response
    assert (response.status, response.headers["grpc-status"], response.headers["grpc-message"]) == (200, b"8", b"slow down")


def test_an_exception_is_refused_logged_and_counted(host: EnvoyFilter) -> None:
    before = host.metric("proxy_wasm_exceptions")
    stream = host.request({":path": "/raise"})
    assert stream.local_response.status == 500
    assert stream.details == "proxy_wasm_exception"
    assert "LookupError: on purpose" in host.exceptions[-1]
    assert host.metric("proxy_wasm_exceptions") == before + 1


def test_a_trap_is_answered_at_once_and_the_next_requests_work(host: EnvoyFilter) -> None:
    assert host.request({":path": "/trap"}).response.status == 503
    host.until(lambda: host.request().reached_upstream)
