"""Every refusal, whoever makes it, reaches its caller as gRPC or as JSON with a code and a message that help."""

import threading
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest

from .fake_router import FakeRouter, wait_until
from .faulty_router import FaultyRouter
from .running_edge import SERVICE, Caller, Edge, frame, raw_call


def test_a_refusal_of_the_router_keeps_its_code_and_message(edge: Edge, caller: Caller) -> None:
    assert caller.refused("Refuse", b"8;queue full: 100 %25 %E2%80%9Cr%C3%A9sum%C3%A9%E2%80%9D") == (
        "RESOURCE_EXHAUSTED",
        "queue full: 100 % “résumé”",
    )
    answer = raw_call(edge.port, f"{SERVICE}Refuse", frame(b"3;50 %25"))
    assert answer.trailers == {"grpc-status": "3", "grpc-message": "50 %25"}
    assert answer.headers["retry-after"] == "7"
    assert not {"x-msg-size", "x-grpc-status", "x-grpc-message"} & set(answer.headers)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_code_passes(caller: Caller, code: grpc.StatusCode) -> None:
    assert caller.refused("Refuse", f"{code.value[0]};why".encode()) == (code.name, "why")


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("DieBefore", "UNAVAILABLE", "the connection to the router broke before its answer came"),
        ("DieInHead", "UNAVAILABLE", "the connection to the router broke before its answer came"),
        ("NoHttp", "UNAVAILABLE", "the connection to the router broke before its answer came"),
        ("Html", "UNAVAILABLE", "the router answered with HTTP status 502"),
        ("Bare429", "UNAVAILABLE", "the router answered with HTTP status 429"),
        ("Bare503", "UNAVAILABLE", "the router answered with HTTP status 503"),
        ("Sized503", "UNAVAILABLE", ""),
        ("Bare400", "INTERNAL", "the router answered with HTTP status 400"),
        ("Plain404", "INTERNAL", "the router answered with HTTP status 404"),
        ("Plain500", "INTERNAL", "the router answered with HTTP status 500"),
        ("Html200", "INTERNAL", "unsupported content-type text/html, status code 200"),
        ("Typeless", "INTERNAL", "no content-type header, status code 200"),
        ("Sizeless", "INTERNAL", "upstream did not set content length"),
        ("ChunkedSizeless", "INTERNAL", "upstream did not set content length"),
        ("BadSize", "INTERNAL", "upstream did not set content length"),
        ("NegativeSize", "INTERNAL", "upstream did not set content length"),
        ("HugeSize", "INTERNAL", "upstream did not set content length"),
        # The answer has begun when these are noticed; all that is left is to break it off.
        ("DieAmid", "INTERNAL", ""),
        ("Short", "INTERNAL", ""),
        ("Long", "INTERNAL", ""),
        ("BadStatus", "INTERNAL", ""),
    ],
)
def test_a_fault_of_the_router_is_told_by_code_and_message(faulty_edge: Edge, fault: str, code: str, message: str) -> None:
    with faulty_edge.channel() as channel:
        told = Caller(channel).refused(fault)
    assert told[0] == code
    assert message in told[1]


@pytest.mark.parametrize(("name", "message"), [("Ok", b"ok"), ("Empty", b""), ("Chunked", b"helloworld")])
def test_answers_that_are_in_order_pass(faulty_edge: Edge, name: str, message: bytes) -> None:
    with faulty_edge.channel() as channel:
        assert Caller(channel).unary(name)(b"x", timeout=5) == message


def test_a_request_that_may_have_reached_the_router_is_not_sent_twice(faulty_edge: Edge, faulty_router: FaultyRouter) -> None:
    before = faulty_router.counts["DieBefore"]
    with faulty_edge.channel() as channel:
        caller = Caller(channel)
        for _ in range(5):
            # The second time over a connection that was used before.
            caller.unary("Ok")(b"x", timeout=5)
            assert caller.refused("DieBefore")[0] == "UNAVAILABLE"
    assert faulty_router.counts["DieBefore"] == before + 5


def test_a_fault_of_the_router_is_told_to_rest_clients_as_json(faulty_edge: Edge) -> None:
    answer = httpx.post(f"{faulty_edge.url}/v2/DieBefore", json={})
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"] == "1"
    assert "the connection to the router broke before its answer came" in answer.json()["error"]


def test_answers_of_the_router_to_rest_clients_pass_whatever_they_are(faulty_edge: Edge) -> None:
    answer = httpx.get(f"{faulty_edge.url}/v2/Plain404")
    assert (answer.status_code, answer.text) == (404, "Not Found")
    answer = httpx.get(f"{faulty_edge.url}/v2/Html")
    assert (answer.status_code, answer.text) == (502, "hello")


def test_a_router_that_is_away_is_told_to_everybody_and_forgotten_when_it_is_back(folder: Path) -> None:
    router = FakeRouter(folder)
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}")
    try:
        with edge.channel() as channel:
            caller = Caller(channel)
            for _ in range(2):
                code, message = caller.refused("ModelInfer")
                assert code == "UNAVAILABLE"
                assert "the router cannot be reached" in message
                assert edge.stat("cluster.router_http.upstream_rq_retry") % 5 == 0

                raw = raw_call(edge.port, f"{SERVICE}ModelInfer", frame(b"x"))
                assert raw.headers["content-type"] == "application/grpc"
                assert raw.headers["retry-after"] == "1"

                with pytest.raises(grpc.RpcError) as caught:
                    list(caller.stream("ModelStreamInfer")(iter([b"x"]), timeout=5))
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "the router cannot be reached" in (caught.value.details() or "")

                answer = httpx.post(f"{edge.url}/v2/models/m/infer", json={})
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                assert "the router cannot be reached" in answer.json()["error"]

                router.start()
                assert caller.unary("ModelInfer")(b"back", timeout=5) == b"back"
                assert httpx.get(f"{edge.url}/v2").status_code == 200
                wait_until(lambda: _streams(caller), "the gRPC listener is found again")
                router.stop()
    finally:
        router.close()
        assert edge.stop() == 0


