"""Callbacks that are `async def`, and futures."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy_wasm import Action, CallFailed, ErrorPolicy, GrpcCallFailed, HeaderMap, HttpCall, HttpContext, RootContext
from proxy_wasm.testing import SimulatedStream, Simulation

Body = Callable[["Stream"], Awaitable[Action | None]]


class Stream(HttpContext["Root"]):
    async def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action | None:
        return await self.root.behave(self)


class Strict(Stream):
    on_error = ErrorPolicy.REFUSE


class Root(RootContext):
    http_context = Stream
    behave: Body


def started(behave: Body, stream: type[Stream] = Stream, **options: Any) -> tuple[Simulation, SimulatedStream]:
    """A request whose headers' callback is `behave`."""

    class Filter(Root):
        http_context = stream

    Filter.behave = staticmethod(behave)  # type: ignore[method-assign]
    host = Simulation(Filter, **options)
    return host, host.request({"x-a": "1"})


def test_a_callback_that_waits_for_nothing_answers_at_once() -> None:
    async def behave(stream: Stream) -> None:
        stream.request_headers["x-b"] = "2"

    _, stream = started(behave)
    assert stream.sent_upstream.headers["x-b"] == b"2"


def test_the_stream_is_paused_while_it_waits_and_goes_on_after() -> None:
    async def behave(stream: Stream) -> None:
        answer = await stream.http_call("keys", path="/check")
        stream.request_headers["x-status"] = str(answer.status)

    host, stream = started(behave)
    assert stream.request_paused
    host.next_call().respond(status=204)
    assert stream.sent_upstream.headers["x-status"] == b"204"
    assert not host.exceptions


def test_two_calls_one_after_the_other() -> None:
    async def behave(stream: Stream) -> None:
        first = await stream.http_call("a")
        second = await stream.http_call("b", method="POST", body=first.body)
        stream.request_headers["x-b"] = second.body

    host, stream = started(behave)
    host.next_call().respond(body=b"one")
    call = host.next_call()
    assert (call.cluster, call.request.body, call.request.method) == ("b", b"one", "POST")
    assert not stream.reached_upstream
    call.respond(body=b"two")
    assert stream.sent_upstream.headers["x-b"] == b"two"


def test_two_calls_at_once_answered_in_the_other_order() -> None:
    async def behave(stream: Stream) -> None:
        first, second = stream.http_call("a"), stream.http_call("b")
        stream.request_headers["x-b"] = (await first).body + (await second).body

    host, stream = started(behave)
    first, second = host.calls
    second.respond(body=b"2")  # type: ignore[attr-defined]
    first.respond(body=b"1")  # type: ignore[attr-defined]
    assert stream.sent_upstream.headers["x-b"] == b"12"


def test_a_stream_that_is_gone_closes_what_waits_and_drops_the_answer() -> None:
    ended: list[str] = []

    async def behave(stream: Stream) -> None:
        call = stream.http_call("a")
        call.add_done_callback(lambda _: ended.append("called back"))
        try:
            await call
            ended.append("answered")
        finally:
            ended.append("closed")

    host, stream = started(behave)
    stream.reset()
    assert ended == ["closed"]
    host.next_call().respond()
    assert ended == ["closed"]
    assert not host.exceptions
    assert not host.streams


def test_a_coroutine_that_will_not_close_is_reported_and_nothing_more() -> None:
    async def behave(stream: Stream) -> None:
        with contextlib.suppress(GeneratorExit):
            await stream.http_call("a")
        await stream.http_call("b")

    host, stream = started(behave)
    stream.reset()
    assert "coroutine ignored GeneratorExit" in host.exceptions[0]
    assert host.request({":path": "/next"}).request_paused
    host.close()


@pytest.mark.parametrize("policy", [Stream, Strict])
def test_an_exception_after_the_wait_is_answered_by_the_policy(policy: type[Stream]) -> None:
    async def behave(stream: Stream) -> None:
        await stream.http_call("a")
        raise KeyError("lost")

    host, stream = started(behave, policy)
    host.next_call().respond()
    assert "KeyError: 'lost'" in host.exceptions[0]
    assert host.metric("proxy_wasm_exceptions") == 1
    if policy is Strict:
        assert stream.local_response.status == 500
        assert not stream.reached_upstream
    else:
        assert stream.sent_upstream.headers["x-a"] == b"1"


def test_a_local_response_after_the_wait_ends_the_stream() -> None:
    async def behave(stream: Stream) -> None:
        await stream.http_call("a")
        stream.send_local_response(403, body="no")

    host, stream = started(behave)
    host.next_call().respond()
    assert (stream.local_response.status, stream.local_response.body) == (403, b"no")
    assert not stream.reached_upstream
    assert not host.streams


