"""Which node the filter avoids, for how long, and what that does to everybody else."""

import contextlib
import threading
import time

import grpc
import httpx
import pytest
from e2e.edge.running_edge import Caller

from mcprun.protocol.inference import grpc_service_pb2 as oip

from .guarded_edge import GuardedEdge
from .replica import Behaviour, Replica

BAD = "router-2"


def served(replicas: list[Replica]) -> dict[str, int]:
    return {replica.name: replica.count for replica in replicas}


def break_node(edge: GuardedEdge, model: str, replica: Replica, behaviour: Behaviour) -> None:
    """Sends requests until the node is isolated."""
    replica.behaviour = behaviour
    for _ in range(40):
        edge.many(model, 6, threads=2)
        if edge.state(model, replica.name) == "open":
            return
    raise AssertionError(f"{replica.name} is not isolated: {edge.breakers(model)}")


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(http_status=500), Behaviour(http_status=503), Behaviour(reset_amid=True)],
    ids=["500", "503", "reset-amid"],
)
def test_a_failing_node_is_avoided_and_nothing_else_is_refused(
    edge: GuardedEdge, replicas: list[Replica], model: str, behaviour: Behaviour
) -> None:
    edge.apply({"breaker": {"isolation_seconds": 30}})
    bad = replicas[1]
    bad.behaviour = behaviour
    for _ in range(60):
        with contextlib.suppress(httpx.RemoteProtocolError):
            edge.infer(model)
        if edge.state(model, BAD) == "open":
            break
    breaker = edge.breakers(model)[BAD]
    assert breaker.state == "open"
    assert breaker.reason in (
        "6 failures in a row",
        *(f"{failed} of {total} requests in the window failed" for total in range(20, 61) for failed in range(4, 21)),
    )
    before = bad.count
    bad.behaviour = Behaviour()
    answers = edge.many(model, 60)
    assert {answer.status_code for answer in answers} == {200}
    assert bad.count == before
    assert {answer.headers["x-replica"] for answer in answers} == {"router-1", "router-3"}
    # Another model's breakers are untouched.
    assert {edge.infer(f"{model}-2").headers["x-replica"] for _ in range(30)} == {"router-1", "router-2", "router-3"}


