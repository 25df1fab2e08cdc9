"""How deadlines and messages travel in headers."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun_router.bridge import encode_message, parse_timeout


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
