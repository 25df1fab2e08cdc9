"""Fleets in shared data: read anew only when they have changed, changed by compare-and-swap.

Two things of Envoy's shared data matter here. A value that is set with the CAS number 0 overwrites whatever is there, and a key
that is missing is inserted whatever the number. So nothing is ever set with 0, and a missing key is inserted, as the same initial
value by everybody, with a number that no value has: should another worker have been first, that fails as a mismatch, and
either way what is there now is read again and swapped.
"""

from __future__ import annotations

from mcprun_filter.breaker import CLOSED
from mcprun_filter.fleet import PREFIX, Circuit
from mcprun_filter.record import INITIAL, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from mcprun_filter.breaker import Transition
    from mcprun_filter.fleet import Fleet

    class SharedData(Protocol):
        """What fleets are kept in."""

        def get(self, key: bytes) -> tuple[bytes, int] | None:
            """The value and its CAS number, which is never 0; None when the key is missing."""

        def set(self, key: bytes, value: bytes, cas: int) -> bool:
            """Whether it was set: the number was that of the value there, or the key was missing."""


NO_CAS = 0xFFFF_FFFF
"""A number that no value has: they are counted up from 1."""
REGISTRY = b"breakers"
"""The key of the list of all fleets, by which `status` finds them. Lines, only ever added to."""
OVERFLOW = b"*"
"""The fleet of all models that came when there were as many fleets as there may be."""


class Update:
    """What came of a change."""

    __slots__ = ("stored", "transitions", "value", "withheld")

    def __init__(self, value: object, *, stored: bool, transitions: list[Transition], withheld: list[bytes]) -> None:
        self.value = value
        """What the operation answered; of no meaning unless `stored`."""
        self.stored = stored
        """False: others were faster each time and nothing has changed, neither here nor there."""
        self.transitions = transitions
        self.withheld = withheld
        """Nodes that would have been isolated but for the cap."""


class Fleets:
    """All fleets, as one worker sees them."""

    __slots__ = ("_data", "_full", "_max_fleets", "_tries")

    def __init__(self, data: SharedData, *, max_fleets: int = 512, tries: int = 50) -> None:
        self._data = data
        self._max_fleets = max_fleets
        self._tries = tries
        self._full = False

    def view(self, circuit: Circuit) -> Fleet:
        """The fleet as it is now, only to be read; fresh when nothing is recorded of it."""
        return self.seen(circuit, self._data.get(circuit.place))

    def seen(self, circuit: Circuit, found: tuple[bytes, int] | None) -> Fleet:
        """The same of what was found at the circuit's place: read anew only when it has changed."""
        if found is None:
            return (
                self.view(Circuit(OVERFLOW, circuit.thresholds, circuit.nodes))
                if self._full and circuit.key != OVERFLOW
                else (decode(INITIAL, circuit.thresholds, circuit.nodes))
            )
        fleet = circuit.seen
        if fleet is None or circuit.cas != found[1]:
            fleet = circuit.seen = decode(found[0], circuit.thresholds, circuit.nodes)
            circuit.cas = found[1]
            circuit.quiet = all(breaker.state == CLOSED for breaker in fleet.breakers.values())
            circuit.again.clear()
        return fleet

    def stored_key(self, circuit: Circuit) -> bytes | None:
        """The key of the record that it has part in, of which there are no more than fleets may be and one; None when it has none yet."""
        if self._data.get(circuit.place) is not None:
            return circuit.key
        return OVERFLOW if self._full else None

    def update(self, circuit: Circuit, operation: Callable[[Fleet], object], *, create: bool = False) -> Update:
        """Changes the fleet by an operation, which is repeated on what others made of it in between.

        A fleet that has no record is given one only with `create`: clients choose names, and only what a node
        did says that there is such a model. Nothing is written when the operation changes nothing.
        """
        key = circuit.key
        for _ in range(self._tries):
            found = self._data.get(PREFIX + key)
            if found is None and key is circuit.key:
                if self._full:
                    key = OVERFLOW
                    continue
                if create:
                    placed = self._register(key)
                    if placed is not key:
                        if placed is None:
                            break
                        key = placed
                        continue
            if found is None and create:
                self._data.set(PREFIX + key, INITIAL, NO_CAS)
                continue
            fleet = decode(INITIAL if found is None else found[0], circuit.thresholds, circuit.nodes)
            value = operation(fleet)
            stored = True
            if fleet.changed:
                stored = found is not None and self._data.set(PREFIX + key, encode(fleet), found[1])
            if stored:
                for transition in fleet.transitions:
                    transition.key = key
                return Update(value, stored=True, transitions=fleet.transitions, withheld=fleet.withheld)
            if found is None:
                break
        return Update(None, stored=False, transitions=[], withheld=[])

    def keys(self) -> list[bytes]:
        """The keys of all fleets that have a record, the overflow fleet last."""
        found = self._data.get(REGISTRY)
        keys = found[0].split(b"\n") if found is not None else []
        return [key for key in (*keys, OVERFLOW) if key and self._data.get(PREFIX + key) is not None]

    def _register(self, key: bytes) -> bytes | None:
        """The key itself once it is in the registry, the overflow fleet's when there is no room, None when it could not be told."""
        for _ in range(self._tries):
            found = self._data.get(REGISTRY)
            if found is None:
                self._data.set(REGISTRY, b"", NO_CAS)
                continue
            keys = found[0].split(b"\n") if found[0] else []
            if key in keys:
                return key
            if len(keys) >= self._max_fleets:
                self._full = True
                return OVERFLOW
            if self._data.set(REGISTRY, b"\n".join((*keys, key)), found[1]):
                return key
        return None