def test_five_failures_in_a_row_do_not_isolate_and_a_sixth_does(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    # The other two are out of the way, so that all requests go to one node.
    for other in ("router-1", "router-3"):
        break_node(edge, model, replicas[int(other[-1]) - 1], Behaviour(http_status=500))
    replicas[1].behaviour = Behaviour(http_status=500)
    replicas[0].behaviour = replicas[2].behaviour = Behaviour(hang=True)
    row = edge.breakers(model)[BAD].consecutive_failures
    with httpx.Client(timeout=5) as client:
        while row < 5:
            answer = edge.infer(model, client=client)
            row = edge.breakers(model)[BAD].consecutive_failures
            assert answer.status_code == 500
            assert edge.state(model, BAD) == "closed"
        edge.infer(model, client=client)
    assert edge.state(model, BAD) == "open"
    assert edge.breakers(model)[BAD].reason == "6 failures in a row"


def test_a_node_that_is_well_again_is_back_within_a_second_of_its_isolation(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    break_node(edge, model, replicas[1], Behaviour(http_status=500))
    replicas[1].behaviour = Behaviour()
    until = edge.breakers(model)[BAD].until_seconds
    assert until is not None
    with httpx.Client(timeout=5) as client:
        while edge.state(model, BAD) != "closed":
            assert time.time() < until + 1.2, edge.breakers(model)
            assert edge.infer(model, client=client).status_code == 200
    breaker = edge.breakers(model)[BAD]
    assert breaker.reason == "2 probes succeeded"
    assert {edge.infer(model).headers["x-replica"] for _ in range(30)} == {"router-1", "router-2", "router-3"}


def test_isolation_doubles_while_probes_fail(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    break_node(edge, model, replicas[1], Behaviour(http_status=500))
    edge.wait_for(model, BAD, "open")
    first = edge.breakers(model)[BAD]
    end = time.monotonic() + 8
    while edge.breakers(model)[BAD].isolations < 2:
        assert time.monotonic() < end
        edge.infer(model)
    second = edge.breakers(model)[BAD]
    assert (first.until_seconds or 0) - first.since_seconds == pytest.approx(1.0, abs=0.1)
    assert (second.until_seconds or 0) - second.since_seconds == pytest.approx(2.0, abs=0.1)
    assert second.reason.startswith("a probe failed")


def test_all_workers_together_send_no_more_probes_than_allowed(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    break_node(edge, model, replicas[1], Behaviour(http_status=500))
    bad = replicas[1]
    bad.behaviour = Behaviour(hang=True)
    before = bad.count
    stop = time.monotonic() + 2.2

    def work() -> None:
        with httpx.Client(timeout=httpx.Timeout(1.0)) as client:
            while time.monotonic() < stop:
                with contextlib.suppress(httpx.TimeoutException):
                    edge.infer(model, client=client)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The isolation lasts a second, each lease two: within 2.2 s there is time for one set of probes.
    assert 1 <= bad.count - before <= 2


def test_with_no_node_left_callers_are_told_so_in_their_protocol(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    edge.apply({"breaker": {"max_isolated_ratio": 1.0, "panic_ratio": 0.0, "isolation_seconds": 30}})
    for replica in replicas:
        replica.behaviour = Behaviour(http_status=500)
    end = time.monotonic() + 20
    while [breaker.state for breaker in edge.breakers(model).values()] != ["open"] * 3:
        assert time.monotonic() < end, edge.breakers(model)
        edge.many(model, 6, threads=2)
    before = served(replicas)
    answer = edge.infer(model)
    assert answer.status_code == 503
    assert 25 <= int(answer.headers["retry-after"]) <= 30
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"].startswith(f"Model {model} is unavailable: 3 of 3 nodes are isolated after failures. Try again in ")
    events = edge.infer(model, headers={"accept": "text/event-stream"})
    assert events.status_code == 503
    assert events.headers["content-type"] == "text/event-stream"
    assert events.text.startswith(f'event: error\ndata: {{"error": "Model {model} is unavailable')
    code, told = edge.call(model)
    assert code == "UNAVAILABLE"
    assert told["message"].startswith(f"Model {model} is unavailable: 3 of 3 nodes are isolated")
    assert 25 <= int(told["retry-after"]) <= 30
    assert edge.stream(model) == "UNAVAILABLE"
    assert served(replicas) == before
    # What is asked of the mesh itself is answered all the same.
    for replica in replicas:
        replica.behaviour = Behaviour()
    assert httpx.get(f"{edge.url}/v2/health/ready").status_code == 200
    assert httpx.get(f"{edge.url}/v2/models/{model}").status_code == 200
    assert httpx.get(f"{edge.url}/v2/models/{model}/ready").status_code == 200


def test_too_few_healthy_nodes_are_panic(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    edge.apply({"breaker": {"max_isolated_ratio": 1.0, "panic_ratio": 0.5, "isolation_seconds": 30}})
    for replica in replicas[:2]:
        break_node(edge, model, replica, Behaviour(http_status=500))
        replica.behaviour = Behaviour()
    assert {answer.headers["x-replica"] for answer in edge.many(model, 60)} == {"router-1", "router-2", "router-3"}


def test_the_cap_keeps_nodes_in_use(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    edge.apply({"breaker": {"max_isolated_ratio": 0.4, "isolation_seconds": 30}})
    for replica in replicas:
        replica.behaviour = Behaviour(http_status=500)
    edge.many(model, 90)
    assert sorted(breaker.state for breaker in edge.breakers(model).values()) == ["closed", "closed", "open"]


@pytest.mark.parametrize("status", [2, 4, 8, 13, 14])
def test_grpc_failures_under_http_200_count(edge: GuardedEdge, replicas: list[Replica], model: str, status: int) -> None:
    replicas[1].behaviour = Behaviour(grpc_status=status)
    end = time.monotonic() + 20
    while edge.state(model, BAD) != "open":
        assert time.monotonic() < end, edge.breakers(model)
        edge.call(model)
    assert {edge.call(model)[0] for _ in range(5)} == {"OK"}


@pytest.mark.parametrize("status", [3, 5, 9, 16])
def test_grpc_answers_to_a_clients_mistake_do_not_count(edge: GuardedEdge, replicas: list[Replica], model: str, status: int) -> None:
    for replica in replicas:
        replica.behaviour = Behaviour(grpc_status=status)
    for _ in range(25):
        edge.call(model)
    for replica in replicas:
        replica.behaviour = Behaviour()
    assert edge.call(model)[0] == "OK"
    assert {breaker.failures for breaker in edge.breakers(model).values()} <= {0}


def test_failures_of_streams_count(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    replicas[1].behaviour = Behaviour(grpc_status=14)
    end = time.monotonic() + 20
    while edge.state(model, BAD) != "open":
        assert time.monotonic() < end, edge.breakers(model)
        edge.stream(model)
    assert {edge.stream(model, messages=3) for _ in range(5)} == {"OK"}


@pytest.mark.parametrize("status", [400, 404, 409, 413, 429, 499])
def test_clients_mistakes_do_not_count(edge: GuardedEdge, replicas: list[Replica], model: str, status: int) -> None:
    for replica in replicas:
        replica.behaviour = Behaviour(http_status=status)
    assert {answer.status_code for answer in edge.many(model, 60)} == {status}
    assert {breaker.state for breaker in edge.breakers(model).values()} <= {"closed"}


def test_names_of_models_that_nobody_has_leave_no_trace(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    for replica in replicas:
        replica.behaviour = Behaviour(http_status=404)
    for number in range(20):
        edge.infer(f"{model}-{number}")
    time.sleep(1.2)  # a tick and more: what is counted is written once a second
    assert [number for number in range(20) if edge.breakers(f"{model}-{number}")] == []


def test_a_model_that_is_still_loading_is_no_failure(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    for replica in replicas:
        replica.behaviour = Behaviour(http_status=503, headers={"x-mcprun-refusal": "loading"})
    assert {answer.status_code for answer in edge.many(model, 60)} == {503}
    assert {breaker.state for breaker in edge.breakers(model).values()} <= {"closed"}


def test_clients_that_leave_do_not_count(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    edge.many(model, 9)
    for replica in replicas:
        replica.behaviour = Behaviour(hang=True)
    for _ in range(12):
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{edge.url}/v2/models/{model}/infer", content=b"{}", timeout=0.1)
    assert {breaker.state for breaker in edge.breakers(model).values()} <= {"closed"}
    assert {breaker.failures for breaker in edge.breakers(model).values()} <= {0}


def test_a_node_that_hangs_past_its_callers_deadlines_is_isolated(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    replicas[1].behaviour = Behaviour(hang=True)
    end = time.monotonic() + 30
    while edge.state(model, BAD) != "open":
        assert time.monotonic() < end, edge.breakers(model)
        edge.call(model, seconds=0.2)
    assert {edge.call(model)[0] for _ in range(5)} == {"OK"}


def test_a_caller_who_cancels_before_its_deadline_does_not_count(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    for replica in replicas:
        replica.behaviour = Behaviour(hang=True)
    message = oip.ModelInferRequest(model_name=model).SerializeToString()
    with edge.process.channel() as channel:
        for _ in range(12):
            seen = sum(replica.count for replica in replicas)
            call = Caller(channel).unary("ModelInfer").future(message, timeout=30)
            end = time.monotonic() + 10
            while sum(replica.count for replica in replicas) == seen:
                assert time.monotonic() < end, "the call has not reached a replica"
                time.sleep(0.005)
            call.cancel()
            with pytest.raises(grpc.FutureCancelledError):
                call.result()
    assert {breaker.state for breaker in edge.breakers(model).values()} <= {"closed"}


def test_a_tenant_with_its_own_breaker_has_its_own_state(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    replicas[1].behaviour = Behaviour(http_status=500)
    end = time.monotonic() + 10
    while edge.state(model, BAD, tenant="own") != "open":
        assert time.monotonic() < end
        edge.infer(model, headers={"x-tenant": "own"})
    assert edge.state(model, BAD) == "closed"


def test_each_side_of_the_canary_has_its_own_state(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    replicas[1].behaviour = Behaviour(http_status=500)
    end = time.monotonic() + 10
    while edge.state(model, BAD, side="v2-canary") != "open":
        assert time.monotonic() < end
        edge.infer(model, prefix="/api/v2")
    assert edge.state(model, BAD) == "closed"


def test_the_state_can_be_scraped(edge: GuardedEdge, replicas: list[Replica], model: str) -> None:
    break_node(edge, model, replicas[1], Behaviour(http_status=500))
    metrics = edge.metrics()
    labels = f'tenant="default",model="{model}",side="",node="{BAD}"'
    assert [
        value
        for name, value in metrics.items()
        if name.startswith("mcprun_edge_breaker_state{") and f'model="{model}"' in name and BAD in name
    ] == [2.0], (labels, metrics)
    opened = [name for name in metrics if name.startswith("mcprun_edge_breaker_transitions_total{") and f'model="{model}"' in name]
    assert len(opened) == 1
    assert 'to="open"' in opened[0]
    assert metrics[opened[0]] == 1
