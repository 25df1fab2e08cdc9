"""Unary gRPC as HTTP/1.1: what Envoy's reverse bridge sends, and what it makes a gRPC answer of.

A request is a POST to the method's path with the message as its body, without gRPC's frame around it. The answer is always
HTTP 200: `x-msg-size` tells Envoy the length of the frame to come, so that it need not buffer, and `x-grpc-status` and
`x-grpc-message`, which only a refusal has, are what Envoy writes into the trailers.
"""

from collections.abc import Mapping
from urllib.parse import quote

from mcprun.errors import Loading, MeshError, MessageTooLarge, Unimplemented
from mcprun_router.asgi import Body, Send
from mcprun_router.dataplane import Caller
from mcprun_router.methods import SERVICE, Methods
from mcprun_router.operation import Operations
from mcprun_router.rest_codec import inflate

CONTENT_TYPE = b"application/x-protobuf"
SERVICE_PATH = f"/{SERVICE}/"

Answer = tuple[list[tuple[bytes, bytes]], bytes]
"""Headers and body."""

_GZIP = b"\x1f\x8b"
_ZLIB = b"\x78"
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class Bridge:
    """Answers bridged calls."""

    def __init__(self, methods: Methods, operations: Operations, too_large: MessageTooLarge) -> None:
        self._too_large = too_large
        self._methods = methods.table
        self._run = operations.run

    async def answer(self, path: str, headers: Mapping[bytes, bytes], message: bytes) -> Answer:
        """Runs one call. Raises MeshError."""
        method = self._methods.get(path)
        if method is None:
            raise Unimplemented(f"no method {path}")
        message = uncompressed(message, headers.get(b"grpc-encoding", b"identity"), self._too_large)
        answer = await self._run("grpc", path[path.rindex("/") + 1 :], method, message, caller(headers))
        size = b"%d" % len(answer)
        return [(b"content-type", CONTENT_TYPE), (b"content-length", size), (b"x-msg-size", size)], answer

    async def __call__(self, path: str, headers: dict[bytes, bytes], body: Body, send: Send) -> None:
        """Answers one call that comes by ASGI."""
        try:
            told, answer = await self.answer(path, headers, await body.read())
        except MeshError as error:
            told, answer = refusal(error)
        await send({"type": "http.response.start", "status": 200, "headers": told})
        await send({"type": "http.response.body", "body": answer})


def uncompressed(message: bytes, encoding: bytes, too_large: MessageTooLarge) -> bytes:
    """A message without its compression. The frame that told whether it has any is gone, but no message of the protocol begins
    as gzip or zlib do. Raises MeshError when it is broken, too large, or compressed in another way.
    """
    if encoding == b"identity":
        return message
    if encoding not in (b"gzip", b"deflate"):
        raise Unimplemented(f"grpc-encoding: gzip, deflate or identity expected, got {encoding.decode('latin-1')!r}")
    if not message.startswith(_GZIP if encoding == b"gzip" else _ZLIB):
        return message
    return inflate(message, encoding.decode(), too_large)


def caller(headers: Mapping[bytes, bytes]) -> Caller:
    """What the headers of a call say of its caller."""
    get = headers.get
    timeout = get(b"grpc-timeout")
    routing, traceparent, tenant = get(b"x-routing"), get(b"traceparent"), get(b"x-tenant")
    return Caller(
        timeout=parse_timeout(timeout.decode("latin-1")) if timeout else None,
        routing=routing.decode("latin-1") if routing else "",
        traceparent=traceparent.decode("latin-1") if traceparent else "",
        tenant=tenant.decode("latin-1") if tenant else "",
    )


def parse_timeout(value: str) -> float | None:
    """Seconds of a grpc-timeout header: at most eight digits and a unit. None when it is malformed, as if it were absent."""
    unit = _UNITS.get(value[-1:])
    digits = value[:-1]
    if unit is None or not digits.isascii() or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * unit


LOADING = (b"x-mcprun-refusal", b"loading")
"""Tells the edge that nothing is broken."""


def encode_message(message: str) -> str:
    """A status message as the grpc-message header wants it: percent-encoded UTF-8."""
    return quote(message, safe=_SAFE)


def refusal(error: MeshError) -> Answer:
    """An error as the edge takes it."""
    headers = [
        (b"content-type", CONTENT_TYPE),
        (b"content-length", b"0"),
        (b"x-msg-size", b"0"),
        (b"x-grpc-status", b"%d" % error.code.value[0]),
        (b"x-grpc-message", encode_message(error.brief).encode("ascii")),
    ]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
    if isinstance(error, Loading):
        headers.append(LOADING)
    return headers, b""
