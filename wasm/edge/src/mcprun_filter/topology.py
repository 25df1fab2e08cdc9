"""The upstream nodes there are, and the addresses that Envoy knows each by.

The policy names nodes, or else they are those that have answered: then a node is a host, whatever the port.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcprun_filter.policy import Policy

MAX_LEARNED = 256
MAX_ADDRESSES = 8
"""The most addresses of one learned node."""


class Topology:
    """The nodes, as one worker knows them."""

    __slots__ = ("_addresses", "_names", "_turn")

    def __init__(self, policy: Policy) -> None:
        self._names = {address: node.name for node in policy.nodes for address in node.addresses}
        self._addresses: dict[bytes, tuple[bytes, ...]] = {node.name: node.addresses for node in policy.nodes}
        self._turn = 0

    def node(self, address: bytes) -> bytes:
        """The node at an address, as Envoy writes it."""
        name = self._names.get(address)
        return self._learn(address) if name is None else name

    def addresses(self, node: bytes) -> tuple[bytes, ...]:
        """Where a node is reached; none for a node that only another worker has met."""
        return self._addresses.get(node, ())

    def turned(self, nodes: Sequence[bytes]) -> list[bytes]:
        """All the nodes, each time beginning with another one."""
        self._turn += 1
        start = self._turn % len(nodes)
        return [*nodes[start:], *nodes[:start]]

    def _learn(self, address: bytes) -> bytes:
        host, colon, _ = address.rpartition(b":")
        name = host if colon and host else address
        if len(self._names) < MAX_LEARNED:
            known = self._addresses.get(name, ())
            if len(known) < MAX_ADDRESSES:
                self._names[address] = name
                self._addresses[name] = (*known, address)
        return name
