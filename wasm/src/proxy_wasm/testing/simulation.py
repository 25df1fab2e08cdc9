"""A filter's classes in process, or its built module in wasmtime: simulated time, any number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from proxy_wasm.abi import LogLevel
from proxy_wasm.contexts import RootContext
from proxy_wasm.registry import registered
from proxy_wasm.testing.calls import SimulatedCall, SimulatedGrpcCall, SimulatedHttpCall
from proxy_wasm.testing.exchange import FilterUnderTest, HeaderInput, LogLine, RuleBroken, header_pairs, request_pairs
from proxy_wasm.testing.host import ForeignFunction
from proxy_wasm.testing.machine import Classes, Program, WasmModule
from proxy_wasm.testing.streams import SimulatedStream
from proxy_wasm.testing.worker import Worker
from proxy_wasm.testing.world import NANOSECONDS, World

Property = str | bytes | bool | int
"""A property as tests write it; encoded as Envoy does."""

_START = 1_700_000_000.0


class SharedData:
    """The shared data as the test sees and changes it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getitem__(self, key: str) -> bytes:
        return self._world.shared_data[key.encode()][0]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._world.write(key.encode(), value, 0)

    def __delitem__(self, key: str) -> None:
        del self._world.shared_data[key.encode()]

    def __contains__(self, key: str) -> bool:
        return key.encode() in self._world.shared_data

    def __len__(self) -> int:
        return len(self._world.shared_data)

    def as_dict(self) -> dict[str, bytes]:
        """A copy."""
        return {key.decode("utf-8", "replace"): value for key, (value, _) in self._world.shared_data.items()}


