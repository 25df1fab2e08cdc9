"""Small or odd requests that would cost the router its memory, its time or its good name."""

import gzip
import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from mcprun.errors import MAX_MESSAGE_BYTES
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from mcprun.testing import Mesh

MEBIBYTE = 1024 * 1024
INFER = "/v2/models/versions/infer"
SHM = Path("/dev/shm")


@contextmanager
def little_memory(mesh: Mesh, *, mebibytes: int) -> Iterator[None]:
    """The router's memory peaks at most so much above what it had."""
    process = Path("/proc", str(mesh.pid("router")))

    def kibibytes(field: str) -> int:
        return next(int(line.split()[1]) for line in (process / "status").read_text().splitlines() if line.startswith(field))

    (process / "clear_refs").write_text("5")  # forgets the peak so far
    before = kibibytes("VmRSS:")
    yield
    assert kibibytes("VmHWM:") - before < mebibytes * 1024


def one(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], **changes}


def infer(rest: httpx.Client, *inputs: dict[str, Any], **more: Any) -> httpx.Response:
    return rest.post(INFER, json={"inputs": list(inputs), **more})


def message(rows: int = 1) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name="versions", raw_input_contents=[np.ones(4 * rows, np.float32).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    return request


@pytest.fixture
def sparse() -> Iterator[Path]:
    path = SHM / "hostile-sparse"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    yield path
    path.unlink()


def test_a_long_text_among_numbers(mesh: Mesh, rest: httpx.Client) -> None:
    with little_memory(mesh, mebibytes=100):
        wrong_count = infer(rest, one(data=["A" * 10_000] + [0] * 20_000))
        right_count = infer(rest, one(shape=[5, 4], data=["A" * 100_000] + [0] * 19))
    assert wrong_count.status_code == right_count.status_code == 400
    assert "'x': 4 elements expected by its shape, got 20001" in wrong_count.json()["error"]
    assert "'x': element 0 must be a number" in right_count.json()["error"]
    assert len(right_count.content) < 1000


@pytest.mark.parametrize("data", ["[" + "0," * 2_000_000 + '"NaN"]', "[" + "[0]," * 2_000_000 + "[0]]"])
def test_more_elements_than_the_shape_has(rest: httpx.Client, data: str) -> None:
    body = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,4],"data":{data}}}]}}'
    answer = rest.post(INFER, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "4 elements expected by its shape, got 2000001" in answer.json()["error"]


def test_a_shape_that_the_model_does_not_take_is_refused_before_the_data_is_read(rest: httpx.Client) -> None:
    answer = infer(rest, one(shape=[1, 5], data="never looked at"))
    assert answer.status_code == 400
    assert "shape [-1, 4] expected" in answer.json()["error"]


def test_lists_beside_elements(rest: httpx.Client) -> None:
    answer = infer(rest, one(data=[[1, 2], 3, 4]))
    assert answer.status_code == 400
    assert "'x': data has lists beside elements" in answer.json()["error"]


def test_a_region_that_is_larger_than_the_input(mesh: Mesh, rest: httpx.Client, sparse: Path) -> None:
    region = f"/v2/systemsharedmemory/region/{sparse.name}"
    assert rest.post(f"{region}/register", json={"key": f"/{sparse.name}", "byte_size": 1 << 30}).status_code == 200
    entry = one(parameters={"shared_memory_region": sparse.name, "shared_memory_byte_size": 1 << 30})
    with little_memory(mesh, mebibytes=20):
        both = infer(rest, entry)
        del entry["data"]
        answer = infer(rest, entry)
    assert both.status_code == answer.status_code == 400
    assert "either data or shared_memory_region" in both.json()["error"]
    assert f"'x': 16 bytes expected by its shape, got shared_memory_byte_size {1 << 30}" in answer.json()["error"]
    request = oip.ModelInferRequest(model_name="identity_bytes")
    text = request.inputs.add(name="x", datatype="BYTES", shape=[1, 1])
    text.parameters["shared_memory_region"].string_param = sparse.name
    text.parameters["shared_memory_byte_size"].int64_param = 1 << 30
    with grpc.insecure_channel(mesh.grpc_target) as channel, little_memory(mesh, mebibytes=20):
        with pytest.raises(grpc.RpcError) as error:
            GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_message_bytes" in (error.value.details() or "")
    rest.post(f"{region}/unregister")


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"shared_memory_region": 5}, "shared_memory_region must be a string, got 5"),
        ({"shared_memory_region": "none"}, "no shared memory region is registered as 'none'"),
        ({"classification": -2}, "classification must be a whole number of at least 0, got -2"),
        ({"classification": "2"}, "classification must be a whole number of at least 0, got '2'"),
    ],
)
def test_parameters_of_outputs_that_mean_nothing(rest: httpx.Client, parameters: dict[str, Any], word: str) -> None:
    answer = infer(rest, one(), outputs=[{"name": "y", "parameters": parameters}])
    assert answer.status_code in (400, 404)
    assert word in answer.json()["error"]


