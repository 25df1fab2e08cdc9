"""The real edge, run as its users run it, and what clients need to reach it."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.events
import httpx
import psutil

from mcprun.supervisor.ports import free_port

from .fake_router import wait_until

SERVICE = "/inference.GRPCInferenceService/"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
_UNBUFFERED = [*_UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]


class Edge:
    """A running `mcprun-edge`."""

    def __init__(
        self, folder: Path, *, router_http: str, router_grpc: str, arguments: Sequence[str] = (), port: int = 0, wasm: bool = False
    ) -> None:
        self.port = port or free_port()
        self.admin_path = folder / "admin.sock"
        self.status_path = folder / "status.sock"
        self.filter_folder = folder / "filter"
        self._log = folder / "edge.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("mcprun-edge")),
                    *("--listen-port", str(self.port)),
                    *("--router-http", router_http),
                    *("--router-grpc", router_grpc),
                    *("--admin-address", f"unix:{self.admin_path}"),
                    *("--runtime-dir", str(folder)),
                    *("--status-address", f"unix:{folder / 'status.sock'}"),
                    *("--log-level", "warning"),
                    *(() if wasm else ("--no-wasm",)),
                    *arguments,
                ],
                stdout=subprocess.PIPE if "--access-log" in arguments else log,
                stderr=log,
                # Without byte code, starting takes three times as long.
                env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            )
        try:
            wait_until(lambda: self._is_ready() or self.process.poll() is not None, "the edge is ready", seconds=20)
        except TimeoutError:
            self.stop()
            raise
        if self.process.poll() is not None:
            raise AssertionError(f"the edge ended: {self.log}")

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text()

    @property
    def envoy(self) -> psutil.Process:
        """The Envoy below it."""
        return psutil.Process(self.process.pid).children()[0]

    @property
    def url(self) -> str:
        """Where HTTP clients reach it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> httpx.Client:
        """A client of Envoy's admin interface."""
        return httpx.Client(transport=httpx.HTTPTransport(uds=str(self.admin_path)), base_url="http://edge")

    def stat(self, name: str) -> int:
        """One of Envoy's counters or gauges."""
        with self.admin as admin:
            lines = admin.get("/stats", params={"filter": f"^{name}$"}).text.splitlines()
        return int(lines[0].rpartition(" ")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stops it by a signal. Returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=15)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def channel(self) -> grpc.Channel:
        """A gRPC channel with a connection of its own."""
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=_UNBUFFERED)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError), self.admin as admin:
            return admin.get("/ready").status_code == 200
        return False


class Caller:
    """A gRPC client whose messages are bytes."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary(self, method: str) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
        """A unary method, of the inference service unless it begins with a slash."""
        return self._channel.unary_unary(method if method.startswith("/") else SERVICE + method)

    def stream(self, method: str) -> "grpc.StreamStreamMultiCallable[bytes, bytes]":
        """A bidirectional method, of the inference service unless it begins with a slash."""
        return self._channel.stream_stream(method if method.startswith("/") else SERVICE + method)

    def refused(self, method: str, message: bytes = b"x", *, seconds: float = 10.0) -> tuple[str, str]:
        """The code and the message with which a unary call is refused."""
        try:
            self.unary(method)(message, timeout=seconds)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{method} was not refused")


@dataclass
class RawAnswer:
    """An answer over HTTP/2, frame by frame."""

    headers: dict[str, str]
    trailers: dict[str, str]
    body: bytes
    reset: int | None
    """The error code of the reset that ended it."""


def raw_call(port: int, path: str, *frames: bytes, headers: Sequence[tuple[str, str]] = ()) -> RawAnswer:
    """A POST over HTTP/2 as a gRPC client makes it, with these bytes as DATA frames, whatever is in them."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    fields = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "edge", "te": "trailers"}
    fields |= {"content-type": "application/grpc", **dict(headers)}
    answer = RawAnswer({}, {}, b"", None)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        connection.initiate_connection()
        connection.send_headers(1, list(fields.items()), end_stream=not frames)
        for number, frame in enumerate(frames, 1):
            connection.send_data(1, frame, end_stream=number == len(frames))
        sock.sendall(connection.data_to_send())
        while data := sock.recv(65536):
            for event in connection.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        answer.headers = _text(event.headers)
                    case h2.events.TrailersReceived():
                        answer.trailers = _text(event.headers)
                    case h2.events.DataReceived():
                        answer.body += event.data or b""
                    case h2.events.StreamReset():
                        answer.reset = int(event.error_code or 0)
                        return answer
                    case h2.events.StreamEnded():
                        return answer
                    case _:
                        pass
            sock.sendall(connection.data_to_send())
    return answer


def frame(message: bytes, *, compressed: bool = False) -> bytes:
    """A message in gRPC's frame."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


@contextlib.contextmanager
def http1(port: int) -> Iterator[http.client.HTTPConnection]:
    """An HTTP/1.1 connection that sends paths as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    try:
        yield connection
    finally:
        connection.close()


def _text(headers: object) -> dict[str, str]:
    return {_decode(name): _decode(value) for name, value in headers or ()}  # type: ignore[attr-defined]


def _decode(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
