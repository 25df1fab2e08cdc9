"""The host's clock. It may stand still within a callback, and it steps when the machine's time is set."""

from proxy_wasm.binding import bound


def now() -> float:
    """Seconds since the Unix epoch."""
    return bound.host.now_nanoseconds() / 1e9


def now_nanoseconds() -> int:
    """Nanoseconds since the Unix epoch."""
    return bound.host.now_nanoseconds()
