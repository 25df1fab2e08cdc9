"""Headers that hold any bytes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_wasm import HeaderList, HeaderMap, HttpContext, RootContext
from proxy_wasm.testing import Simulation

VALUES = st.binary(max_size=30).filter(lambda value: not set(value) & set(b"\0\r\n"))
NAMES = st.sampled_from([b"x-a", b"x-b", b"x-\xff", b"cookie"])


class Stream(HttpContext["Root"]):
    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
        self.root.check(headers)


class Root(RootContext):
    http_context = Stream
    check: Callable[[HeaderMap], Any]


def with_headers(check: Callable[[HeaderMap], Any], *pairs: tuple[str | bytes, str | bytes]) -> HeaderList:
    """Runs `check` on the headers of a request; returns what it leaves of them."""
    Root.check = staticmethod(check)  # type: ignore[method-assign]
    with Simulation(Root) as host:
        stream = host.request(pairs)
        assert not host.exceptions
        return stream.sent_upstream.headers


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_any_bytes_are_read_and_written_as_they_are(pairs: list[tuple[bytes, bytes]]) -> None:
    seen: list[Any] = []

    def check(headers: HeaderMap) -> None:
        seen.extend(pair for pair in headers.items() if not pair[0].startswith(b":"))
        for name, _ in pairs:
            assert headers.get_all(name) == [value for other, value in pairs if other == name]
            assert headers.get(name) == headers[name] == headers.get_all(name)[0]
            assert "\ufffd" in (headers.text(name) or "") or (headers.text(name) or "").encode() == headers[name]
        headers.replace_all([*headers.items(), ("x-more", b"\xfe")])
        assert headers["X-More"] == b"\xfe"

    left = with_headers(check, *pairs)
    assert seen == pairs
    assert left.get_all("x-more") == [b"\xfe"]


def test_names_are_the_same_in_any_case_and_as_str_or_bytes() -> None:
    def check(headers: HeaderMap) -> None:
        headers["X-Team"] = "vision"
        headers.add(b"x-TEAM", b"audio")
        assert headers.get_all("x-team") == [b"vision", b"audio"]
        assert b"X-TEAM" in headers
        assert 5 not in headers
        headers["x-Team"] = "one"
        assert headers.get_all(b"x-team") == [b"one"]
        del headers["X-TEAM"]
        assert headers.get("x-team") is None
        assert headers.text("x-team", "none") == "none"
        with pytest.raises(KeyError):
            headers["x-team"]
        with pytest.raises(KeyError):
            del headers["x-team"]
        headers.remove("x-team")

    with_headers(check)


def test_iteration_gives_each_name_once() -> None:
    def check(headers: HeaderMap) -> None:
        names = list(headers)
        assert names.count(b"x-a") == 1
        assert len(headers) == len(names) == len(headers.items()) - 1
        assert headers.size == sum(len(name) + len(value) for name, value in headers.items())

    with_headers(check, ("x-a", "1"), ("x-a", "2"))


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", b"\n", "\udc80"])
def test_what_no_header_can_hold_is_refused_before_the_host_sees_it(value: str | bytes) -> None:
    def check(headers: HeaderMap) -> None:
        with pytest.raises(ValueError, match="header value"):
            headers["x-a"] = value
        with pytest.raises(ValueError, match="header value"):
            headers.add("x-a", value)
        assert "x-a" not in headers

    with_headers(check)


@pytest.mark.parametrize("name", ["", b"", "a\nb", b"a\0", "\udc80"])
def test_an_impossible_name_finds_nothing_and_cannot_be_written(name: str | bytes) -> None:
    def check(headers: HeaderMap) -> None:
        assert headers.get(name) is None
        assert name not in headers
        with pytest.raises(ValueError, match="no header can have this name"):
            headers[name] = "x"

    with_headers(check)


def test_text_is_utf_8_with_a_mark_for_each_wrong_byte() -> None:
    def check(headers: HeaderMap) -> None:
        assert headers.text("x-a") == "naïve"
        assert headers.text("x-b") == "na\ufffdve"

    with_headers(check, ("x-a", "naïve"), ("x-b", "naïve".encode("latin-1")))


def test_a_snapshot_outlives_the_callback() -> None:
    kept: list[HeaderList] = []
    with_headers(lambda headers: kept.append(headers.snapshot()), ("x-a", "1"))
    assert kept[0]["x-a"] == b"1"
