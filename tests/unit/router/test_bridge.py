"""How deadlines and messages travel in headers."""

import gzip
import zlib
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun.errors import InvalidInput, MeshError, MessageTooLarge, ResourceExhausted, Unimplemented
from mcprun_router.bridge import encode_message, parse_timeout, uncompressed


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("50m", 0.05), ("7u", 7e-6), ("99999999n", 0.099999999), ("0S", 0)],
)
def test_timeouts_in_every_unit(header: str, seconds: float) -> None:
    assert parse_timeout(header) == pytest.approx(seconds)


@pytest.mark.parametrize("header", ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "١S", "1 S"])
def test_malformed_timeouts_are_as_if_absent(header: str) -> None:
    assert parse_timeout(header) is None


@given(st.text())
def test_any_message_survives_the_header(message: str) -> None:
    try:
        message.encode()
    except UnicodeEncodeError:
        return
    encoded = encode_message(message)
    assert encoded.isascii()
    assert "\n" not in encoded
    assert unquote(encoded) == message


LIMIT = MessageTooLarge(1000)


@pytest.mark.parametrize(
    ("message", "encoding", "plain"),
    [
        (b"\x0a\x01m", "identity", b"\x0a\x01m"),
        (b"\x1f\x8b", "identity", b"\x1f\x8b"),
        (gzip.compress(b"\x0a\x01m"), "gzip", b"\x0a\x01m"),
        (zlib.compress(b"\x0a\x01m"), "deflate", b"\x0a\x01m"),
        (b"\x0a\x01m", "gzip", b"\x0a\x01m"),  # gRPC lets each message choose
        (b"", "deflate", b""),
    ],
)
def test_messages_are_inflated_as_their_headers_say(message: bytes, encoding: str, plain: bytes) -> None:
    assert uncompressed(message, encoding.encode(), LIMIT) == plain


@pytest.mark.parametrize(
    ("message", "encoding", "error"),
    [
        (b"\x1f\x8bno gzip", "gzip", InvalidInput),
        (gzip.compress(b"x" * 100)[:-4], "gzip", InvalidInput),
        (gzip.compress(bytes(1001)), "gzip", ResourceExhausted),
        (zlib.compress(bytes(10**6)), "deflate", ResourceExhausted),
        (b"x", "snappy", Unimplemented),
    ],
)
def test_messages_that_cannot_be_inflated(message: bytes, encoding: str, error: type[MeshError]) -> None:
    with pytest.raises(error):
        uncompressed(message, encoding.encode(), LIMIT)
