"""tritonclient's gRPC client, unmodified, through Envoy and past it: both must be answered the same."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shm
import zoo
from tritonclient.utils import InferenceServerException

from mcprun.testing import Mesh

Array = Any


@pytest.fixture(params=["edge", "router"])
def client(request: pytest.FixtureRequest, mesh: Mesh) -> Iterator[triton.InferenceServerClient]:
    target = mesh.grpc_target if request.param == "edge" else mesh.router_grpc
    with triton.InferenceServerClient(target) as made:
        yield made


def sample(datatype: str, shape: tuple[int, ...] = (2, 3)) -> Array:
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return np.array([f"ä{i}\n".encode() for i in range(count)], object).reshape(shape)
    if datatype == "BF16":
        return np.arange(count).astype(ml_dtypes.bfloat16).reshape(shape)
    if datatype == "BOOL":
        return np.array([i % 2 == 0 for i in range(count)]).reshape(shape)
    kind = np.dtype(triton_dtype(datatype))
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        return np.array([bounds.min, bounds.max, *range(count - 2)], kind).reshape(shape)
    return np.array([np.nan, np.inf, -np.inf, *range(count - 3)], kind).reshape(shape)


def triton_dtype(datatype: str) -> str:
    return {"FP16": "f2", "FP32": "f4", "FP64": "f8", "BOOL": "?"}.get(datatype) or datatype.lower()


def infer_input(name: str, data: Array, datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data)
    return made


@pytest.mark.parametrize("datatype", zoo.DATATYPES)
def test_every_datatype_comes_back_bit_for_bit(client: triton.InferenceServerClient, datatype: str) -> None:
    data = sample(datatype)
    result = client.infer(f"identity_{datatype.lower()}", [infer_input("x", data, datatype)])
    np.testing.assert_array_equal(result.as_numpy("y"), data)
    assert result.get_output("y").datatype == datatype


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_empty_tensors(client: triton.InferenceServerClient, datatype: str) -> None:
    for shape in ((0, 3), (2, 0)):
        data = np.zeros(shape, object if datatype == "BYTES" else triton_dtype(datatype))
        result = client.infer(f"identity_{datatype.lower()}", [infer_input("x", data, datatype)])
        assert list(result.get_output("y").shape) == list(shape)
        assert result.as_numpy("y").size == 0


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("versions", "2")
    server = client.get_server_metadata()
    assert server.name == "mcprun"
    assert "binary_tensor_data" in server.extensions
    metadata = client.get_model_metadata("versions")
    assert list(metadata.versions) == ["1", "2"]
    assert metadata.platform == "onnxruntime_onnx"
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("x", "FP32", [-1, 4])]


def test_model_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("add_sub", as_json=True)["config"]
    assert config["max_batch_size"] == 64
    assert [entry["name"] for entry in config["input"]] == ["INPUT0", "INPUT1"]
    assert [entry["dims"] for entry in config["input"]] == [["16"], ["16"]]
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert client.get_model_config("single").config.max_batch_size == 0


def test_statistics_count_what_ran(client: triton.InferenceServerClient) -> None:
    def successes() -> int:
        return int(client.get_inference_statistics("versions", "2").model_stats[0].inference_stats.success.count)

    before = successes()
    client.infer("versions", [infer_input("x", np.ones((3, 4), np.float32), "FP32")], model_version="2")
    stats = client.get_inference_statistics("versions", "2").model_stats[0]
    assert successes() == before + 1
    assert stats.inference_stats.compute_infer.ns > 0
    assert any(batch.batch_size == 3 for batch in stats.batch_stats)
    assert {model.name for model in client.get_inference_statistics().model_stats} >= {"mlp", "add_sub"}


def test_named_versions_and_labels(client: triton.InferenceServerClient) -> None:
    data = np.ones((1, 4), np.float32)

    def run(**options: Any) -> tuple[float, str]:
        result = client.infer("versions", [infer_input("x", data, "FP32")], **options)
        return float(result.as_numpy("y")[0, 0]), result.get_response().model_version

    assert run() == (1.0, "1")
    assert run(model_version="2") == (2.0, "2")
    assert run(model_version="canary") == (2.0, "2")
    assert run(headers={"x-routing": "v2-canary"}, model_version="1") == (1.0, "1")
    assert run(headers={"x-routing": "something"}) == (1.0, "1")


def test_a_canary_tag_counts_at_the_router_and_not_from_clients_of_the_edge(mesh: Mesh) -> None:
    inputs = [infer_input("x", np.ones((1, 4), np.float32), "FP32")]
    for target, version in ((mesh.grpc_target, "1"), (mesh.router_grpc, "2")):
        with triton.InferenceServerClient(target) as client:
            answer = client.infer("versions", inputs, headers={"x-routing": "v2-canary"}).get_response()
            assert answer.model_version == version


def test_requested_outputs_request_ids_and_parameters(client: triton.InferenceServerClient) -> None:
    data = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [infer_input("INPUT1", data, "INT32"), infer_input("INPUT0", 10 * data, "INT32")]
    result = client.infer(
        "add_sub",
        inputs,
        outputs=[triton.InferRequestedOutput("OUTPUT1")],
        request_id="the-id",
        priority=2,
        timeout=60_000_000,
        parameters={"anything": "goes", "number": 3, "yes": True},
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), 9 * data)
    assert result.as_numpy("OUTPUT0") is None
    assert result.get_response().id == "the-id"


def test_a_model_without_a_batch_dimension(client: triton.InferenceServerClient) -> None:
    data = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(client.infer("single", [infer_input("x", data, "FP32")]).as_numpy("y"), data)


def test_classification(client: triton.InferenceServerClient) -> None:
    data = np.arange(32, dtype=np.int32).reshape(2, 16)
    inputs = [infer_input("INPUT0", data, "INT32"), infer_input("INPUT1", 0 * data, "INT32")]
    result = client.infer("add_sub", inputs, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=2)])
    assert result.as_numpy("OUTPUT0").tolist() == [
        [b"15.000000:15:class-15", b"14.000000:14:class-14"],
        [b"31.000000:15:class-15", b"30.000000:14:class-14"],
    ]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_messages(client: triton.InferenceServerClient, algorithm: str) -> None:
    data = np.ones((4, 64), np.float32)
    result = client.infer("mlp", [infer_input("x", data, "FP32")], compression_algorithm=algorithm)
    assert result.as_numpy("y").shape == (4, 10)


def test_many_asynchronous_requests_are_each_answered_with_their_own(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    for number in range(200):
        data = np.full((1, 4), number, np.float32)
        client.async_infer(
            "versions",
            [infer_input("x", data, "FP32")],
            callback=lambda result, error, number=number: answers.put((number, result, error)),
        )
    for _ in range(200):
        number, result, error = answers.get(timeout=30)
        assert error is None
        assert result.as_numpy("y")[0, 0] == number


def test_a_stream_answers_in_order_and_goes_on_after_an_error(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    for number in range(20):
        model = "unknown" if number == 7 else "versions"
        data = np.full((1, 4), number, np.float32)
        client.async_stream_infer(model, [infer_input("x", data, "FP32")], request_id=str(number))
    for number in range(20):
        result, error = answers.get(timeout=30)
        if number == 7:
            assert "unknown" in str(error)
        else:
            assert error is None
            assert result.get_response().id == str(number)
            assert result.as_numpy("y")[0, 0] == number
    client.stop_stream()


async def test_the_asyncio_client(mesh: Mesh) -> None:
    async with triton_aio.InferenceServerClient(mesh.grpc_target) as client:
        assert await client.is_server_ready()

        async def run(number: int) -> float:
            made = triton_aio.InferInput("x", [1, 4], "FP32")
            made.set_data_from_numpy(np.full((1, 4), number, np.float32))
            return float((await client.infer("versions", [made])).as_numpy("y")[0, 0])

        assert await asyncio.gather(*(run(number) for number in range(50))) == list(range(50))


def test_system_shared_memory(client: triton.InferenceServerClient) -> None:
    client.unregister_system_shared_memory()
    data = np.arange(32, dtype=np.int32).reshape(2, 16)
    size = data.nbytes
    inside = shm.create_shared_memory_region("inside", "/mcprun_test_in", 2 * size)
    outside = shm.create_shared_memory_region("outside", "/mcprun_test_out", 2 * size)
    try:
        shm.set_shared_memory_region(inside, [data, data])
        client.register_system_shared_memory("inside", "/mcprun_test_in", 2 * size)
        client.register_system_shared_memory("outside", "/mcprun_test_out", 2 * size)
        status = client.get_system_shared_memory_status().regions
        assert {name: status[name].byte_size for name in status} == {"inside": 2 * size, "outside": 2 * size}
        with pytest.raises(InferenceServerException, match="registered already"):
            client.register_system_shared_memory("inside", "/mcprun_test_in", 2 * size)
        inputs = [triton.InferInput(name, [2, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        inputs[0].set_shared_memory("inside", size)
        inputs[1].set_shared_memory("inside", size, offset=size)
        outputs = [triton.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        outputs[0].set_shared_memory("outside", size, offset=size)
        result = client.infer("add_sub", inputs, outputs=outputs)
        assert result.get_output("OUTPUT0").parameters["shared_memory_region"].string_param == "outside"
        np.testing.assert_array_equal(shm.get_contents_as_numpy(outside, np.int32, (2, 16), offset=size), 2 * data)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), 0 * data)
        outputs[0].set_shared_memory("outside", size - 4)
        with pytest.raises(InferenceServerException, match="OUTPUT0"):
            client.infer("add_sub", inputs, outputs=outputs)
        inputs[0].set_shared_memory("inside", size, offset=2 * size)
        with pytest.raises(InferenceServerException, match="inside"):
            client.infer("add_sub", inputs)
        client.unregister_system_shared_memory("inside")
        with pytest.raises(InferenceServerException, match="inside"):
            client.get_system_shared_memory_status("inside")
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(inside)
        shm.destroy_shared_memory_region(outside)


def test_the_repository_can_be_listed_unloaded_and_loaded(client: triton.InferenceServerClient) -> None:
    data = infer_input("x", np.ones((1, 3), np.float32), "FP32")
    index = {model.name: model.state for model in client.get_model_repository_index().models}
    assert index["divide"] == "READY"
    client.unload_model("divide")
    try:
        assert not client.is_model_ready("divide")
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException) as error:
            client.infer("divide", [data])
        assert error.value.status() == "StatusCode.UNAVAILABLE"
        index = {model.name: (model.state, model.reason) for model in client.get_model_repository_index().models}
        assert index["divide"] == ("UNAVAILABLE", "unloaded")
    finally:
        client.load_model("divide")
    assert client.is_model_ready("divide")
    client.infer("divide", [data])


def test_what_the_mesh_does_not_do_is_said(client: triton.InferenceServerClient) -> None:
    for call in (client.get_trace_settings, client.get_log_settings):
        with pytest.raises(InferenceServerException) as error:
            call()
        assert error.value.status() == "StatusCode.UNIMPLEMENTED"
    assert not client.get_cuda_shared_memory_status().regions


def test_a_deadline_of_the_client_ends_its_call(client: triton.InferenceServerClient) -> None:
    turns = infer_input("turns", np.array([20_000], np.int64), "INT64")
    with pytest.raises(InferenceServerException) as error:
        client.infer("slow", [turns], client_timeout=0.05)
    assert error.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_several_clients_at_once(mesh: Mesh) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with triton.InferenceServerClient(mesh.grpc_target) as own:
                for turn in range(25):
                    data = np.full((1, 4), number * 100 + turn, np.float32)
                    result = own.infer("versions", [infer_input("x", data, "FP32")])
                    np.testing.assert_array_equal(result.as_numpy("y"), data)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
