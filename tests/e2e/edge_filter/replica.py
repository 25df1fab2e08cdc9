"""A replica of the router whose answers are set from outside, at any time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
from e2e.edge.fake_router import Loop

PROTOBUF = b"application/x-protobuf"


@dataclass
class Behaviour:
    """What it does with each request."""

    http_status: int = 200
    grpc_status: int = 0
    reset: bool = False
    """Closes the connection in place of an answer."""
    reset_amid: bool = False
    """Closes the connection after a part of the answer."""
    hang: bool = False
    """Never answers."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers of its answers over HTTP."""


@dataclass
class Request:
    """One that came over HTTP."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def bridged(self) -> bool:
        """Whether it is a gRPC call that came over the bridge."""
        return self.headers.get("content-type", "").encode() == PROTOBUF


class Replica:
    """Both listeners of a router, on ports of their own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behaviour = Behaviour()
        self.requests: list[Request] = []
        self.grpc_calls = 0
        self._loop = Loop()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server = self._loop.run(self._listen())
        self.http_port = int(self._server.sockets[0].getsockname()[1])
        self._grpc = grpc.server(ThreadPoolExecutor(16))
        self._grpc.add_generic_rpc_handlers((_Handler(self),))
        self.grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()

    @property
    def count(self) -> int:
        """How many requests it got, over both listeners."""
        return len(self.requests) + self.grpc_calls

    def close(self) -> None:
        """Ends it."""
        self._grpc.stop(None)
        self._loop.call(self._server.close)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._handle, "127.0.0.1", 0, limit=1 << 20)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader):
                self.requests.append(request)
                behaviour = self.behaviour
                if behaviour.reset:
                    return
                if behaviour.hang:
                    await reader.read()
                    return
                answer = self._answer(request, behaviour)
                writer.write(answer[: len(answer) - 3] if behaviour.reset_amid else answer)
                await writer.drain()
                if behaviour.reset_amid:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _answer(self, request: Request, behaviour: Behaviour) -> bytes:
        body = request.body if request.bridged else f'{{"replica": "{self.name}", "path": "{request.path}"}}'.encode()
        if request.headers.get("accept") == "text/event-stream" and behaviour.http_status == 200:
            body, kind = b"data: one\n\ndata: two\n\n", b"text/event-stream"
        else:
            kind = PROTOBUF if request.bridged else b"application/json"
        lines = [f"HTTP/1.1 {behaviour.http_status} Status".encode(), b"content-type: " + kind, b"x-replica: " + self.name.encode()]
        if request.bridged:
            lines.append(f"x-msg-size: {len(body)}".encode())
            if behaviour.grpc_status:
                lines += [f"x-grpc-status: {behaviour.grpc_status}".encode(), b"x-grpc-message: as asked"]
        lines += [f"{name}: {value}".encode() for name, value in behaviour.headers.items()]
        lines.append(f"content-length: {len(body)}".encode())
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


class _Handler(grpc.GenericRpcHandler):
    """Every method takes a stream and returns each message as it comes."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """The one handler."""
        replica = self._replica
        replica.grpc_calls += 1

        def echo(messages, context):  # type: ignore[no-untyped-def]
            for message in messages:
                if replica.behaviour.grpc_status:
                    context.abort(_CODES[replica.behaviour.grpc_status], "as asked")
                yield message

        return grpc.stream_stream_rpc_method_handler(echo)


_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    return Request(method, path, headers, body)
