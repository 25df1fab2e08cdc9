"""Policies and modules go in while requests are under way: none fails, and what cannot be loaded changes nothing."""

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mcprun_edge.delivery import packaged_module

from .guarded_edge import QUICK, GuardedEdge
from .replica import Behaviour, Replica


def under_load(edge: GuardedEdge, model: str, change: Callable[[], None]) -> list[int]:
    """The statuses of requests that several clients send while something is changed."""
    stop = threading.Event()
    statuses: list[int] = []

    def work() -> None:
        with httpx.Client(timeout=30) as client:
            while not stop.is_set():
                statuses.append(edge.infer(model, client=client).status_code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        change()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return statuses


def another_module(folder: Path) -> Path:
    """A module that does the same and whose bytes are others."""
    path = folder / "another.wasm"
    path.write_bytes(packaged_module().read_bytes() + b"\0\x05\x04note")
    return path


def test_a_policy_is_changed_under_load(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    def change() -> None:
        for tag in ("one", "two", "three"):
            rules = [{"tag": tag, "prefix": "/v2/"}]
            assert edge.apply({**QUICK, "canary": rules}).outcome == "applied"
            assert edge.infer(model).headers["x-routing"] == tag

    statuses = under_load(edge, model, change)
    assert len(statuses) > 50
    assert set(statuses) == {200}


def test_a_module_is_swapped_under_load_and_the_breakers_outlive_it(
    edge: GuardedEdge, replicas: list[Replica], model: str, tmp_path: Path
) -> None:
    edge.apply({**QUICK, "breaker": {**QUICK["breaker"], "isolation_seconds": 60}})
    replicas[1].behaviour = Behaviour(http_status=500)
    while edge.state(model, "router-2") != "open":
        edge.many(model, 6, threads=2)
    other = f"{model}-2"

    def change() -> None:
        before = edge.apply({**QUICK, "breaker": {**QUICK["breaker"], "isolation_seconds": 60}}).module
        state = edge.apply(module=another_module(tmp_path))
        assert state.outcome == "applied", state.reason
        assert state.module != before

    replicas[1].behaviour = Behaviour()
    statuses = under_load(edge, other, change)
    assert len(statuses) > 50
    assert set(statuses) == {200}
    assert edge.state(model, "router-2") == "open"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no module at all", "no WebAssembly module"),
        (b"\0asm\x01\0\0\0" + b"\x01\xff\xff\xff\x7f", "Envoy refuses it"),
        (b"\0asm\x01\0\0\0", "Envoy refuses it"),
    ],
    ids=["text", "corrupt", "empty"],
)
def test_a_broken_module_is_refused_and_the_old_one_goes_on(
    edge: GuardedEdge, replicas: list[Replica], model: str, tmp_path: Path, content: bytes, reason: str
) -> None:
    broken = tmp_path / "broken.wasm"
    broken.write_bytes(content)
    told = []
    statuses = under_load(edge, model, lambda: told.append(edge.apply(module=broken)))
    assert told[0].outcome == "rejected"
    assert reason in told[0].reason
    assert set(statuses) == {200}
    assert edge.infer(model, prefix="/api/v2").headers["x-routing"] == "v2-canary"
    # The next change finds nothing of it.
    assert edge.apply(QUICK).outcome == "applied"


def test_a_wrong_policy_is_refused_and_the_old_one_stays(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    state = edge.apply({"breaker": {"probes": 0}})
    assert state.outcome == "rejected"
    assert "breaker.probes" in state.reason
    assert edge.infer(model, prefix="/api/v2").headers["x-routing"] == "v2-canary"


def test_a_tenants_policy_changes_no_other_state(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    slow = {**QUICK, "breaker": {**QUICK["breaker"], "isolation_seconds": 60}}
    edge.apply(slow)
    replicas[1].behaviour = Behaviour(http_status=500)
    while edge.state(model, "router-2") != "open":
        edge.many(model, 6, threads=2)
    before = edge.breakers(model)
    assert edge.apply({**slow, "tenants": {"own": {"breaker": {"consecutive_failures": 50}}}}).outcome == "applied"
    after = edge.breakers(model)
    assert after["router-2"] == before["router-2"]
