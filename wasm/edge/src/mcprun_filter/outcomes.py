"""What a request's end says of the node that served it.

Failures are HTTP 5xx, all of them, resets, timeouts, and the gRPC statuses that say the node could not (`FAILING`), in headers
or trailers and even under HTTP 200. Answers to a client's mistake are healthy answers. What the client did (it left, it
stalled), or Envoy on its own (no route, its own limits, injected faults), says nothing of the node.
"""

from __future__ import annotations

NOTHING, OK, ANSWERED, FAILED = range(4)
"""NOTHING: does not count. OK: served. ANSWERED: refused for a reason that is the client's. FAILED: as it says."""

CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE = 1, 2, 4, 8, 13, 14
FAILING = {
    UNKNOWN: "grpc-unknown",
    DEADLINE_EXCEEDED: "grpc-deadline-exceeded",
    RESOURCE_EXHAUSTED: "grpc-resource-exhausted",
    INTERNAL: "grpc-internal",
    UNAVAILABLE: "grpc-unavailable",
}

# Bits of Envoy's property `response.flags`, in the order of its CoreResponseFlag (envoy/stream_info/stream_info.h); the letters are those
# of its access log.
LH, UH, UT, LR, UR, UF, UC, UO, NR, DI, FI, RL, UAEX, RLSE, DC, URX = (1 << bit for bit in range(16))
SI, IH, DPE, UMSDR, RFCF, NFCF, DT, UPE, NC, OM, DF, DO, DR = (1 << bit for bit in range(16, 29))

OF_ENVOY = LH | UH | UO | NR | FI | RL | UAEX | RLSE | IH | DPE | RFCF | NFCF | DT | NC | OM | DF | DO
"""Envoy answered by itself, before any node or instead of one."""
TIMEOUTS = UT | UMSDR
RESETS = LR | UR | UF | UC | URX | UPE
"""The node reset the stream, could not be reached, went away, or broke the protocol."""
OF_CLIENT = DC | DR
"""The client closed its connection or reset the stream."""

DEADLINE_SLACK = 0.02
"""Seconds by which a client may leave early by our clock: its own began when it sent."""
QUOTA_HEADER = b"x-envoy-ratelimited"
"""A response header by which a node tells that it refused because of the caller's quota; Envoy's own rate limits send it, too."""


def classify(
    *,
    status: int | None = None,
    grpc_status: int | None = None,
    flags: int = 0,
    elapsed: float = 0.0,
    deadline: float | None = None,
    shortest_deadline: float = 0.05,
    answered: bool = False,
    request_complete: bool = True,
    quota: bool = False,
) -> tuple[int, str]:
    """The outcome and, in a word, why.

    status, grpc_status: of the response, where there were any. flags: Envoy's response flags.
    elapsed, deadline: seconds since the request came, and those that its client allowed.
    shortest_deadline: who allows less than this many seconds makes timeouts, and they are not the node's.
    answered: whether response headers came from the node. request_complete: whether the client sent all of its request.
    quota: the node said that it refused because of the caller's quota, see `QUOTA_HEADER`.
    """
    if flags & OF_ENVOY:
        return NOTHING, "edge"
    hasty = deadline is not None and deadline < shortest_deadline
    if flags & TIMEOUTS:
        return (NOTHING, "hasty-client") if hasty else (FAILED, "timeout")
    if flags & RESETS:
        return FAILED, "reset"
    if flags & SI and not (answered and status is not None and status >= 500):
        # A stream that is idle half-way may as well wait for a client that sends or reads no further.
        return (NOTHING, "idle") if answered or not request_complete else (FAILED, "timeout")
    if quota and (status is not None or grpc_status is not None):
        return ANSWERED, "quota"
    if grpc_status is not None and (grpc_status in FAILING or not 0 <= grpc_status <= 16):
        if hasty and grpc_status == DEADLINE_EXCEEDED:
            return NOTHING, "hasty-client"
        return FAILED, FAILING.get(grpc_status, "grpc-unknown")
    if status is not None and status >= 500:
        return (NOTHING, "hasty-client") if hasty and status == 504 else (FAILED, "http-5xx")
    if flags & OF_CLIENT:
        if not answered and deadline is not None and not hasty and elapsed + DEADLINE_SLACK >= deadline:
            return FAILED, "timeout"
        return NOTHING, "client-left"
    if not answered or (status is None and grpc_status is None):
        return NOTHING, "unanswered"
    if grpc_status == CANCELLED:
        return NOTHING, "client-left"
    if grpc_status or (status is not None and status >= 400):
        return ANSWERED, "client-error"
    return OK, "ok"


def verdict(outcome: int) -> bool | None:
    """What an outcome says of the node: well, ill, or nothing. As `Fleet.finish` takes it."""
    return None if outcome == NOTHING else outcome != FAILED


def grpc_timeout(value: bytes | None) -> float | None:
    """Seconds of a `grpc-timeout` header: 1 to 8 digits and a unit of H, M, S, m, u or n. None when it is none."""
    if not value or not 2 <= len(value) <= 9:
        return None
    unit = _UNITS.get(value[-1:])
    digits = value[:-1]
    if unit is None or digits.translate(None, b"0123456789"):
        return None
    return int(digits) * unit


_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def grpc_code(value: bytes | None) -> int | None:
    """The number of a `grpc-status` header. One that is no number of gRPC's is UNKNOWN, as gRPC's clients have it."""
    if value is None:
        return None
    if not 0 < len(value) <= 2 or value.translate(None, b"0123456789"):
        return UNKNOWN
    return int(value) if int(value) <= 16 else UNKNOWN


def http_code(value: bytes | None) -> int | None:
    """The number of a `:status` header; None when it is none."""
    if value is None or len(value) != 3 or value.translate(None, b"0123456789"):
        return None
    return int(value)
