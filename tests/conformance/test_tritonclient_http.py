"""tritonclient's HTTP client, unmodified, through Envoy: JSON and binary, sync and asyncio, shared memory."""

import asyncio
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
import zoo
from tritonclient.utils import InferenceServerException

from mcprun.testing import Mesh

# The client itself cannot send these as JSON.
BINARY_ONLY = ("FP16", "BF16")
NUMPY = {"FP16": "f2", "FP32": "f4", "FP64": "f8", "BOOL": "?", "BF16": ml_dtypes.bfloat16, "BYTES": object}


@pytest.fixture
def client(mesh: Mesh) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(mesh.grpc_target, concurrency=4) as made:
        yield made


def infer_input(name: str, data: Any, datatype: str, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


def sample(datatype: str) -> Any:
    if datatype == "BYTES":
        return np.array([["ä", "", "\n"], ['"', "\\", "z" * 1000]], object)
    return np.arange(6).reshape(2, 3).astype(NUMPY.get(datatype, datatype.lower()))


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("datatype", zoo.DATATYPES)
def test_every_datatype_as_json_and_as_binary(
    client: triton.InferenceServerClient, datatype: str, binary_in: bool, binary_out: bool
) -> None:
    if datatype in BINARY_ONLY and not (binary_in and binary_out):
        return
    data = sample(datatype)
    output = triton.InferRequestedOutput("y", binary_data=binary_out)
    result = client.infer(f"identity_{datatype.lower()}", [infer_input("x", data, datatype, binary=binary_in)], outputs=[output])
    got = result.as_numpy("y")
    expected = data.astype(str) if datatype == "BYTES" else data
    if datatype == "BYTES":
        got = np.array([x.decode() if isinstance(x, bytes) else x for x in got.ravel()]).reshape(got.shape)
    np.testing.assert_array_equal(got, expected)


def test_empty_tensors(client: triton.InferenceServerClient) -> None:
    for binary in (True, False):
        data = np.zeros((0, 3), np.float32)
        result = client.infer("identity_fp32", [infer_input("x", data, "FP32", binary=binary)])
        assert result.get_output("y")["shape"] == [0, 3]


def test_health_metadata_and_configuration(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("versions")
    assert client.is_model_ready("versions", "2")
    assert not client.is_model_ready("unknown")
    assert client.get_server_metadata()["name"] == "mcprun"
    metadata = client.get_model_metadata("add_sub")
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    config = client.get_model_config("add_sub")
    assert config["max_batch_size"] == 64
    assert config["input"][0]["dims"] == [16]


def test_statistics(client: triton.InferenceServerClient) -> None:
    client.infer("mlp", [infer_input("x", np.ones((1, 64), np.float32), "FP32")])
    stats = client.get_inference_statistics("mlp")["model_stats"][0]
    assert stats["inference_count"] >= 1
    assert isinstance(stats["inference_stats"]["success"]["ns"], int)
    assert len(client.get_inference_statistics()["model_stats"]) > 3


def test_versions_request_id_and_parameters(client: triton.InferenceServerClient) -> None:
    data = infer_input("x", np.ones((1, 4), np.float32), "FP32")
    result = client.infer("versions", [data], model_version="2", request_id="r7", parameters={"mine": "x"}, timeout=60_000_000)
    assert result.get_response()["id"] == "r7"
    assert result.get_response()["model_version"] == "2"
    assert result.as_numpy("y")[0, 0] == 2


def test_the_canary_is_reached_by_its_path_and_not_by_a_header(mesh: Mesh) -> None:
    data = infer_input("x", np.ones((1, 4), np.float32), "FP32")
    for prefix, version in (("", "1"), ("/api/v1", "1"), ("/api/v2", "2")):
        with triton.InferenceServerClient(mesh.grpc_target + prefix) as client:
            answer = client.infer("versions", [data], headers={"x-routing": "v2-canary"} if prefix != "/api/v2" else None)
            assert answer.get_response()["model_version"] == version


def test_classification(client: triton.InferenceServerClient) -> None:
    data = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [infer_input("INPUT0", data, "INT32"), infer_input("INPUT1", 0 * data, "INT32")]
    for binary in (True, False):
        output = triton.InferRequestedOutput("OUTPUT0", binary_data=binary, class_count=1)
        (best,) = client.infer("add_sub", inputs, outputs=[output]).as_numpy("OUTPUT0").ravel()
        assert best in (b"15.000000:15:class-15", "15.000000:15:class-15")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies(client: triton.InferenceServerClient, algorithm: str) -> None:
    result = client.infer(
        "mlp",
        [infer_input("x", np.ones((4, 64), np.float32), "FP32")],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert result.as_numpy("y").shape == (4, 10)


def test_many_asynchronous_requests(client: triton.InferenceServerClient) -> None:
    pending = [client.async_infer("versions", [infer_input("x", np.full((1, 4), number, np.float32), "FP32")]) for number in range(100)]
    for number, request in enumerate(pending):
        assert request.get_result().as_numpy("y")[0, 0] == number


async def test_the_asyncio_client(mesh: Mesh) -> None:
    async with triton_aio.InferenceServerClient(mesh.grpc_target) as client:

        async def run(number: int) -> float:
            made = triton_aio.InferInput("x", [1, 4], "FP32")
            made.set_data_from_numpy(np.full((1, 4), number, np.float32))
            return float((await client.infer("versions", [made])).as_numpy("y")[0, 0])

        assert await asyncio.gather(*(run(number) for number in range(50))) == list(range(50))


def test_system_shared_memory(client: triton.InferenceServerClient) -> None:
    client.unregister_system_shared_memory()
    data = np.arange(16, dtype=np.int32).reshape(1, 16)
    region = shm.create_shared_memory_region("both", "/mcprun_test_http", 4 * data.nbytes)
    try:
        shm.set_shared_memory_region(region, [data, data])
        client.register_system_shared_memory("both", "/mcprun_test_http", 4 * data.nbytes)
        assert [entry["name"] for entry in client.get_system_shared_memory_status()] == ["both"]
        inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        inputs[0].set_shared_memory("both", data.nbytes)
        inputs[1].set_shared_memory("both", data.nbytes, offset=data.nbytes)
        output = triton.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("both", data.nbytes, offset=2 * data.nbytes)
        client.infer("add_sub", inputs, outputs=[output])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.int32, (1, 16), offset=2 * data.nbytes), 2 * data)
        client.unregister_system_shared_memory("both")
        with pytest.raises(InferenceServerException, match="both"):
            client.infer("add_sub", inputs)
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(region)


def test_the_repository(client: triton.InferenceServerClient) -> None:
    client.unload_model("single")
    try:
        assert not client.is_model_ready("single")
        index = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
        assert index["single"] == "UNAVAILABLE"
    finally:
        client.load_model("single")
    assert client.is_model_ready("single")
