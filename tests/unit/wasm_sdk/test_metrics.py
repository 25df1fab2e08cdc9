"""Metrics of a filter."""

import pytest

from proxy_wasm import Counter, RootContext
from proxy_wasm.testing import Simulation
from proxy_wasm.testing.host import SimulatedHost

counted = Counter("counted")


class Counting(RootContext):
    """Counts what its configuration says."""

    def on_configure(self, configuration: bytes) -> bool:
        counted.increment(int(configuration))
        return True


def test_nothing_is_added_without_asking_the_host_which_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def increment(host: SimulatedHost, metric_id: int, offset: int) -> int:
        asked.append(offset)
        return 0

    monkeypatch.setattr(SimulatedHost, "increment_metric", increment)
    with Simulation(Counting, configuration="0") as host:
        assert not host.exceptions
    with Simulation(Counting, configuration="2"):
        pass
    assert asked == [2]
