"""Outcomes on their way from one worker into the fleets.

Every worker sees a part of a node's outcomes. While a node is untroubled a worker counts its successes and adds them once a
tick. As soon as a node has a failure within its window, each outcome is written at once, so that a success that one worker saw
ends a row of failures that others see. Failures are always written at once, together with what was counted before.
"""

from __future__ import annotations

from mcprun_filter.breaker import CLOSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcprun_filter.breaker import Transition
    from mcprun_filter.fleet import Circuit, Fleet
    from mcprun_filter.store import Fleets

MAX_PENDING = 4096


class Tally:
    """One worker's outcomes that are not written yet: at most `MAX_PENDING` counts, which a node's outcome then flushes."""

    __slots__ = ("_fleets", "_pending", "_size", "withheld")

    def __init__(self, fleets: Fleets) -> None:
        self._fleets = fleets
        # Of each fleet: what to find it with, and for each node and generation the tallied successes and the unwritten failures.
        self._pending: dict[bytes, tuple[Circuit, dict[tuple[bytes, int], list[int]]]] = {}
        self._size = 0
        self.withheld = 0
        """How many isolations the cap prevented."""

    def report(
        self, circuit: Circuit, node: bytes, now: int, *, ok: bool, generation: int, create: bool = True, address: bytes | None = None
    ) -> list[Transition]:
        """One outcome of an ordinary request; answers the changes of state that it brought about.

        create: whether it shows that there is such a model; if not, it counts only in a fleet that has a record.
        address: the node's. `circuit.again` then tells where one more success there is to be counted, which is done by adding 1 to the
        first number: nothing else has to be asked while the record is that of `circuit.cas`.
        """
        fleet = self._fleets.view(circuit)
        breaker = fleet.breakers.get(node)
        if breaker is not None and (breaker.state != CLOSED or breaker.generation != generation):
            return []
        if not create and not fleet.breakers:
            return []
        hot = fleet.hot(node, now)
        if ok and not hot:
            counts = self._add(circuit, node, generation, 1, 0)
            if breaker is not None and address is not None and fleet is circuit.seen:
                circuit.again[address] = counts
            return self.flush(now) if self._size >= MAX_PENDING else []
        tallied, unwritten = self._take(circuit, node, generation)
        succeeded, failed = (1, 0) if ok else (0, 1)

        def write(fleet: Fleet) -> bool:
            # What could not be written before happened before.
            fleet.record(node, now, tallied=tallied, failed=unwritten, generation=generation)
            return fleet.record(node, now, ok=succeeded, failed=failed, generation=generation)

        update = self._fleets.update(circuit, write, create=True)
        if not update.stored:
            self._add(circuit, node, generation, tallied + succeeded, unwritten + failed)
        self.withheld += len(update.withheld)
        return update.transitions

    def flush(self, now: int) -> list[Transition]:
        """Writes what was counted: to be called once a tick. Answers the changes of state that it brought about."""
        pending, self._pending, self._size = self._pending, {}, 0
        transitions: list[Transition] = []
        for circuit, counts in pending.values():
            circuit.again.clear()

            def write(fleet: Fleet, counts: dict[tuple[bytes, int], list[int]] = counts) -> None:
                for (node, generation), (tallied, failed) in counts.items():
                    fleet.record(node, now, tallied=tallied, failed=failed, generation=generation)

            update = self._fleets.update(circuit, write, create=True)
            if not update.stored:
                for (node, generation), (tallied, failed) in counts.items():
                    self._add(circuit, node, generation, tallied, failed)
            self.withheld += len(update.withheld)
            transitions += update.transitions
        return transitions

    def _add(self, circuit: Circuit, node: bytes, generation: int, tallied: int, failed: int) -> list[int]:
        counts = self._pending.setdefault(circuit.key, (circuit, {}))[1]
        if (node, generation) not in counts:
            counts[node, generation] = [0, 0]
            self._size += 1
        found = counts[node, generation]
        found[0] += tallied
        found[1] += failed
        return found

    def _take(self, circuit: Circuit, node: bytes, generation: int) -> tuple[int, int]:
        entry = self._pending.get(circuit.key)
        found = None if entry is None else entry[1].pop((node, generation), None)
        if found is None:
            return 0, 0
        circuit.again.clear()
        self._size -= 1
        return found[0], found[1]
