"""Lines in the host's log. Envoy writes them under the logger `wasm` and drops those below its level."""

from proxy_wasm.abi import LogLevel
from proxy_wasm.binding import bound


def trace(message: str | bytes) -> None:
    """For those who follow each step."""
    _log(0, message)


def debug(message: str | bytes) -> None:
    """For those who look for an error."""
    _log(1, message)


def info(message: str | bytes) -> None:
    """For those who run it."""
    _log(2, message)


def warn(message: str | bytes) -> None:
    """Something is odd."""
    _log(3, message)


def error(message: str | bytes) -> None:
    """Something failed."""
    _log(4, message)


def critical(message: str | bytes) -> None:
    """Nothing works any more."""
    _log(5, message)


def level() -> LogLevel:
    """The level below which the host drops lines; TRACE when it does not tell."""
    return LogLevel(min(bound.host.get_log_level() or 0, 5))


def _log(at: int, message: str | bytes) -> None:
    bound.host.log(at, message.encode("utf-8", "backslashreplace") if isinstance(message, str) else message)
