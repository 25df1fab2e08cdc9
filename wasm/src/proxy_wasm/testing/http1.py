"""HTTP/1.1 on a socket, as much as tests need: names and values as bytes, chunks and trailers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO

from proxy_wasm.headers import HeaderList
from proxy_wasm.testing.exchange import Message

Pairs = list[tuple[bytes, bytes]]
_NO_BODY = frozenset({b"204", b"304"})


class Broken(Exception):
    """The connection ended before the message did, or it is no HTTP/1.1."""


def encode(first: bytes, headers: Pairs, chunks: Iterable[bytes], trailers: Pairs, *, whole: bool) -> list[bytes]:
    """A message as what is written one after the other. It has a content-length when it is `whole`, without trailers."""
    parts = [chunk for chunk in chunks if chunk]
    names = {name for name, _ in headers}
    length = b"content-length" in names
    chunked = not length and (bool(trailers) or (bool(parts) and not whole))
    fields = [pair for pair in headers if not pair[0].startswith(b":")]
    if chunked:
        fields.append((b"transfer-encoding", b"chunked"))
    elif not length and (parts or first.startswith(b"HTTP/")):
        fields.append((b"content-length", str(sum(map(len, parts))).encode()))
    out = [first + b"\r\n" + _lines(fields) + b"\r\n"]
    out += [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] if chunked else parts
    if chunked:
        out.append(b"0\r\n" + _lines(trailers) + b"\r\n")
    return out


def read(stream: BinaryIO, progress: Callable[[Message], None], *, head: bool = False) -> Message | None:
    """Reads a message and tells of each step; None when the connection ends before it. Raises `Broken`."""
    try:
        first = stream.readline()
        if not first:
            return None
        request, pairs = not first.startswith(b"HTTP/"), _fields(stream)
        words = first.split()
        if len(words) < 2:
            raise Broken(f"no line of HTTP: {first[:100]!r}")
        if request:
            host = next((value for name, value in pairs if name == b"host"), b"")
            pseudo = [(b":method", words[0]), (b":path", words[1]), (b":authority", host)]
            pairs = [*pseudo, *(pair for pair in pairs if pair[0] != b"host")]
        else:
            if words[1].startswith(b"1"):
                return read(stream, progress, head=head)
            pairs = [(b":status", words[1]), *pairs]
        return _body(stream, HeaderList(pairs), progress, request=request, head=head)
    except (OSError, ValueError) as error:
        raise Broken(str(error)) from error


def _body(stream: BinaryIO, headers: HeaderList, progress: Callable[[Message], None], *, request: bool, head: bool) -> Message:
    length, encoding = headers.get("content-length"), headers.get("transfer-encoding")
    body, trailers = b"", HeaderList()
    progress(Message(headers, complete=False))
    if head or headers.get(":status") in _NO_BODY:
        pass
    elif encoding is not None:
        headers = HeaderList([pair for pair in headers.items() if pair[0] != b"transfer-encoding"])
        while size := int(stream.readline().split(b";")[0], 16):
            body += _exactly(stream, size)
            stream.readline()
            progress(Message(headers, body, complete=False))
        trailers = HeaderList(_fields(stream))
    elif length is not None:
        body = _exactly(stream, int(length))
    elif not request:
        body = stream.read()
    message = Message(headers, body, trailers)
    progress(message)
    return message


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise Broken("the connection ended within a body")
    return content


def _fields(stream: BinaryIO) -> Pairs:
    pairs = []
    while (line := stream.readline()) not in (b"\r\n", b"\n"):
        if not line:
            raise Broken("the connection ended within headers")
        name, _, value = line.partition(b":")
        pairs.append((name.strip().lower(), value.strip()))
    return pairs


def _lines(fields: Pairs) -> bytes:
    return b"".join(b"%b: %b\r\n" % pair for pair in fields)