def test_pause_after_the_wait_keeps_the_stream() -> None:
    async def behave(stream: Stream) -> Action:
        await stream.http_call("a")
        stream.call_later(1, stream.continue_request)
        return Action.PAUSE

    host, stream = started(behave)
    host.next_call().respond()
    assert stream.request_paused
    host.advance(1)
    assert stream.reached_upstream


@pytest.mark.parametrize("how", ["reset", "timeout", "cluster"])
def test_a_call_that_fails_raises_where_it_is_awaited(how: str) -> None:
    async def behave(stream: Stream) -> None:
        try:
            await stream.http_call("a" if how != "cluster" else "missing", timeout=0.2)
        except CallFailed as error:
            stream.request_headers["x-error"] = str(error)[:20]

    host, stream = started(behave, clusters=["a"])
    if how == "reset":
        host.next_call().fail()
    elif how == "timeout":
        host.advance(0.19)
        assert stream.request_paused
        host.advance(0.01)
    assert "x-error" in stream.sent_upstream.headers
    assert not host.exceptions


def test_the_status_and_message_of_a_failed_grpc_call() -> None:
    async def behave(stream: Stream) -> None:
        assert await stream.grpc_call("a", "acme.Auth", "Check", b"ping") == b"pong"
        with pytest.raises(GrpcCallFailed, match="UNAVAILABLE: down") as failed:
            await stream.grpc_call("a", "acme.Auth", "Check", b"ping")
        assert failed.value.status == 14

    host, stream = started(behave)
    call = host.next_grpc_call()
    assert (call.cluster, call.service, call.method, call.message) == ("a", "acme.Auth", "Check", b"ping")
    call.respond(b"pong")
    host.next_grpc_call().fail(14, "down")
    assert stream.reached_upstream
    assert not host.exceptions


def test_a_grpc_call_is_cancelled_with_its_stream() -> None:
    async def behave(stream: Stream) -> None:
        await stream.grpc_call("a", "acme.Auth", "Check", b"")

    host, stream = started(behave)
    call = host.next_grpc_call()
    stream.reset()
    assert call.cancelled


def test_sleep_waits_for_simulated_time() -> None:
    async def behave(stream: Stream) -> None:
        await stream.sleep(0.25)
        await stream.sleep(0.25)

    host, stream = started(behave)
    host.advance(0.499)
    assert stream.request_paused
    host.advance(0.001)
    assert stream.reached_upstream


def test_only_futures_of_the_sdk_can_be_awaited() -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield "something"

    async def behave(stream: Stream) -> None:
        await Foreign()

    host, stream = started(behave)
    assert "there is no event loop" in host.exceptions[0]
    assert stream.reached_upstream


def test_a_callback_that_fails_lets_the_paused_stream_go_on() -> None:
    class Paused(HttpContext[RootContext]):
        def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
            self.http_call("a").add_done_callback(self.answered)
            return Action.PAUSE

        def answered(self, call: HttpCall) -> None:
            raise LookupError(call.result().status)

    class Filter(RootContext):
        http_context = Paused

    host = Simulation(Filter)
    stream = host.request()
    host.next_call().respond()
    assert "LookupError: 200" in host.exceptions[0]
    assert stream.reached_upstream


def test_what_comes_while_a_body_waits_is_given_to_the_filter_after() -> None:
    seen: list[tuple[str, Any]] = []

    class Slow(HttpContext[RootContext]):
        async def on_request_body(self, size: int, end_of_stream: bool) -> None:
            seen.append(("body", (size, end_of_stream)))
            if len(seen) == 1:
                await self.http_call("a")

        def on_request_trailers(self, trailers: HeaderMap) -> None:
            seen.append(("trailers", trailers["x-t"]))

    class Filter(RootContext):
        http_context = Slow

    host = Simulation(Filter)
    stream = host.request(body=[b"ab", b"cd", b"e"], trailers={"x-t": "1"})
    assert seen == [("body", (2, False))]
    assert stream.sent_upstream.body == b""
    host.next_call().respond()
    assert seen == [("body", (2, False)), ("body", (5, False)), ("trailers", b"1")]
    assert stream.sent_upstream.body == b"abcde"
    assert stream.sent_upstream.trailers["x-t"] == b"1"
    assert stream.sent_upstream.complete


def test_a_response_waits_as_well() -> None:
    class Slow(HttpContext[RootContext]):
        async def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
            answer = await self.http_call("a")
            headers["x-b"] = answer.body

    class Filter(RootContext):
        http_context = Slow

    host = Simulation(Filter)
    stream = host.request()
    stream.respond(body=b"hello")
    assert not stream.answered
    host.next_call().respond(body=b"b")
    assert stream.response.headers["x-b"] == b"b"
    assert stream.response.body == b"hello"
