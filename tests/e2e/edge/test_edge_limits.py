"""Large messages pass both ways, and those over the limit end in the router's refusal and not in a reset."""

from collections.abc import Iterator

import httpx
import pytest

from .fake_router import LIMIT_BYTES
from .running_edge import Caller, Edge, http1

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize("size", [5, 60])
def test_large_messages_pass_both_ways_over_grpc(caller: Caller, size: int) -> None:
    message = bytes(size * MEBIBYTE)
    assert caller.unary("Echo")(message, timeout=30) == message


def test_messages_of_any_size_come_back_whole(caller: Caller) -> None:
    for size in (0, 1, 16384, 65535, MEBIBYTE - 5, MEBIBYTE, 8 * MEBIBYTE, 12 * MEBIBYTE, 20 * MEBIBYTE):
        assert len(caller.unary("Size")(str(size).encode(), timeout=30)) == size


@pytest.mark.parametrize("size", [5, 60])
def test_large_messages_pass_both_ways_over_http1(edge: Edge, size: int) -> None:
    with http1(edge.port) as connection:
        connection.request("POST", "/v2/Count", body=bytes(size * MEBIBYTE))
        assert int(connection.getresponse().read()) == size * MEBIBYTE
        connection.request("POST", "/v2/Size", body=str(size * MEBIBYTE))
        assert len(connection.getresponse().read()) == size * MEBIBYTE


def test_large_messages_pass_both_ways_over_http2(edge: Edge) -> None:
    with httpx.Client(http1=False, http2=True) as client:
        assert int(client.post(f"{edge.url}/v2/Count", content=_parts(60)).text) == 60 * MEBIBYTE
        assert len(client.post(f"{edge.url}/v2/Size", content=str(60 * MEBIBYTE).encode()).content) == 60 * MEBIBYTE


def test_a_large_stream_message_passes_over_grpc(caller: Caller) -> None:
    message = bytes(60 * MEBIBYTE)
    assert list(caller.stream("ModelStreamInfer")(iter([message]), timeout=30)) == [message]


def test_a_refusal_before_the_message_is_whole_reaches_grpc_clients(caller: Caller) -> None:
    message = bytes(70 * MEBIBYTE)
    for _ in range(3):
        assert caller.refused("Early", message) == ("RESOURCE_EXHAUSTED", f"the request is too large: at most {LIMIT_BYTES} bytes")


def test_a_refusal_before_the_message_is_whole_reaches_http1_clients_that_read_it(edge: Edge) -> None:
    for _ in range(3):
        answer = httpx.post(f"{edge.url}/v2/Early", content=_parts(70))
        assert answer.status_code == 429
        assert str(LIMIT_BYTES) in answer.json()["error"]


def test_a_refusal_after_the_message_reaches_http1_clients_that_only_read_then(edge: Edge) -> None:
    with http1(edge.port) as connection:
        connection.request("POST", "/v2/Late", body=bytes(70 * MEBIBYTE))
        answer = connection.getresponse()
        assert answer.status == 429
        assert str(LIMIT_BYTES).encode() in answer.read()


def _parts(mebibytes: int) -> Iterator[bytes]:
    part = bytes(65536)
    for _ in range(mebibytes * 16):
        yield part
