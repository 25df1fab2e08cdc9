"""A filter that fails, and processes that are killed: what clients see of it, and what outlives it."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e.edge.fake_router import wait_until

import mcprun_filter
from mcprun.edge.breakers import NodeBreaker, NoStatus
from mcprun.edge.delivery import DeliveryState
from proxy_wasm.build.pipeline import Options, build

from .guarded_edge import QUICK, GuardedEdge
from .replica import Behaviour, Replica
from .test_filter_hot_swap import another_module, under_load

SLOW: dict[str, Any] = {**QUICK, "breaker": {**QUICK["breaker"], "isolation_seconds": 60}}
NAMED: dict[str, Any] = {**SLOW, "canary": [{"tag": "as-applied", "prefix": "/v2/"}]}


@pytest.fixture(scope="module")
def faulty_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The edge filter with faults that a test asks for."""
    output = tmp_path_factory.mktemp("faulty") / "faulty.wasm"
    package = Path(mcprun_filter.__file__).parents[1]
    build(Path(__file__).parent / "programs" / "faulty_guard.py", output, Options(search=(package,)), print)
    return output


@pytest.fixture(scope="module")
def shared_faulty(faulty_module: Path, replicas: list[Replica]) -> Iterator[GuardedEdge]:
    """An edge with that filter. Its isolations are long."""
    folder = Path(tempfile.mkdtemp(prefix="mcprun-faulty-"))
    edge = GuardedEdge(folder, replicas, arguments=("--filter-module", str(faulty_module)), policy=SLOW)
    yield edge
    edge.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def faulty(shared_faulty: GuardedEdge, replicas: list[Replica]) -> Iterator[GuardedEdge]:
    """The same, with all replicas well. Its Envoy must live through the test."""
    for replica in replicas:
        replica.behaviour = Behaviour()
    pid = shared_faulty.process.envoy.pid
    yield shared_faulty
    assert shared_faulty.process.envoy.pid == pid
    shared_faulty.reset_policy()


def reloads(edge: GuardedEdge) -> int:
    """How many machines were made anew after a trap."""
    return edge.process.stat("wasm[.]edge[.]vm_reload_success")


def until_reloaded(edge: GuardedEdge, model: str, before: int) -> None:
    """Asks until the worker thread whose machine trapped has another; then both threads must serve."""

    def served() -> bool:
        edge.infer(model)
        return reloads(edge) == before + 1

    wait_until(served, "the worker has a new machine", seconds=5)
    assert {answer.status_code for answer in edge.many(model, 32)} == {200}
    assert reloads(edge) == before + 1


def breaker(edge: GuardedEdge, model: str, node: str) -> NodeBreaker:
    """One breaker, once it is told: what answers is in the machine that trapped, too, and may need a second to come back."""
    found: list[NodeBreaker] = []

    def told() -> bool:
        with contextlib.suppress(NoStatus):
            found.append(edge.breakers(model)[node])
        return bool(found)

    wait_until(told, "the state is told", seconds=5)
    return found[0]


@pytest.mark.heavy
class TestTrap:
    """A trap ends the machine of one worker thread. None of these faults can be caught in Python."""

    @pytest.mark.parametrize("what", ["abort", "lock", "select"])
    @pytest.mark.parametrize("where", ["request", "response"])
    def test_it_is_answered_and_the_next_requests_work(self, faulty: GuardedEdge, model: str, where: str, what: str) -> None:
        before, length = reloads(faulty), len(faulty.process.log)
        answer = faulty.infer(model, headers={"x-fault": f"{where} {what}"})
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/json"
        until_reloaded(faulty, model, before)
        assert f"proxy_on_{where}_headers failed: Uncaught RuntimeError: unreachable" in faulty.process.log[length:]

    def test_a_grpc_caller_is_told_that_it_is_unavailable(self, faulty: GuardedEdge, model: str) -> None:
        before = reloads(faulty)
        assert faulty.call(model, metadata=[("x-fault", "request abort")])[0] == "UNAVAILABLE"
        until_reloaded(faulty, model, before)
        assert faulty.call(model)[0] == "OK"

    def test_at_the_end_of_a_request_its_client_has_the_answer(self, faulty: GuardedEdge, model: str) -> None:
        before = reloads(faulty)
        assert faulty.infer(model, headers={"x-fault": "log abort"}).json()["path"] == f"/v2/models/{model}/infer"
        until_reloaded(faulty, model, before)

    def test_breakers_outlive_it(self, faulty: GuardedEdge, replicas: list[Replica], model: str) -> None:
        replicas[1].behaviour = Behaviour(http_status=500)
        faulty.many(model, 6, threads=2)
        while breaker(faulty, model, "router-2").state != "open":
            faulty.many(model, 6, threads=2)
        opened = breaker(faulty, model, "router-2")
        before, asked = reloads(faulty), replicas[1].count
        assert faulty.infer(model, headers={"x-fault": "request abort"}).status_code == 503
        until_reloaded(faulty, model, before)
        assert replicas[1].count == asked
        assert breaker(faulty, model, "router-2").since_seconds == opened.since_seconds

    def test_prometheus_tells_it(self, faulty: GuardedEdge, model: str) -> None:
        before = reloads(faulty)
        faulty.infer(model, headers={"x-fault": "request abort"})
        until_reloaded(faulty, model, before)
        with faulty.process.admin as admin:
            lines = admin.get("/stats/prometheus").text.splitlines()
        assert f"envoy_wasm_edge_vm_reload_success{{}} {before + 1}" in lines