class Simulation(FilterUnderTest):
    """Runs the filter that `root_type` is, or that was registered last, in `workers` workers; or the built `module`, when it is given.

    Each worker has its own contexts; shared data, queues and metrics are common. What the filter keeps in its modules' globals is common
    too, unlike in Envoy and in a built module, where each worker has a copy of them. Raises `ConfigurationRefused` when the filter refuses
    its configuration.

    `clusters` are those that calls can go to (any, when not given); `properties` what the host tells besides what comes of the request,
    by paths such as ("xds", "cluster_name"); `now` is where the clock starts, in seconds since the Unix epoch.
    """

    simulated = True

    def __init__(
        self,
        root_type: type[RootContext] | None = None,
        *,
        module: WasmModule | None = None,
        configuration: bytes | str = b"",
        vm_configuration: bytes | str = b"",
        workers: int = 1,
        clusters: Iterable[str] | None = None,
        properties: Mapping[tuple[str, ...], Property] | None = None,
        foreign_functions: Mapping[str, ForeignFunction] | None = None,
        vm_id: str = "",
        log_level: LogLevel = LogLevel.TRACE,
        now: float = _START,
    ) -> None:
        program = module or _classes(root_type)
        self._world = World(now=now, vm_id=vm_id, clusters=None if clusters is None else frozenset(clusters), log_level=log_level)
        encoded = encode_properties(properties or {})
        self.workers = [Worker(self._world, number, program, encoded, dict(foreign_functions or {})) for number in range(workers)]
        """In their order; `workers[n].root` is a worker's root context."""
        self.shared_data = SharedData(self._world)
        for worker in self.workers:
            worker.start(_bytes(vm_configuration), _bytes(configuration))

    @property
    def root(self) -> RootContext:
        """The root context of the first worker."""
        return self.workers[0].root

    @property
    def now(self) -> float:
        """The simulated time, in seconds since the Unix epoch."""
        return self._world.now / NANOSECONDS

    @property
    def logs(self) -> list[LogLine]:
        """What the filter logged, in all workers, oldest first."""
        return list(self._world.logs)

    @property
    def metrics(self) -> dict[str, int | list[int]]:
        """Each metric by its name: the value of a counter or gauge, or what a histogram was given."""
        return dict(self._world.metrics)

    @property
    def calls(self) -> list[SimulatedCall]:
        """The calls of the filter that wait for an answer, oldest first."""
        return list(self._world.calls)

    @property
    def streams(self) -> list[SimulatedStream]:
        """The streams that have not ended."""
        return [stream for worker in self.workers for stream in worker.streams.values()]

    def configure(self, configuration: bytes | str) -> None:
        """A new configuration: new streams get it. Raises `ConfigurationRefused`, and the old one stays."""
        for worker in self.workers:
            worker.configure(_bytes(configuration))

    def open(
        self,
        headers: HeaderInput = (),
        *,
        end: bool = False,
        worker: int = 0,
        properties: Mapping[tuple[str, ...], Property] | None = None,
        has_body: bool = True,
    ) -> SimulatedStream:
        """Sends a request's headers alone; without `end` body or trailers follow by the stream's methods."""
        there = self.workers[worker]
        stream = SimulatedStream(there, there.root_id, encode_properties(properties or {}))
        stream.request.begin(request_pairs(headers, has_body=has_body and not end), end=end)
        self._world.settle()
        return stream

    def request(
        self,
        headers: HeaderInput = (),
        *,
        body: bytes | Iterable[bytes] = b"",
        trailers: HeaderInput = (),
        worker: int = 0,
        properties: Mapping[tuple[str, ...], Property] | None = None,
    ) -> SimulatedStream:
        """Sends a request: `body` as one chunk with a content-length, or as several without.

        What is left of it is dropped when the filter answers before it was read.
        """
        trailer_pairs = header_pairs(trailers)
        pairs = header_pairs(headers)
        chunks = ([body] if body else []) if isinstance(body, bytes) else list(body)
        if isinstance(body, bytes) and body and not trailer_pairs and all(name != b"content-length" for name, _ in pairs):
            pairs.append((b"content-length", str(len(body)).encode()))
        stream = self.open(
            pairs, end=not chunks and not trailer_pairs, worker=worker, properties=properties, has_body=bool(chunks or trailer_pairs)
        )
        for index, chunk in enumerate(chunks):
            if not stream.over:
                stream.send_body(chunk, end=index == len(chunks) - 1 and not trailer_pairs)
        if trailer_pairs and not stream.over:
            stream.send_trailers(trailer_pairs)
        return stream

    def next_call(self) -> SimulatedHttpCall:
        """The oldest HTTP call of the filter that waits for an answer."""
        for call in self._world.calls:
            if isinstance(call, SimulatedHttpCall):
                return call
        raise RuleBroken("the filter has no HTTP call under way")

    def next_grpc_call(self) -> SimulatedGrpcCall:
        """The oldest gRPC call or stream of the filter that has not ended."""
        for call in self._world.calls:
            if isinstance(call, SimulatedGrpcCall):
                return call
        raise RuleBroken("the filter has no gRPC call under way")

    def metric(self, name: str) -> int:
        """The value of a counter or gauge, or how many values a histogram was given; 0 while there is none of that name."""
        value = self._world.metrics.get(name, 0)
        return len(value) if isinstance(value, list) else value

    def advance(self, seconds: float) -> None:
        """Lets time pass: ticks, timers and timeouts come due in their order, each at its time."""
        world = self._world
        end = world.now + round(seconds * NANOSECONDS)
        while True:
            ticking = min(self.workers, key=lambda worker: _never(worker.next_tick()))
            waiting = min(world.calls, key=lambda call: _never(call.deadline), default=None)
            tick, deadline = _never(ticking.next_tick()), _never(None if waiting is None else waiting.deadline)
            if min(tick, deadline) > end:
                break
            world.now = max(world.now, int(min(tick, deadline)))
            if waiting is not None and deadline <= tick:
                waiting.time_out()
            else:
                ticking.tick()
        world.now = end

    def set_clock(self, now: float) -> None:
        """Steps the clock, as an operator or NTP may: ticks and timeouts under way are not moved by it."""
        step = round(now * NANOSECONDS) - self._world.now
        for worker in self.workers:
            worker.shift(step)
        for call in self._world.calls:
            if call.deadline is not None:
                call.deadline += step
        self._world.now += step

    def close(self) -> None:
        """Resets what is under way and ends the root contexts."""
        for worker in self.workers:
            worker.stop()


def _classes(root_type: type[RootContext] | None) -> Program:
    root = root_type or registered()
    if root is None:
        raise ValueError("no root class and no module was given, and no class is registered")
    return Classes(root)


def encode_properties(properties: Mapping[tuple[str, ...], Property]) -> dict[bytes, bytes]:
    """As Envoy encodes them: numbers in 8 bytes, booleans in one."""
    return {"\0".join(path).encode(): _encode_property(value) for path, value in properties.items()}


def _encode_property(value: Property) -> bytes:
    if isinstance(value, bool):
        return bytes((value,))
    if isinstance(value, int):
        return value.to_bytes(8, "little", signed=value < 0)
    return _bytes(value)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _never(due: int | None) -> float:
    return float("inf") if due is None else due
