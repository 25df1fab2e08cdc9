"""The answer when no node is left: for JSON, gRPC and event-stream callers, whatever their headers and their model's name are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun_filter.fleet import Choice
from mcprun_filter.refusals import explain, is_grpc, refuse, wants_events


def choice(*, isolated: int = 2, total: int = 2, retry_after: int = 30) -> Choice:
    return Choice((), (), isolated=isolated, total=total, panic=False, retry_after_seconds=retry_after)


TEXT = "Model m is unavailable: 2 of 2 nodes are isolated after failures. Try again in 30 s."


def test_a_rest_caller_gets_json() -> None:
    refusal = refuse(choice(), model=b"m", content_type=b"application/json", accept=b"*/*")
    assert (refusal.status, refusal.grpc_status, refusal.details) == (503, -1, b"mcprun_breaker_open")
    assert dict(refusal.headers) == {b"retry-after": b"30", b"content-type": b"application/json"}
    assert json.loads(refusal.body) == {"error": TEXT}


def test_a_grpc_caller_gets_unavailable_and_when_to_push_again() -> None:
    refusal = refuse(choice(), model=b"m", content_type=b"application/grpc+proto", accept=b"text/event-stream")
    assert (refusal.status, refusal.grpc_status) == (503, 14)
    assert dict(refusal.headers) == {b"retry-after": b"30", b"grpc-retry-pushback-ms": b"30000"}
    assert refusal.body.decode() == TEXT


def test_a_caller_of_events_gets_one_event() -> None:
    refusal = refuse(choice(), model=b"m", content_type=b"application/json", accept=b"text/event-stream")
    assert (refusal.status, refusal.grpc_status) == (503, -1)
    assert dict(refusal.headers) == {b"retry-after": b"30", b"content-type": b"text/event-stream", b"cache-control": b"no-cache"}
    event, data, *rest = refusal.body.decode().split("\n")
    assert (event, rest) == ("event: error", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {"error": TEXT}


@pytest.mark.parametrize(
    ("told", "model", "text"),
    [
        (
            choice(isolated=1, total=1, retry_after=1),
            b"m",
            "Model m is unavailable: its only node is isolated",
        ),
        (
            choice(isolated=3, total=4, retry_after=7),
            b"",
            "The service is unavailable: 3 of 4 nodes are isolated",
        ),
        (choice(retry_after=0), b"m", "Model m is unavailable: 2 of 2 nodes are isolated"),
    ],
)
def test_it_says_what_is_unavailable_why_and_for_how_long(told: Choice, model: bytes, text: str) -> None:
    assert explain(told, model) == f"{text} after failures. Try again in {max(1, told.retry_after_seconds)} s."


@given(
    model=st.binary(max_size=130),
    content_type=st.none() | st.binary(max_size=40),
    accept=st.none() | st.binary(max_size=60),
    isolated=st.integers(0, 64),
    total=st.integers(0, 64),
    retry_after=st.integers(-1, 2**32),
)
def test_any_caller_gets_an_answer_that_its_protocol_can_read(
    model: bytes, content_type: bytes | None, accept: bytes | None, isolated: int, total: int, retry_after: int
) -> None:
    told = choice(isolated=isolated, total=total, retry_after=retry_after)
    for kind in (content_type, b"application/grpc", b"application/json"):
        for wanted in (accept, b"text/event-stream"):
            refusal = refuse(told, model=model, content_type=kind, accept=wanted)
            assert refusal.status == 503
            headers = dict(refusal.headers)
            assert len(headers) == len(refusal.headers)
            assert int(headers[b"retry-after"]) == max(1, retry_after)
            for name, value in headers.items():
                assert not {*name, *value} & {0, 10, 13}
            if is_grpc(kind):
                assert refusal.grpc_status == 14
                assert refusal.body.decode()
            elif headers[b"content-type"] == b"text/event-stream":
                # One event, whatever the name holds: it cannot end the line and begin another.
                lines = refusal.body.split(b"\n")
                assert (len(lines), lines[0]) == (4, b"event: error")
                assert json.loads(lines[1].removeprefix(b"data: "))["error"] == explain(told, model)
            else:
                assert json.loads(refusal.body) == {"error": explain(told, model)}


@pytest.mark.parametrize(
    ("accept", "events"),
    [
        (None, False),
        (b"", False),
        (b"*/*", False),
        (b"text/event-stream", True),
        (b"Text/Event-Stream", True),
        (b" text/event-stream ; charset=utf-8", True),
        (b"text/event-stream, application/json", True),
        (b"application/json, text/event-stream", False),
        (b"text/html, text/event-stream;q=0.9", True),
        (b"text/event-stream;q=0", False),
        (b"text/event-stream; q = 0.000, application/json", False),
        (b"application/json;q=0, text/event-stream", True),
        (b"text/event-streams", False),
        (b",,;;,\xff", False),
    ],
)
def test_who_names_events_before_json_wants_events(accept: bytes | None, events: bool) -> None:
    assert wants_events(accept) is events


@pytest.mark.parametrize(
    ("content_type", "grpc"),
    [
        (None, False),
        (b"", False),
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/grpcx", False),
        (b"application/json", False),
    ],
)
def test_what_envoy_takes_for_grpc_is_grpc(content_type: bytes | None, grpc: bool) -> None:
    assert is_grpc(content_type) is grpc