@pytest.mark.heavy
def test_an_exception_lets_the_request_pass_and_is_logged_and_counted(faulty: GuardedEdge, model: str) -> None:
    before, reloaded, length = faulty.metrics().get("proxy_wasm_exceptions{}", 0.0), reloads(faulty), len(faulty.process.log)
    for where in ("request", "response", "log"):
        assert faulty.infer(model, headers={"x-fault": f"{where} raise"}).status_code == 200
    wait_until(lambda: faulty.process.log[length:].count("LookupError: on purpose") == 3, "all three are logged")
    assert faulty.metrics()["proxy_wasm_exceptions{}"] == before + 3
    assert reloads(faulty) == reloaded


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["abort", "lock", "raise"])
def test_a_policy_at_which_the_filter_fails_is_refused(faulty: GuardedEdge, model: str, what: str) -> None:
    told: list[DeliveryState] = []
    statuses = under_load(faulty, model, lambda: told.append(faulty.apply({**NAMED, "tenants": {f"start-{what}": {}}})))
    assert_refused(faulty, model, told[0], statuses)


@pytest.mark.heavy
def test_a_module_that_traps_when_it_is_configured_is_refused(edge: GuardedEdge, faulty_module: Path, model: str) -> None:
    told: list[DeliveryState] = []
    bad = {**NAMED, "tenants": {"start-abort": {}}}
    statuses = under_load(edge, model, lambda: told.append(edge.apply(bad, module=faulty_module)))
    assert_refused(edge, model, told[0], statuses)


def assert_refused(edge: GuardedEdge, model: str, told: DeliveryState, statuses: list[int]) -> None:
    """What was there before goes on, and the next change finds nothing of it."""
    assert (told.outcome, told.reason) == ("rejected", "Envoy refuses it: its log says why")
    assert len(statuses) > 5
    assert set(statuses) == {200}
    assert "x-routing" not in edge.infer(model).headers
    assert edge.apply(NAMED).outcome == "applied"
    assert edge.infer(model).headers["x-routing"] == "as-applied"


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder for an edge that is ended and started again in it."""
    folder = Path(tempfile.mkdtemp(prefix="mcprun-killed-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.heavy
def test_what_was_applied_outlives_envoy_and_the_edge(own_folder: Path, tmp_path: Path, model: str) -> None:
    """Whichever of the two is killed, the edge is started anew with it."""
    replica = Replica("router-1")
    edge = GuardedEdge(own_folder, [replica])
    try:
        assert "x-routing" not in edge.infer(model).headers
        applied = edge.apply(NAMED, module=another_module(tmp_path))
        assert applied.outcome == "applied", applied.reason
        for killed in ("envoy", "edge"):
            envoy = edge.process.envoy
            os.kill(envoy.pid if killed == "envoy" else edge.process.process.pid, signal.SIGKILL)
            assert edge.process.process.wait(15) == (128 + signal.SIGKILL if killed == "envoy" else -signal.SIGKILL)
            psutil.wait_procs([envoy], timeout=15)
            assert not envoy.is_running()
            edge = GuardedEdge(own_folder, [replica])
            assert edge.infer(model).headers["x-routing"] == "as-applied", killed
            state = DeliveryState.read(edge.process.filter_folder)
            assert state is not None
            assert (state.outcome, state.policy, state.module) == ("applied", applied.policy, applied.module)
        edge.close()
    finally:
        edge.process.stop()
        replica.close()


@pytest.mark.parametrize(
    ("environment", "levels"),
    [("dev", {"debug", "info", "warning"}), ("staging", {"info", "warning"}), ("prod", {"warning"})],
)
def test_an_environment_decides_what_is_told(
    edge: GuardedEdge, replicas: list[Replica], model: str, environment: str, levels: set[str]
) -> None:
    """In dev each failed request, in staging what becomes of nodes, in prod only that one is isolated."""
    assert edge.apply({**QUICK, "environment": environment}).outcome == "applied"
    length = len(edge.process.log)
    replicas[1].behaviour = Behaviour(http_status=500)
    while edge.state(model, "router-2") != "open":
        edge.many(model, 6, threads=2)
    replicas[1].behaviour = Behaviour()
    while edge.state(model, "router-2") != "closed":
        edge.many(model, 6, threads=2)
    told = edge.process.log[length:]
    assert ("failed: " in told) == ("debug" in levels)
    assert ("node router-2 is back" in told) == ("info" in levels)
    assert "node router-2 is isolated for 1 s" in told
