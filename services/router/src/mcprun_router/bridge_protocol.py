"""Bridged calls past ASGI: uvicorn's own protocol, but for the requests that are most of all and whose form is known.

A bridged call has its whole body before it runs and its whole answer before it is written, so that it needs none of the messages
that ASGI passes to and fro; without them it costs the router a third less.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mcprun.errors import MeshError, MessageTooLarge
from mcprun.runtime import logs
from mcprun_router.asgi import PATIENCE
from mcprun_router.bridge import CONTENT_TYPE, SERVICE_PATH, Answer, Bridge, refusal

_log = logs.get_logger(__name__)

_PREFIX = SERVICE_PATH.encode()
_ONE_WRITE_BYTES = 64 * 1024


class BridgeProtocol(HttpToolsProtocol):
    """One connection. Everything that is no bridged call, and calls behind one that is not answered yet, are uvicorn's."""

    def __init__(self, *args: Any, bridge: Bridge, too_large: MessageTooLarge, **named: Any) -> None:
        super().__init__(*args, **named)
        self.bridge = bridge
        self.too_large = too_large

    def on_headers_complete(self) -> None:
        """The parser has read the headers."""
        if self.url.startswith(_PREFIX) and (self.cycle is None or self.cycle.response_complete) and not self.expect_100_continue:
            headers = dict(self.headers)
            if headers.get(b"content-type") == CONTENT_TYPE:
                self.cycle = _Call(self, headers)  # type: ignore[assignment]
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser has read a part of the body."""
        if isinstance(self.cycle, _Call):
            self.cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has read the whole request."""
        if isinstance(self.cycle, _Call):
            self.cycle.start()
        else:
            super().on_message_complete()


class _Call:
    """One bridged call. Has what `HttpToolsProtocol` asks its cycles for."""

    def __init__(self, connection: BridgeProtocol, headers: dict[bytes, bytes]) -> None:
        self.keep_alive = connection.parser.should_keep_alive()
        self.response_complete = False
        self.disconnected = False
        self.message_event = self
        self._connection = connection
        self._path = connection.url.partition(b"?")[0].decode("latin-1")
        self._headers = headers
        self._parts: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None

    def set(self) -> None:
        """Something happened to the connection; when it is gone, so is the caller."""
        if self.disconnected and self._task is not None:
            self._task.cancel()

    def feed(self, body: bytes) -> None:
        """Takes a part of the message. One over the limit is read to its end, within bounds, so that the refusal can be read."""
        if self.response_complete:
            return
        limit = self._connection.too_large.limit_bytes
        self._size += len(body)
        if self._size <= limit:
            self._parts.append(body)
            return
        self._parts.clear()
        if self._size > limit * PATIENCE:
            self.keep_alive = False
            self._write(refusal(self._connection.too_large.error("the request", None)))

    def start(self) -> None:
        """The message is complete."""
        if self.response_complete:
            return
        if self._size > self._connection.too_large.limit_bytes:
            self._write(refusal(self._connection.too_large.error("the request", self._size)))
            return
        connection = self._connection
        self._task = connection.loop.create_task(self._run())
        connection.tasks.add(self._task)
        self._task.add_done_callback(connection.tasks.discard)

    async def _run(self) -> None:
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        try:
            answer = await self._connection.bridge.answer(self._path, self._headers, message)
        except asyncio.CancelledError:
            if not self.disconnected:
                raise
            return
        except MeshError as error:
            answer = refusal(error)
        except Exception:
            _log.error("a call failed", path=self._path, exc_info=True)
            self._connection.transport.close()
            return
        self._write(answer)

    def _write(self, answer: Answer) -> None:
        headers, body = answer
        self.response_complete = True
        if self.disconnected:
            return
        lines = [b"HTTP/1.1 200 OK\r\n"]
        for name, value in headers:
            lines += name, b": ", value, b"\r\n"
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        transport = self._connection.transport
        if len(body) <= _ONE_WRITE_BYTES:
            lines.append(body)
            transport.write(b"".join(lines))
        else:
            transport.write(b"".join(lines))
            transport.write(body)
        if not self.keep_alive:
            transport.close()
        self._connection.on_response_complete()
