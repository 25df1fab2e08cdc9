"""The answer when no node is left, in the protocol that the caller spoke."""

from __future__ import annotations

import json

from mcprun_filter.outcomes import UNAVAILABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcprun_filter.fleet import Choice

HTTP_UNAVAILABLE = 503
DETAILS = b"mcprun_breaker_open"
"""What Envoy's access log shows as the response code's details."""


class Refusal:
    """A local response, as `send_local_response` takes it."""

    __slots__ = ("body", "details", "grpc_status", "headers", "status")

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]], *, grpc_status: int = -1) -> None:
        self.status = HTTP_UNAVAILABLE
        self.details = DETAILS
        self.body = body
        """For gRPC the text of the message: Envoy puts it where it belongs."""
        self.headers = headers
        self.grpc_status = grpc_status
        """-1: none."""


def refuse(choice: Choice, *, model: bytes, content_type: bytes | None = None, accept: bytes | None = None) -> Refusal:
    """The refusal of a request for that model (empty: not known), by the request's own `content-type` and `accept`."""
    text = explain(choice, model)
    seconds = max(1, choice.retry_after_seconds)
    headers = [(b"retry-after", b"%d" % seconds)]
    if is_grpc(content_type):
        headers.append((b"grpc-retry-pushback-ms", b"%d" % (seconds * 1000)))
        return Refusal(text.encode(), headers, grpc_status=UNAVAILABLE)
    body = json.dumps({"error": text}).encode()
    if wants_events(accept):
        headers.append((b"content-type", b"text/event-stream"))
        headers.append((b"cache-control", b"no-cache"))
        return Refusal(b"event: error\ndata: " + body + b"\n\n", headers)
    headers.append((b"content-type", b"application/json"))
    return Refusal(body, headers)


def explain(choice: Choice, model: bytes) -> str:
    """Which model, how many nodes are isolated, and when to try again."""
    what = f"Model {model.decode('latin-1')}" if model else "The service"
    seconds = max(1, choice.retry_after_seconds)
    nodes = "its only node is" if choice.total == 1 else f"{choice.isolated} of {choice.total} nodes are"
    return f"{what} is unavailable: {nodes} isolated after failures. Try again in {seconds} s."


def is_grpc(content_type: bytes | None) -> bool:
    """Whether Envoy takes such a request for gRPC: `application/grpc`, alone or with `+` or `;` and more."""
    return content_type is not None and (
        content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))
    )


def wants_events(accept: bytes | None) -> bool:
    """Whether a caller wants server-sent events: it names them, and not JSON before them."""
    if not accept:
        return False
    for item in accept.lower().split(b","):
        media, *parameters = (part.strip() for part in item.split(b";"))
        if any(parameter.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for parameter in parameters):
            continue
        if media == b"text/event-stream":
            return True
        if media == b"application/json":
            return False
    return False
