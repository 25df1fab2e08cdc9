"""Whatever clients send, the filter neither traps nor fails, and others are served."""

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from e2e.edge.running_edge import frame, raw_call
from h2.exceptions import ProtocolError

from .guarded_edge import QUICK, GuardedEdge

TRAPS = ("Uncaught", "Wasm VM", "wasm vm", "unreachable", "exception in")
"""What Envoy or the filter writes of a trap, of a virtual machine that is gone, and of an exception."""
PATHS = ("/v2/models/m/infer", "/api/v2/v2/models/m/infer", "/api/v1/v2/models/m/versions/1/infer", "/v2/models", "/")
PIECES = (b"%", b"%00", b"%2f", b"%zz", b"%c3%28", b"/", b"//", b"/../", b";", b"?", b"?a=%ff&a", b"#", b"\xc3\xa9", b"\xff\xfe", b"=")
NAMES: tuple[str, ...] = (
    "x-tenant",
    "x-tenant-id",
    "x-routing",
    "x-request-id",
    "x-mcprun-node",
    "x-mcprun-model",
    "grpc-timeout",
    "grpc-status",
)
NAMES += (
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-upstream-rq-timeout-ms",
    "traceparent",
    "cookie",
    "grpc-status",
    "content-type",
    "accept",
    "te",
)
NUMBERS = (b"0", b"-1", b"+1", b"1e400", b"NaN", b"99999999999999999999999S", b"18446744073709551616", b"1_0", b"\xd9\xa1", b"0x10", b"-0m")


def _value(seed: random.Random) -> bytes:
    kind = seed.randrange(4)
    if kind == 0:
        return seed.choice(NUMBERS)
    if kind == 1:
        return b"application/grpc" + seed.choice((b"", b"+proto", b";", b"\xff", b"-web"))
    raw = seed.randbytes(seed.choice((0, 1, 7, 60, 3000)))
    return raw.translate(None, bytes(range(32)) + b"\x7f")


def _request(seed: random.Random) -> bytes:
    path = seed.choice(PATHS).encode()
    for _ in range(seed.randrange(4)):
        at = seed.randrange(1, len(path) + 1)
        path = path[:at] + seed.choice(PIECES) + path[at:]
    lines = [seed.choice((b"POST", b"POST", b"GET", b"PUT")) + b" " + path + b" HTTP/1.1", b"host: edge", b"connection: close"]
    for _ in range(seed.randrange(8)):
        name = seed.choice(NAMES).encode()
        lines += [name + b": " + _value(seed) for _ in range(seed.choice((1, 1, 1, 3)))]
    body = seed.choice((b"", b"{}", b"[" * 2000, b'{"inputs": [{"name": "\xff"}]}', seed.randbytes(200)))
    if seed.randrange(4):
        lines.append(b"content-length: %d" % len(body))
    else:
        lines.append(b"transfer-encoding: chunked")
        body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\nx-late: " + _value(seed) + b"\r\n\r\n"
        return b"\r\n".join(lines) + b"\r\n\r\n" + body
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _exchange(port: int, request: bytes) -> bytes:
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as sock, suppress(ConnectionError):
        sock.sendall(request)
        while data := sock.recv(65536):
            answer += data
    return answer


def _frames(seed: random.Random) -> list[bytes]:
    whole = frame(seed.randbytes(seed.choice((0, 5, 300))), compressed=seed.random() < 0.2)
    wrong = bytes([seed.randrange(256)]) + seed.randbytes(4) + seed.randbytes(20)
    return [seed.choice((whole, whole[: seed.randrange(len(whole))], wrong, seed.randbytes(50))) for _ in range(seed.randrange(4))]


def _exceptions(edge: GuardedEdge) -> float:
    return sum(value for name, value in edge.metrics().items() if name.startswith("proxy_wasm_exceptions"))


@pytest.mark.parametrize("number", range(4))
def test_no_http_request_makes_the_filter_fail(edge: GuardedEdge, model: str, number: int) -> None:
    seed = random.Random(f"http {number}")
    before, length = _exceptions(edge), len(edge.process.log)
    for _ in range(10):
        requests = [_request(seed) for _ in range(40)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda request: _exchange(edge.process.port, request), requests))
        for request, answer in zip(requests, answers, strict=True):
            assert answer.startswith(b"HTTP/1.1 "), request
        assert edge.infer(model).status_code == 200
    assert sum(answer.startswith(b"HTTP/1.1 200") for answer in answers) > 0, "Envoy refused all of them before the filter"
    _assert_unharmed(edge, before, length)


@pytest.mark.parametrize("number", range(4))
def test_no_grpc_message_or_metadata_makes_the_filter_fail(edge: GuardedEdge, model: str, number: int) -> None:
    seed = random.Random(f"grpc {number}")
    before, length = _exceptions(edge), len(edge.process.log)
    for _ in range(10):
        for _ in range(10):
            method = seed.choice(("ModelInfer", "ModelInfer", "ServerLive", "", "a/b", "%ff"))
            names = seed.sample([name for name in NAMES if name not in ("te", "content-type")], seed.randrange(4))
            headers = [(name, _value(seed).decode("latin-1").strip()) for name in names]
            with suppress(ProtocolError, ConnectionError):
                raw_call(edge.process.port, f"/inference.GRPCInferenceService/{method}", *(_frames(seed) or [b""]), headers=headers)
        assert edge.call(model)[0] == "OK"
    _assert_unharmed(edge, before, length)


def test_models_and_tenants_that_clients_invent_add_no_metrics_past_the_bound(edge: GuardedEdge, model: str) -> None:
    """Envoy never forgets a metric. Breakers of 16 models on three nodes may be told apart, and all others are one."""
    assert edge.apply({**QUICK, "max_fleets": 16}).outcome == "applied"
    edge.many(model, 50)
    before = edge.metrics().keys()
    for number in range(100):
        headers = {"x-tenant": f"t{number}", "x-tenant-id": f"t{number}", "x-routing": f"r{number}"}
        assert edge.infer(f"{model}.{number}", headers=headers).status_code == 200
    new = edge.metrics().keys() - before
    assert len(new) <= 17 * 3, sorted(new)


def _assert_unharmed(edge: GuardedEdge, exceptions: float, length: int) -> None:
    assert _exceptions(edge) == exceptions
    told = edge.process.log[length:]
    assert not [line for line in told.splitlines() if any(trap in line for trap in TRAPS)]
