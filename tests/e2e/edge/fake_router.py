"""A router that is made up: what it answers depends on the last part of the path."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import orjson
import uvicorn

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LIMIT_BYTES = 64 * 1024 * 1024
PROTOBUF = b"application/x-protobuf"


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and returns what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=20)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function there, some time soon."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Ends it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class Seen:
    """What the router saw of its callers."""

    paths: list[str] = field(default_factory=list)
    """Raw paths of HTTP requests and full names of gRPC methods."""
    headers: dict[str, str] = field(default_factory=dict)
    """Those of the last request."""
    listener: str = ""
    """Where the last request came in: http or grpc."""
    departed: int = 0
    """Callers that left before their answer."""
    waiting: int = 0
    """Requests that wait for `release` or for the caller's departure."""


class HttpApplication:
    """The router's HTTP listener."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self.gate = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        seen = self._seen
        path = scope["raw_path"].decode("latin-1")
        seen.paths.append(path)
        seen.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        seen.listener = "http"
        bridged = dict(scope["headers"]).get(b"content-type") == PROTOBUF
        name = path.rpartition("/")[2]
        if name == "Early":
            read = 0
            while read <= LIMIT_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    seen.departed += 1
                    return
                read += len(message.get("body", b""))
            await self._refuse(send, bridged, "8", f"the request is too large: at most {LIMIT_BYTES} bytes")
            return
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        body = b"".join(parts)
        match name:
            case "Refuse":
                status, _, text = body.decode().partition(";")
                await self._refuse(send, bridged, status, text)
            case "Late":
                await self._refuse(send, bridged, "8", f"the request is too large: at most {LIMIT_BYTES} bytes")
            case "Size":
                await self._answer(send, bridged, b"y" * int(body))
            case "Count":
                await self._answer(send, bridged, str(len(body)).encode())
            case "Held":
                seen.waiting += 1
                await self.gate.wait()
                seen.waiting -= 1
                await self._answer(send, bridged, body)
            case "Hang":
                seen.waiting += 1
                while (await receive())["type"] != "http.disconnect":
                    pass
                seen.waiting -= 1
                seen.departed += 1
            case "events":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
                await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
                await self.gate.wait()
                await send({"type": "http.response.body", "body": b"data: last\n\n"})
            case _ if bridged:
                await self._answer(send, bridged, body)
            case _:
                told = {"method": scope["method"], "path": path, "headers": seen.headers, "bytes": len(body)}
                await self._answer(send, bridged, orjson.dumps(told))

    async def _answer(self, send: Send, bridged: bool, body: bytes) -> None:
        size = str(len(body)).encode()
        headers = [(b"content-type", PROTOBUF if bridged else b"application/json"), (b"content-length", size)]
        if bridged:
            headers.append((b"x-msg-size", size))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _refuse(self, send: Send, bridged: bool, status: str, message: str) -> None:
        if bridged:
            body = b""
            headers = [
                *((b"content-type", PROTOBUF), (b"content-length", b"0"), (b"x-msg-size", b"0")),
                *((b"x-grpc-status", status.encode()), (b"x-grpc-message", message.encode()), (b"retry-after", b"7")),
            ]
        else:
            body = orjson.dumps({"error": message})
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if bridged else 429, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class GrpcHandler(grpc.GenericRpcHandler):
    """The router's gRPC listener: every method takes a stream and returns each message as it comes."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """The one handler."""
        self._seen.paths.append(handler_call_details.method)
        self._seen.headers = {str(key): str(value) for key, value in handler_call_details.invocation_metadata}
        self._seen.listener = "grpc"
        return grpc.stream_stream_rpc_method_handler(self._echo)

    def _echo(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for message in messages:
            if message == b"refuse":
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as asked")
            yield message


class FakeRouter:
    """Both listeners, at unix sockets in a folder."""

    def __init__(self, folder: Path) -> None:
        self.http_path = folder / "http.sock"
        self.grpc_path = folder / "grpc.sock"
        self.seen = Seen()
        self._loop = Loop()
        self._application = HttpApplication(self.seen)
        self._server: uvicorn.Server | None = None
        self._serving: Future[None] | None = None
        self._grpc_server: grpc.Server | None = None

    def start(self) -> None:
        """Starts to listen. Returns when it does."""
        config = uvicorn.Config(
            self._application, uds=str(self.http_path), http="httptools", ws="none", lifespan="off", log_config=None, timeout_keep_alive=75
        )
        self._server = uvicorn.Server(config)
        self._serving = self._loop.start(self._server._serve())
        self._grpc_server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        self._grpc_server.add_generic_rpc_handlers((GrpcHandler(self.seen),))
        self._grpc_server.add_insecure_port(f"unix:{self.grpc_path}")
        self._grpc_server.start()
        server = self._server
        wait_until(lambda: server.started, "the fake router listens")

    def stop(self) -> None:
        """Closes everything that is open."""
        if self._server is not None and self._serving is not None and self._grpc_server is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            self._serving.result(timeout=10)
            self._grpc_server.stop(grace=0).wait()
            self._server = None

    def close(self) -> None:
        """Ends it for good."""
        self.stop()
        self._loop.close()

    @contextmanager
    def holding(self) -> Iterator[Callable[[], None]]:
        """Requests to `Held` and `events` wait until the function that this gives is called."""
        self._loop.call(self._application.gate.clear)

        def release() -> None:
            self._loop.call(self._application.gate.set)

        try:
            yield release
        finally:
            release()


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 10.0) -> None:
    """Returns once a condition holds. Raises TimeoutError."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        waiting.wait(0.01)
    raise TimeoutError(f"waited {seconds} s in vain: {what}")
