"""Queues of messages between workers and between modules."""

from __future__ import annotations

from proxy_wasm.abi import Status
from proxy_wasm.binding import bound
from proxy_wasm.errors import HostcallFailed, check


class SharedQueue:
    """One queue. The root context that registered it last is told by `on_queue_ready` of each message that comes."""

    __slots__ = ("queue_id",)

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id

    @classmethod
    def register(cls, name: str) -> SharedQueue:
        """Makes the queue, or takes over the one of that name with what is in it."""
        queue_id = bound.host.register_shared_queue(name.encode())
        if queue_id is None:
            raise HostcallFailed("register_shared_queue", Status.INTERNAL_FAILURE)
        return cls(queue_id)

    @classmethod
    def resolve(cls, vm_id: str, name: str) -> SharedQueue | None:
        """The queue that a module of that `vm_id` registered; None when none has yet."""
        queue_id = bound.host.resolve_shared_queue(vm_id.encode(), name.encode())
        return None if queue_id is None else cls(queue_id)

    def enqueue(self, value: bytes) -> None:
        """Adds a message at the end."""
        check("enqueue_shared_queue", bound.host.enqueue_shared_queue(self.queue_id, value))

    def dequeue(self) -> bytes | None:
        """Takes the oldest message; None when there is none. Another worker may have been faster."""
        return bound.host.dequeue_shared_queue(self.queue_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedQueue) and other.queue_id == self.queue_id

    def __hash__(self) -> int:
        return hash(self.queue_id)