def test_calls_wait_for_a_router_that_is_away_for_a_moment(folder: Path) -> None:
    router = FakeRouter(folder)
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}")
    try:
        with edge.channel() as channel:
            for _ in range(20):
                retries = edge.stat("cluster.router_http.upstream_rq_retry")
                calls = [Caller(channel).unary("ModelInfer").future(b"x", timeout=10) for _ in range(20)]
                wait_until(partial(_retried, edge, since=retries), "a new try")
                router.start()
                for call in calls:
                    assert call.exception() is None or call.code() is grpc.StatusCode.UNAVAILABLE
                if edge.stat("cluster.router_http.upstream_rq_retry_success"):
                    break
                # Starting the router took longer than the new tries last.
                router.stop()
            else:
                raise AssertionError("no call outlived the router's absence")
    finally:
        router.close()
        assert edge.stop() == 0


def test_requests_past_the_bound_are_refused_at_once(folder: Path, router: FakeRouter) -> None:
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}", arguments=["--max-requests", "1"])
    try:
        with edge.channel() as channel, router.holding() as release:
            caller = Caller(channel)
            held = caller.unary("Held").future(b"first", timeout=10)
            wait_until(lambda: router.seen.waiting == 1, "the first call is at the router")
            second = caller.unary("Held").future(b"second", timeout=10)
            wait_until(lambda: edge.stat("cluster.router_http.upstream_rq_pending_active") == 1, "the second call waits")
            assert caller.refused("Held") == (
                "RESOURCE_EXHAUSTED",
                "too many requests are open: at most 1 (max_requests of the edge) are allowed [UpstreamOverflow]",
            )
            answer = httpx.post(f"{edge.url}/v2/Held", content=b"x")
            assert answer.status_code == 429
            assert "max_requests of the edge" in answer.json()["error"]
            release()
            assert held.result() == b"first"
            assert second.result() == b"second"
    finally:
        assert edge.stop() == 0


def test_a_request_on_which_nothing_moves_ends(folder: Path, router: FakeRouter) -> None:
    arguments = ["--stream-idle-seconds", "0.2"]
    edge = Edge(folder, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}", arguments=arguments)
    try:
        with edge.channel() as channel:
            code, message = Caller(channel).refused("Hang")
        assert code == "DEADLINE_EXCEEDED"
        assert "no byte moved for 0.2 s" in message
        answer = httpx.post(f"{edge.url}/v2/Hang", content=b"x")
        assert answer.status_code == 504
        assert "no byte moved for 0.2 s" in answer.json()["error"]
        wait_until(lambda: router.seen.waiting == 0, "the router was told")
    finally:
        assert edge.stop() == 0


@pytest.mark.parametrize("frames", [(b"\0\0\0",), (b"\0", b"\0\0\0\0")], ids=["3 bytes", "a frame in pieces"])
def test_a_call_whose_message_is_not_whole_is_refused(edge: Edge, frames: tuple[bytes, ...]) -> None:
    answer = raw_call(edge.port, f"{SERVICE}ModelInfer", *frames)
    assert answer.headers["grpc-status"] == "3"
    assert answer.headers["grpc-message"] == "the call ended before its message was whole"


@pytest.mark.parametrize("body", [b"\1\0\0\0\2ab", b"\0\0\0\xff\xffab", frame(b"one") + frame(b"two")])
def test_a_lying_frame_ends_in_an_answer(edge: Edge, body: bytes) -> None:
    answer = raw_call(edge.port, f"{SERVICE}ModelInfer", body)
    assert answer.trailers == {"grpc-status": "0"}
    assert answer.body == frame(body[5:])


def test_100_cancelled_calls_leave_the_router_at_once(caller: Caller, router: FakeRouter) -> None:
    departed = router.seen.departed
    calls = [caller.unary("Hang").future(b"x", timeout=60) for _ in range(100)]
    wait_until(lambda: router.seen.waiting == 100, "all are at the router")
    for call in calls:
        call.cancel()
    wait_until(lambda: router.seen.departed == departed + 100, "all have left it")


def test_a_deadline_that_passes_reaches_the_router_as_a_departure(caller: Caller, router: FakeRouter) -> None:
    departed = router.seen.departed
    assert caller.refused("Hang", seconds=0.1)[0] == "DEADLINE_EXCEEDED"
    wait_until(lambda: router.seen.departed == departed + 1, "it has left")


def test_a_rest_client_that_leaves_is_told_to_the_router(edge: Edge, router: FakeRouter) -> None:
    departed = router.seen.departed
    done = threading.Event()

    def leave() -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{edge.url}/v2/Hang", content=b"x", timeout=0.1)
        done.set()

    threading.Thread(target=leave, daemon=True).start()
    assert done.wait(10)
    wait_until(lambda: router.seen.departed == departed + 1, "it has left")


def _retried(edge: Edge, *, since: int) -> bool:
    return edge.stat("cluster.router_http.upstream_rq_retry") > since


def _streams(caller: Caller) -> bool:
    try:
        return list(caller.stream("ModelStreamInfer")(iter([b"x"]), timeout=5)) == [b"x"]
    except grpc.RpcError:
        return False
