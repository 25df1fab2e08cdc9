"""Which model a request is about, from whatever bytes a client sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun_filter.model_name import MAX_NAME, METHODS, NEED_MORE, SERVICE, UNKNOWN, from_message, from_path, in_message, is_model_name

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


def frame(message: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    return bytes((compressed,)) + (len(message) if length is None else length).to_bytes(4, "big") + message


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@given(st.text() | NAMES)
def test_a_name_is_one_that_a_model_can_have(text: str) -> None:
    expected = 0 < len(text) <= MAX_NAME and text[0] in LETTERS and all(c in LETTERS + "._-" for c in text)
    assert is_model_name(text.encode("utf-8", "surrogatepass")) == expected


# Paths


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/v2/models/m/infer", b"m"),
        (b"/v2/models/m", b"m"),
        (b"/v2/models/m?x=/v2/models/n", b"m"),
        (b"/v2/models/m#f", b"m"),
        (b"/v2/models/m/versions/3/infer", b"m"),
        (b"/v2/models/re%73net%2D50/infer", b"resnet-50"),
        (b"/v2/models/%6d", b"m"),
        (b"/v2/models/m%2Fn/infer", UNKNOWN),
        (b"/v2/models/m%0An", UNKNOWN),
        (b"/v2/models/m%", UNKNOWN),
        (b"/v2/models/m%4", UNKNOWN),
        (b"/v2/models/m%zz", UNKNOWN),
        (b"/v2/models/m%+1", UNKNOWN),
        (b"/v2/models/m%25", UNKNOWN),
        (b"/v2/models/-m", UNKNOWN),
        (b"/v2/models/..", UNKNOWN),
        (b"/v2/models/", UNKNOWN),
        (b"/v2/models//infer", UNKNOWN),
        (b"/v2/models", UNKNOWN),
        (b"/V2/models/m", UNKNOWN),
        (b"/v1/models/m", UNKNOWN),
        (b"/v2/models/" + b"m" * 128, b"m" * 128),
        (b"/v2/models/" + b"m" * 129, UNKNOWN),
        (b"/v2/models/\xff", UNKNOWN),
        (b"", UNKNOWN),
    ],
)
def test_the_name_in_a_path(path: bytes, name: bytes) -> None:
    assert from_path(path) == name


@given(st.binary() | st.lists(st.sampled_from([b"%", b"%2", b"%4d", b"m", b"/", b"?", b"\0", b"\xff"])).map(b"".join))
def test_any_path_gives_a_name_or_none(rest: bytes) -> None:
    for path in (rest, b"/v2/models/" + rest):
        name = from_path(path)
        assert name == UNKNOWN or is_model_name(name)


@given(NAMES, st.binary(max_size=1), st.booleans())
def test_a_name_is_found_escaped_or_not(name: str, more: bytes, escaped: bool) -> None:
    written = "".join(f"%{byte:02x}" for byte in name.encode()) if escaped else name
    assert from_path(b"/v2/models/" + written.encode() + b"/infer" + more) == name.encode()


# Messages


@pytest.mark.parametrize("kind", [oip.ModelInferRequest, oip.ModelReadyRequest, oip.ModelMetadataRequest, oip.ModelConfigRequest])
@given(name=NAMES, version=st.text(max_size=20))
def test_the_name_of_a_real_message_is_found_in_its_first_bytes(kind: type, name: str, version: str) -> None:
    message = kind()
    setattr(message, "name" if hasattr(message, "name") else "model_name", name)
    setattr(message, "version" if hasattr(message, "version") else "model_version", version)
    data = frame(message.SerializeToString())
    assert from_message(data) == name.encode()
    # With fewer bytes it waits, and never guesses: the name is whole or none.
    known = 5 + 2 + len(name) + (len(name) > 127)
    for size in range(len(data) + 1):
        assert from_message(data[:size]) == (name.encode() if size >= known else NEED_MORE)


@given(name=NAMES, junk=st.lists(st.tuples(st.integers(2, 2**29 - 1), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=20)), max_size=5))
def test_fields_before_the_name_are_skipped_whatever_they_are(name: str, junk: list[tuple[int, int, bytes]]) -> None:
    message = b""
    for number, kind, payload in junk:
        message += varint(number << 3 | kind)
        message += {0: varint(len(payload)), 1: bytes(8), 2: varint(len(payload)) + payload, 5: bytes(4)}[kind]
    data = frame(message + b"\x0a" + varint(len(name)) + name.encode())
    assert from_message(data) == name.encode()
    for size in range(len(data)):
        assert from_message(data[:size]) is NEED_MORE


@given(st.binary(max_size=200), st.integers(0, 2), st.none() | st.integers(0, 2**32 - 1))
def test_any_bytes_give_a_name_or_none_or_ask_for_more(message: bytes, compressed: int, length: int | None) -> None:
    for data in (message, frame(message, compressed=compressed, length=length)):
        name = from_message(data)
        assert name is NEED_MORE or name == UNKNOWN or is_model_name(name)
    # A whole message never asks for more: nobody would send it.
    assert from_message(frame(message)) is not NEED_MORE


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", NEED_MORE),
        (b"\0\0\0\0", NEED_MORE),
        (b"\x01\0\0\0\x03\x0a\x01m", UNKNOWN),
        (b"\x01", UNKNOWN),
        (frame(b""), UNKNOWN),
        (frame(b"\x0a\x00"), UNKNOWN),
        (frame(b"\x0a\x01m", length=2), UNKNOWN),
        (frame(b"\x0a\x05ab", length=2**32 - 1), NEED_MORE),
        (frame(b"\x0a\xff\xff\xff\xff\x0f" + b"m" * 200, length=2**32 - 1), UNKNOWN),
        (frame(b"\x0a\x81\x01" + b"m" * 129), UNKNOWN),
        (frame(b"\x0a\x80\x01" + b"m" * 128), b"m" * 128),
        (frame(b"\x0a" + b"\x81" * 9 + b"\x00m"), UNKNOWN),
        (frame(b"\x8a\x80\x80\x00\x01m"), b"m"),
        (frame(b"\x80" * 11), UNKNOWN),
        (frame(b"\x8a" + b"\x80" * 9 + b"\x00\x01m"), UNKNOWN),
        (frame(b"\x0b\x0c"), UNKNOWN),
        (frame(b"\x0f"), UNKNOWN),
        (frame(b"\x0a\x02m\xff"), UNKNOWN),
        (frame(b"\x10\x01" * 200 + b"\x0a\x01m"), UNKNOWN),
        (frame(b"\x12\xff\x7f" + bytes(16383) + b"\x12\x10" + bytes(16) + b"\x0a\x01m"), UNKNOWN),
    ],
)
def test_messages_that_are_odd(data: bytes, expected: bytes | None) -> None:
    assert from_message(data) == expected


def test_the_methods_whose_message_names_the_model_are_those_of_the_service() -> None:
    (service,) = oip.DESCRIPTOR.services_by_name.values()
    assert f"/{service.full_name}/".encode() == SERVICE
    named = set()
    for method in service.methods:
        first = method.input_type.fields_by_number.get(1)
        if first is not None and first.name in ("name", "model_name"):
            named.add(method.name.encode())
        assert in_message(SERVICE + method.name.encode()) == (method.name.encode() in METHODS)
    assert named >= METHODS
    assert not in_message(b"/other.Service/ModelInfer")
    assert not in_message(SERVICE + b"ModelInferX")
