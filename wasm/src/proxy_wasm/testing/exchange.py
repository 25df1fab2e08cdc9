"""What a test of a filter sees, whether the filter runs in process or built and in Envoy."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from unittest import SkipTest

from proxy_wasm.headers import HeaderList, encode_name, encode_value

HeaderInput = Mapping[str, str | bytes] | Iterable[tuple[str | bytes, str | bytes]]
"""Headers as tests write them: a mapping, or pairs when a name is there twice."""


class OnlySimulated(SkipTest):
    """The filter runs in Envoy, which cannot do this. pytest and unittest skip a test that raises it."""


class ConfigurationRefused(Exception):
    """The filter answered its configuration with False, or raised; the text holds what it logged."""


class OnlyInProcess(SkipTest):
    """The filter runs as a module, whose objects cannot be reached. pytest and unittest skip a test that raises it."""


class Trapped(AssertionError):
    """The module trapped, which ends its virtual machine in Envoy."""


class RuleBroken(AssertionError):
    """The filter, or the test, did what cannot work in Envoy."""


@dataclass(frozen=True)
class Message:
    """A request or a response."""

    headers: HeaderList
    body: bytes = b""
    trailers: HeaderList = field(default_factory=HeaderList)
    complete: bool = True
    """Whether it has ended."""

    @property
    def status(self) -> int:
        """The HTTP status of a response."""
        return int(self.headers.get(":status", b"0") or 0)

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.headers.text(":method") or ""

    @property
    def path(self) -> str:
        """The path of a request, with its query."""
        return self.headers.text(":path") or ""

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class LogLine:
    """One line that the filter logged."""

    level: int
    """One of `LogLevel`."""
    message: str
    worker: int = 0


def header_pairs(headers: HeaderInput) -> list[tuple[bytes, bytes]]:
    """The pairs, checked, with names in lower case."""
    given = headers.items() if isinstance(headers, Mapping) else headers
    return [(encode_name(name), encode_value(value)) for name, value in given]


def request_pairs(headers: HeaderInput, *, has_body: bool) -> list[tuple[bytes, bytes]]:
    """The pairs of a request, with the pseudo-headers that are missing: POST with a body and GET without, path "/"."""
    pairs = header_pairs(headers)
    names = {name for name, _ in pairs}
    defaults = {b":method": b"POST" if has_body else b"GET", b":scheme": b"http", b":authority": b"test", b":path": b"/"}
    return [*((name, value) for name, value in defaults.items() if name not in names), *pairs]


class OutgoingCall(ABC):
    """An HTTP request that the filter sent by `http_call` and that waits for an answer."""

    cluster: str
    request: Message

    @abstractmethod
    def respond(self, headers: HeaderInput = (), *, status: int = 200, body: bytes = b"", trailers: HeaderInput = ()) -> None:
        """Answers it."""

    @abstractmethod
    def fail(self) -> None:
        """Resets it: the filter gets `CallFailed`."""


class Exchange(ABC):
    """One request through the filter, and its response."""

    @property
    @abstractmethod
    def reached_upstream(self) -> bool:
        """Whether the request's headers have reached the upstream."""

    @property
    @abstractmethod
    def answered(self) -> bool:
        """Whether a response's headers have reached the client."""

    @property
    @abstractmethod
    def answered_locally(self) -> bool:
        """Whether the response is none of an upstream."""

    @property
    @abstractmethod
    def sent_upstream(self) -> Message:
        """What reached the upstream. Raises `RuleBroken` when nothing did."""

    @property
    @abstractmethod
    def response(self) -> Message:
        """What reached the client. Raises `RuleBroken` when nothing did."""

    @property
    def local_response(self) -> Message:
        """What reached the client, which no upstream sent. Raises `RuleBroken` when one did."""
        if not self.answered_locally:
            raise RuleBroken("the filter has not answered by itself")
        return self.response

    @abstractmethod
    def respond(self, headers: HeaderInput = (), *, status: int = 200, body: bytes = b"", trailers: HeaderInput = ()) -> None:
        """Has the upstream answer. Raises `RuleBroken` when the request has not reached it."""

    @abstractmethod
    def reset(self) -> None:
        """The client goes away."""


class FilterUnderTest(ABC):
    """A filter and what is around it. A context manager; `close` ends it."""

    simulated: bool
    """Whether time is simulated, and shared data, workers and single chunks can be seen. Else what needs it raises `OnlySimulated`."""

    @abstractmethod
    def request(self, headers: HeaderInput = (), *, body: bytes = b"", trailers: HeaderInput = ()) -> Exchange:
        """Sends a request; what `headers` lacks of pseudo-headers is filled in."""

    @abstractmethod
    def next_call(self) -> OutgoingCall:
        """The oldest call of the filter that has not been answered. Raises `RuleBroken` when there is none."""

    @abstractmethod
    def metric(self, name: str) -> int:
        """The value of a counter or gauge of the filter; 0 while there is none of that name."""

    @property
    @abstractmethod
    def logs(self) -> list[LogLine]:
        """What the filter logged, oldest first."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Lets time pass: timers, ticks and timeouts come due. Only simulated."""

    @abstractmethod
    def close(self) -> None:
        """Ends the filter."""

    @property
    def exceptions(self) -> list[str]:
        """What the filter's code raised, with tracebacks, as it was logged."""
        return [line.message for line in self.logs if line.message.startswith("exception in ")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
