"""The ASGI application: bodies within bounds, callers that leave, and the way to the bridge or to REST."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from mcprun.errors import Cancelled, Internal, MessageTooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PROTOBUF = b"application/x-protobuf"
PATIENCE = 4
"""How many times the message limit is read of a body that is over it."""
_SERVICE = "/inference.GRPCInferenceService/"


class Departures:
    """Cancels the tasks of callers that left.

    To wait for a disconnect beside the answer would cost every request a task. So only requests that are open for longer
    than a tick are watched; shorter ones are answered before it matters.
    """

    TICK_SECONDS = 0.02

    def __init__(self) -> None:
        self._fresh: dict[asyncio.Task[Any], Receive] = {}
        self._aging: dict[asyncio.Task[Any], Receive] = {}
        self._watches: dict[asyncio.Task[Any], asyncio.Task[None]] = {}
        self._left: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._aging) + len(self._watches)

    def enter(self, task: asyncio.Task[Any], receive: Receive) -> None:
        """From now on `task` is cancelled when its caller leaves. Its body must have been read."""
        self._fresh[task] = receive

    def leave(self, task: asyncio.Task[Any]) -> bool:
        """Ends that, whether or not it began. True when the caller left."""
        if self._fresh.pop(task, None) is None and self._aging.pop(task, None) is None:
            watch = self._watches.pop(task, None)
            if watch is not None:
                watch.cancel()
        if task in self._left:
            self._left.discard(task)
            return True
        return False

    async def run(self) -> None:
        """Ticks until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(self.TICK_SECONDS)
                for task, receive in self._aging.items():
                    self._watches[task] = asyncio.create_task(self._watch(task, receive))
                self._aging, self._fresh = self._fresh, {}
        finally:
            for watch in self._watches.values():
                watch.cancel()

    async def _watch(self, task: asyncio.Task[Any], receive: Receive) -> None:
        message = await receive()
        if message["type"] == "http.disconnect" and task in self._watches:
            self._left.add(task)
            task.cancel()


class Body:
    """The body of a request, read once, within the message limit.

    A body over the limit is read to its end and thrown away, up to `PATIENCE` times the limit, so that the client gets to
    read the refusal instead of a reset; it is never held.
    """

    def __init__(self, receive: Receive, too_large: MessageTooLarge, departures: Departures, task: asyncio.Task[Any]) -> None:
        self._receive = receive
        self._too_large = too_large
        self._departures = departures
        self._task = task

    async def read(self) -> bytes:
        """The whole body. Raises ResourceExhausted when it is over the limit, Cancelled when the client left.

        Once it is read, the task is cancelled when the client leaves.
        """
        body = await self._read()
        self._departures.enter(self._task, self._receive)
        return body

    async def _read(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client left")
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > self._too_large.limit_bytes:
                raise self._too_large.error("the request", len(body))
            return body
        parts, size = [body], len(body)
        limit = self._too_large.limit_bytes
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Cancelled("the client left")
            part = message.get("body", b"")
            size += len(part)
            if size <= limit:
                parts.append(part)
            else:
                parts.clear()
                if size > limit * PATIENCE:
                    raise self._too_large.error("the request", None)
            if not message.get("more_body"):
                break
        if size > limit:
            raise self._too_large.error("the request", size)
        return b"".join(parts)


class Bridged(Protocol):
    """Answers a bridged gRPC call."""

    async def __call__(self, path: str, headers: dict[bytes, bytes], body: Body, send: Send) -> None:
        """Answers one call."""


class Rested(Protocol):
    """Answers a REST request."""

    async def __call__(self, method: str, raw_path: bytes, query: bytes, headers: dict[bytes, bytes], body: Body, send: Send) -> None:
        """Answers one request."""


class Application:
    """What uvicorn serves."""

    def __init__(self, *, bridge: Bridged, rest: Rested, too_large: MessageTooLarge, departures: Departures) -> None:
        self._bridge = bridge
        self._rest = rest
        self._too_large = too_large
        self._departures = departures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise Internal(f"the router does not speak {scope['type']}")
        task = asyncio.current_task()
        if task is None:
            raise Internal("an ASGI application runs in a task")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        body = Body(receive, self._too_large, self._departures, task)
        try:
            if headers.get(b"content-type") == _PROTOBUF and scope["path"].startswith(_SERVICE):
                await self._bridge(scope["path"], headers, body, send)
            else:
                await self._rest(scope["method"], scope["raw_path"], scope["query_string"], headers, body, send)
        except (asyncio.CancelledError, Cancelled):
            if not self._departures.leave(task) and task.cancelling():
                raise
        finally:
            self._departures.leave(task)
