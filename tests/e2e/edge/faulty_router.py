"""A router that breaks the rules of HTTP or of the bridge. The last part of the path says how."""

import asyncio
from collections import Counter
from pathlib import Path

from .fake_router import Loop

_GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"

_ANSWERS = {
    "Short": _GOOD + b"content-length: 10\r\nx-msg-size: 1000\r\n\r\n" + b"y" * 10,
    "Long": _GOOD + b"content-length: 1000\r\nx-msg-size: 10\r\n\r\n" + b"y" * 1000,
    "Sizeless": _GOOD + b"content-length: 10\r\n\r\n" + b"y" * 10,
    "BadSize": _GOOD + b"content-length: 10\r\nx-msg-size: abc\r\n\r\n" + b"y" * 10,
    "NegativeSize": _GOOD + b"content-length: 10\r\nx-msg-size: -1\r\n\r\n" + b"y" * 10,
    "HugeSize": _GOOD + b"content-length: 10\r\nx-msg-size: 99999999999999999999\r\n\r\n" + b"y" * 10,
    "Chunked": _GOOD + b"x-msg-size: 10\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n",
    "ChunkedSizeless": _GOOD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n",
    "Empty": _GOOD + b"content-length: 0\r\nx-msg-size: 0\r\n\r\n",
    "BadStatus": _GOOD + b"content-length: 0\r\nx-msg-size: 0\r\nx-grpc-status: abc\r\n\r\n",
    "Html": b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello",
    "Html200": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello",
    "Typeless": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "Plain500": b"HTTP/1.1 500 X\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\nInternal Server Error",
    "Plain404": b"HTTP/1.1 404 X\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nNot Found",
    "Bare400": b"HTTP/1.1 400 X\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
    "Bare503": b"HTTP/1.1 503 X\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
    "Bare429": b"HTTP/1.1 429 X\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n",
    "Sized503": b"HTTP/1.1 503 X\r\ncontent-type: application/x-protobuf\r\ncontent-length: 4\r\nx-msg-size: 4\r\n\r\noops",
    "NoHttp": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "Ok": _GOOD + b"content-length: 2\r\nx-msg-size: 2\r\n\r\nok",
}


class FaultyRouter:
    """Its HTTP listener, at a unix socket in a folder."""

    def __init__(self, folder: Path) -> None:
        self.http_path = folder / "faulty.sock"
        self.counts: Counter[str] = Counter()
        """Requests by the last part of the path."""
        self._loop = Loop()
        self._server = self._loop.run(asyncio.start_unix_server(self._handle, path=self.http_path, limit=1 << 20))

    def close(self) -> None:
        """Ends it."""
        self._loop.call(self._server.close)
        self._loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._skip_body(head, reader)
                name = head.split(b" ", 2)[1].rpartition(b"/")[2].decode()
                self.counts[name] += 1
                match name:
                    case "DieBefore":
                        return
                    case "DieInHead":
                        writer.write(_GOOD)
                        return
                    case "DieAmid":
                        writer.write(_GOOD + b"content-length: 1000\r\nx-msg-size: 1000\r\n\r\n" + b"y" * 10)
                        return
                    case _:
                        writer.write(_ANSWERS[name])
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _skip_body(self, head: bytes, reader: asyncio.StreamReader) -> None:
        lines = head.lower().split(b"\r\n")
        if b"transfer-encoding: chunked" in lines:
            while size := int((await reader.readline()).strip(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        for line in lines:
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.partition(b":")[2]))