@pytest.mark.parametrize("key", ["/mcprun-kv-1", "mcprun-anything", "/a\0b", "/a/b", ""])
def test_objects_that_no_client_may_register(rest: httpx.Client, key: str) -> None:
    answer = rest.post("/v2/systemsharedmemory/region/forbidden/register", json={"key": key, "byte_size": 4096})
    assert answer.status_code == 400
    assert "'forbidden'" in answer.json()["error"]


def test_the_arena_of_the_kvcache_is_one_of_them(mesh: Mesh, rest: httpx.Client) -> None:
    held = [Path(link).name for link in map(str, (Path("/proc", str(mesh.pid("kvcache")), "map_files").glob("*"))) if "mcprun" in link]
    for name in {"mcprun-kv-" + str(mesh.pid("kvcache")), *held}:
        assert rest.post("/v2/systemsharedmemory/region/kv/register", json={"key": name, "byte_size": 1}).status_code == 400


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_message_that_explodes_when_it_is_inflated(mesh: Mesh, compression: grpc.Compression) -> None:
    with grpc.insecure_channel(mesh.grpc_target) as channel, little_memory(mesh, mebibytes=250):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(bytes(512 * MEBIBYTE), compression=compression)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "max_message_bytes" in (error.value.details() or "")


def test_compressed_streams_are_refused_at_the_edge(mesh: Mesh) -> None:
    with grpc.insecure_channel(mesh.grpc_target) as channel:
        stub = GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            list(stub.ModelStreamInfer(iter([message()]), compression=grpc.Compression.Gzip))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "compressed" in (error.value.details() or "")


def test_compressed_bodies_of_several_members_and_of_every_endpoint(rest: httpx.Client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
    members = gzip.compress(text[:20]) + gzip.compress(text[20:])
    assert rest.post(INFER, content=members, headers=headers).json()["outputs"][0]["data"] == [1, 2, 3, 4]
    index = rest.post("/v2/repository/index", content=gzip.compress(b'{"ready": true}'), headers=headers)
    assert {entry["state"] for entry in index.json()} == {"READY"}


@pytest.mark.parametrize("path", [INFER, "/v2/repository/models/versions/load", "/v1/infer"])
def test_the_content_type_of_bridged_calls_is_none_for_rest(rest: httpx.Client, path: str) -> None:
    answer = rest.post(path, content=b"x", headers={"content-type": "application/x-protobuf"})
    assert answer.status_code in (400, 415)
    assert answer.json()["error"]


def test_readiness_is_told_whatever_the_content_type(rest: httpx.Client) -> None:
    answer = rest.get("/v2/health/ready", headers={"content-type": "application/x-protobuf"})
    assert (answer.status_code, answer.json()) == (200, {"ready": True})


def test_deadlines_beyond_every_clock(rest: httpx.Client, stub: GRPCInferenceServiceStub) -> None:
    assert infer(rest, one(), parameters={"timeout": 2**63 - 1}).status_code == 200
    answer = rest.post(INFER, json={"inputs": [one()]}, headers={"grpc-timeout": "99999999H"})
    assert answer.status_code == 200
    request = message()
    request.parameters["timeout"].int64_param = 2**62
    assert stub.ModelInfer(request).outputs[0].shape == [1, 4]


def test_the_best_classes_of_no_rows(rest: httpx.Client) -> None:
    answer = infer(rest, one(shape=[0, 4], data=[]), outputs=[{"name": "y", "parameters": {"classification": 2}}])
    assert answer.json()["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [0, 2], "data": []}]


@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000])
def test_a_header_length_of_endless_digits(rest: httpx.Client, length: str) -> None:
    answer = rest.post(INFER, content=b"{}", headers={"inference-header-content-length": length})
    assert answer.status_code == 400
    assert len(answer.content) < 1000


@pytest.mark.parametrize("name", ["a" * 16_000, "a" * 500_000, "☃" * 6_000, "%" * 5_000])
def test_errors_that_repeat_long_names_are_cut(rest: httpx.Client, stub: GRPCInferenceServiceStub, name: str) -> None:
    request = message()
    request.inputs[0].name = name
    for call, code in (
        (lambda: stub.ModelInfer(request), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda: stub.ModelInfer(oip.ModelInferRequest(model_name=name)), grpc.StatusCode.NOT_FOUND),
        (lambda: stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name=name)), grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() is code, error.value.details()
        details = error.value.details() or ""
        assert name[:100] in details
        assert len(details) <= MAX_MESSAGE_BYTES
    answer = infer(rest, one(name=name))
    assert answer.status_code == 400
    assert len(answer.content) <= 2 * MAX_MESSAGE_BYTES


def test_typed_contents_beside_as_many_raw_ones(stub: GRPCInferenceServiceStub) -> None:
    request = message()
    request.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(request)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be mixed" in (error.value.details() or "")


def test_http_1_0_is_spoken(mesh: Mesh) -> None:
    host, _, port = mesh.grpc_target.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.read()) == (200, b'{"ready":true}')


def test_metrics_are_not_for_clients(rest: httpx.Client) -> None:
    answer = rest.get("/metrics")
    assert answer.status_code == 404
    assert answer.json() == {"error": "nothing is at /metrics"}
