"""Calls of the filter to other services, for the test to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy_wasm.abi import GrpcStatus
from proxy_wasm.headers import HeaderList
from proxy_wasm.testing.exchange import HeaderInput, Message, OutgoingCall, RuleBroken, header_pairs

if TYPE_CHECKING:
    from proxy_wasm.testing.worker import Worker


class SimulatedCall:
    """What every call has."""

    def __init__(self, worker: Worker, root_id: int, token: int, cluster: str, deadline: int | None) -> None:
        self.worker = worker
        self.root_id = root_id
        self.token = token
        self.cluster = cluster
        self.deadline = deadline
        """When the host gives up, in nanoseconds since the Unix epoch."""

    def time_out(self) -> None:
        """The deadline has passed."""
        raise NotImplementedError

    @property
    def pending(self) -> bool:
        """Whether it waits for an answer."""
        return self in self.worker.world.calls

    def _end(self) -> None:
        if not self.pending:
            raise RuleBroken("the call has ended")
        self.worker.world.calls.remove(self)


class SimulatedHttpCall(SimulatedCall, OutgoingCall):
    """An HTTP call."""

    def __init__(self, worker: Worker, root_id: int, token: int, cluster: str, deadline: int | None, request: Message) -> None:
        super().__init__(worker, root_id, token, cluster, deadline)
        self.request = request

    def respond(self, headers: HeaderInput = (), *, status: int = 200, body: bytes = b"", trailers: HeaderInput = ()) -> None:
        """Answers it."""
        pairs = header_pairs(headers)
        if all(name != b":status" for name, _ in pairs):
            pairs.insert(0, (b":status", str(status).encode()))
        self._deliver(Message(HeaderList(pairs), body, HeaderList(header_pairs(trailers))))

    def fail(self) -> None:
        """Resets it."""
        self._deliver(Message(HeaderList()))

    def time_out(self) -> None:
        """The deadline has passed."""
        self.fail()

    def _deliver(self, answer: Message) -> None:
        self._end()
        host = self.worker.host
        host.call_response = answer
        counts = len(answer.headers.items()), len(answer.body), len(answer.trailers.items())
        self.worker.callback("on_http_call_response", self.root_id, self.token, *counts)
        host.call_response = None
        self.worker.world.settle()


class SimulatedGrpcCall(SimulatedCall):
    """A gRPC call or stream. The test has the service answer."""

    def __init__(
        self,
        worker: Worker,
        root_id: int,
        token: int,
        cluster: str,
        deadline: int | None,
        *,
        service: str,
        method: str,
        metadata: HeaderList,
        streaming: bool,
    ) -> None:
        super().__init__(worker, root_id, token, cluster, deadline)
        self.service = service
        self.method = method
        self.metadata = metadata
        self.streaming = streaming
        self.sent: list[bytes] = []
        """The messages of the filter so far."""
        self.half_closed = False
        """Whether the filter has said that there are no more."""
        self.cancelled = False

    @property
    def message(self) -> bytes:
        """The message of a unary call."""
        return self.sent[0]

    def respond(self, message: bytes) -> None:
        """Answers a unary call."""
        if self.streaming:
            raise RuleBroken("a stream is answered by send_message and close")
        self._end()
        self._receive(message)

    def send_initial_metadata(self, metadata: HeaderInput) -> None:
        """The service sends its metadata."""
        self._metadata("on_grpc_receive_initial_metadata", metadata)

    def send_message(self, message: bytes) -> None:
        """The service sends a message on the stream."""
        if not self.pending:
            raise RuleBroken("the stream has ended")
        self._receive(message)

    def send_trailing_metadata(self, metadata: HeaderInput) -> None:
        """The service sends its trailing metadata; `close` comes after it."""
        self._metadata("on_grpc_receive_trailing_metadata", metadata)

    def close(self, status: int = GrpcStatus.OK, message: str = "") -> None:
        """The service ends the stream."""
        self._end()
        host = self.worker.host
        host.grpc_status = (int(status), message.encode())
        self.worker.callback("on_grpc_close", self.root_id, self.token, int(status))
        host.grpc_status = None
        self.worker.world.settle()

    def fail(self, status: int = GrpcStatus.UNAVAILABLE, message: str = "") -> None:
        """The call ends with this status."""
        self.close(status, message)

    def time_out(self) -> None:
        """The deadline has passed."""
        self.close(GrpcStatus.DEADLINE_EXCEEDED, "the timeout passed")

    def _receive(self, message: bytes) -> None:
        host = self.worker.host
        host.grpc_message = message
        self.worker.callback("on_grpc_receive", self.root_id, self.token, len(message))
        host.grpc_message = None
        self.worker.world.settle()

    def _metadata(self, callback: str, metadata: HeaderInput) -> None:
        if not self.pending:
            raise RuleBroken("the stream has ended")
        host = self.worker.host
        host.grpc_metadata = header_pairs(metadata)
        self.worker.callback(callback, self.root_id, self.token, len(host.grpc_metadata))
        host.grpc_metadata = None
        self.worker.world.settle()
