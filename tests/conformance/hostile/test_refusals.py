"""Bad requests, over REST and gRPC through the edge: each gets the right refusal, and the mesh goes on."""

import concurrent.futures
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import zoo

from mcprun.datatypes import encode_bytes
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from mcprun.testing import Mesh

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MEBIBYTE = 1024 * 1024


def message(model: str, *tensors: tuple[str, str, list[int], bytes], outputs: tuple[str, ...] = ()) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=model)
    for name, datatype, shape, raw in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    for output in outputs:
        request.outputs.add(name=output)
    return request


def floats(count: int) -> bytes:
    return np.zeros(count, np.float32).tobytes()


def json_input(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0], **changes}


def refused(call: Callable[[], Any], code: grpc.StatusCode, *words: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert error.value.code() is code, error.value.details()
    for word in words:
        assert word in (error.value.details() or "")


ONE = ("x", "FP32", [1, 4], floats(4))
CASES: dict[str, tuple[oip.ModelInferRequest, dict[str, Any], tuple[str, ...]]] = {
    "negative dimension": (
        message("versions", ("x", "FP32", [-1, 4], floats(4))),
        {"inputs": [json_input(shape=[-1, 4])]},
        ("'x'", "[-1, 4]"),
    ),
    "negative dimensions whose product is right": (
        message("versions", ("x", "FP32", [-1, -4], floats(4))),
        {"inputs": [json_input(shape=[-1, -4])]},
        ("'x'", "[-1, -4]"),
    ),
    "wrong element count": (
        message("versions", ("x", "FP32", [1, 4], floats(3))),
        {"inputs": [json_input(data=[0, 0, 0])]},
        ("'x'", "expected", "got"),
    ),
    "wrong shape": (
        message("versions", ("x", "FP32", [1, 5], floats(5))),
        {"inputs": [json_input(shape=[1, 5], data=[0] * 5)]},
        ("'x'", "[-1, 4]", "[1, 5]"),
    ),
    "too few dimensions": (
        message("versions", ("x", "FP32", [4], floats(4))),
        {"inputs": [json_input(shape=[4])]},
        ("'x'", "[-1, 4]", "[4]"),
    ),
    "unknown datatype": (
        message("versions", ("x", "FP31", [1, 4], floats(4))),
        {"inputs": [json_input(datatype="FP31")]},
        ("'x'", "FP31"),
    ),
    "datatype of another model": (
        message("versions", ("x", "INT32", [1, 4], floats(4))),
        {"inputs": [json_input(datatype="INT32")]},
        ("'x'", "FP32", "INT32"),
    ),
    "unknown input": (
        message("versions", ("z", "FP32", [1, 4], floats(4))),
        {"inputs": [json_input(name="z")]},
        ("'z'", "'x'"),
    ),
    "an input too many": (
        message("versions", ONE, ("z", "FP32", [1, 4], floats(4))),
        {"inputs": [json_input(), json_input(name="z")]},
        ("'z'",),
    ),
    "an input twice": (message("versions", ONE, ONE), {"inputs": [json_input(), json_input()]}, ("'x'", "twice")),
    "unknown output": (
        message("versions", ONE, outputs=("q",)),
        {"inputs": [json_input()], "outputs": [{"name": "q"}]},
        ("'q'", "'y'"),
    ),
    "an output asked for twice": (
        message("versions", ONE, outputs=("y", "y")),
        {"inputs": [json_input()], "outputs": [{"name": "y"}, {"name": "y"}]},
        ("'y'", "twice"),
    ),
    "missing input": (message("versions"), {"inputs": []}, ("'x'", "missing")),
    "more rows than a batch may have": (
        message("versions", ("x", "FP32", [65, 4], floats(260))),
        {"inputs": [json_input(shape=[65, 4], data=[0] * 260)]},
        ("65", "64", "max_batch_size"),
    ),
    "a sequence": (
        oip.ModelInferRequest(
            model_name="versions",
            inputs=[oip.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])],
            raw_input_contents=[floats(4)],
            parameters={"sequence_id": oip.InferParameter(int64_param=7)},
        ),
        {"inputs": [json_input()], "parameters": {"sequence_id": 7}},
        ("sequence_id",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_does_not_fit_is_refused_with_what_was_expected_and_what_came(
    case: str, stub: GRPCInferenceServiceStub, rest: httpx.Client
) -> None:
    request, body, words = CASES[case]
    refused(lambda: stub.ModelInfer(request), INVALID, *words)
    answer = rest.post("/v2/models/versions/infer", json=body)
    assert answer.status_code == 400, answer.text
    for word in words:
        assert word in answer.json()["error"]


def test_one_of_two_inputs_is_missing(stub: GRPCInferenceServiceStub) -> None:
    request = message("add_sub", ("INPUT0", "INT32", [1, 16], bytes(64)))
    refused(lambda: stub.ModelInfer(request), INVALID, "'INPUT1'", "missing")


def test_inputs_with_different_rows(stub: GRPCInferenceServiceStub) -> None:
    request = message("add_sub", ("INPUT0", "INT32", [1, 16], bytes(64)), ("INPUT1", "INT32", [2, 16], bytes(128)))
    refused(lambda: stub.ModelInfer(request), INVALID, "'INPUT1'", "rows")


@pytest.mark.parametrize(
    ("contents", "word"),
    [
        (oip.InferTensorContents(int_contents=[1, 2, 3, 4]), "fp32_contents"),
        (oip.InferTensorContents(fp32_contents=[1, 2, 3]), "bytes expected"),
        (oip.InferTensorContents(), "0"),
    ],
)
def test_typed_contents_that_do_not_fit(stub: GRPCInferenceServiceStub, contents: oip.InferTensorContents, word: str) -> None:
    request = oip.ModelInferRequest(model_name="versions")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.CopyFrom(contents)
    refused(lambda: stub.ModelInfer(request), INVALID, "'x'", word)


def test_numbers_that_do_not_fit_their_datatype(stub: GRPCInferenceServiceStub, rest: httpx.Client) -> None:
    request = oip.ModelInferRequest(model_name="identity_int8")
    request.inputs.add(name="x", datatype="INT8", shape=[1, 1]).contents.int_contents.append(300)
    refused(lambda: stub.ModelInfer(request), INVALID, "'x'", "300", "INT8")
    for datatype, value in (("INT8", 300), ("UINT8", -1), ("INT32", 1.5), ("INT32", True), ("BOOL", 1), ("FP16", 1e6), ("FP32", "one")):
        body = {"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 1], "data": [value]}]}
        answer = rest.post(f"/v2/models/identity_{datatype.lower()}/infer", json=body)
        assert answer.status_code == 400, (datatype, value, answer.text)
        assert "'x'" in answer.json()["error"]


def test_raw_contents_of_another_number_than_inputs(stub: GRPCInferenceServiceStub) -> None:
    request = message("versions", ONE)
    request.raw_input_contents.append(b"")
    refused(lambda: stub.ModelInfer(request), INVALID, "raw_input_contents")


@pytest.mark.parametrize("raw", [b"\x05\0\0\0abc", b"\x01\0", encode_bytes([b"a", b"b"]), b"", b"\xff\xff\xff\xffa"])
def test_truncated_and_lying_bytes_tensors(stub: GRPCInferenceServiceStub, raw: bytes) -> None:
    refused(lambda: stub.ModelInfer(message("identity_bytes", ("x", "BYTES", [1, 1], raw))), INVALID, "'x'", "BYTES")


def test_bytes_that_are_no_text_for_a_model_of_strings(stub: GRPCInferenceServiceStub) -> None:
    raw = encode_bytes([b"\xff\xfe"])
    refused(lambda: stub.ModelInfer(message("identity_bytes", ("x", "BYTES", [1, 1], raw))), INVALID, "'x'", "UTF-8")


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"garbage that is no message", bytes(3)])
def test_what_is_no_protobuf(mesh: Mesh, body: bytes) -> None:
    with grpc.insecure_channel(mesh.grpc_target) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(body)
        assert error.value.code() is INVALID


def test_an_empty_message_names_no_model(stub: GRPCInferenceServiceStub) -> None:
    refused(lambda: stub.ModelInfer(oip.ModelInferRequest()), grpc.StatusCode.NOT_FOUND)


def test_an_unknown_method(mesh: Mesh) -> None:
    with grpc.insecure_channel(mesh.grpc_target) as channel:
        for path in ("/inference.GRPCInferenceService/Nothing", "/no.Service/Method"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(path)(b"")  # type: ignore[arg-type]
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_json_sent_as_a_form(rest: httpx.Client) -> None:
    answer = rest.post(
        "/v2/models/versions/infer",
        content=json.dumps({"inputs": [json_input()]}),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [{"name": "x"',
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b"{}",
        b'{"inputs": 3}',
        b'{"inputs": [3]}',
        b'{"inputs": [{}]}',
        b'{"inputs": [{"name": 3, "datatype": "FP32", "shape": [1], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": "1", "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1.5], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [99999999999999999999], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, NaN, 2, 3]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, null, 2, 3]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": {"a": 1}}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2], [3]]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1,2,3,4], "parameters": 4}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1,2,3,4], "parameters": {"p": [1]}}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ' + b"[" * 500 + b"1" + b"]" * 500 + b"}]}",
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]}',
        b'{"inputs": [], "outputs": 7}',
        b'{"id": 5, "inputs": []}',
    ],
)
def test_broken_json_bodies(rest: httpx.Client, body: bytes) -> None:
    answer = rest.post("/v2/models/versions/infer", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize("nesting", [1_000, 100_000])
def test_json_that_nests_without_end(rest: httpx.Client, nesting: int) -> None:
    answer = rest.post("/v2/models/versions/infer", content=b"[" * nesting, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize("length", ["x", "-1", "99999", "1"])
def test_a_wrong_length_of_the_json_before_binary_data(rest: httpx.Client, length: str) -> None:
    answer = rest.post(
        "/v2/models/versions/infer",
        content=json.dumps({"inputs": [json_input()]}).encode(),
        headers={"content-type": "application/octet-stream", "inference-header-content-length": length},
    )
    assert answer.status_code == 400


@pytest.mark.parametrize("size", [15, 17])
def test_truncated_and_superfluous_binary_data(rest: httpx.Client, size: int) -> None:
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]}).encode()
    answer = rest.post(
        "/v2/models/versions/infer",
        content=head + bytes(size),
        headers={"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))},
    )
    assert answer.status_code == 400
    assert "bytes" in answer.json()["error"]


def test_a_broken_and_an_exploding_compressed_body(rest: httpx.Client) -> None:
    import gzip

    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert rest.post("/v2/models/versions/infer", content=b"no gzip", headers=headers).status_code == 400
    bomb = gzip.compress(bytes(200 * MEBIBYTE))
    answer = rest.post("/v2/models/versions/infer", content=bomb, headers=headers)
    assert answer.status_code == 413
    headers["content-encoding"] = "zstd"
    assert rest.post("/v2/models/versions/infer", content=b"x", headers=headers).status_code == 400


@pytest.mark.parametrize(
    "name", ["größe", "模型", "a%2Fb", "versions%2Fready", "..%2F..", "%FF", "%00", "a%20b", "x" * 5000, "versions%252Fready"]
)
def test_names_with_any_letters_or_slashes_are_names_and_not_found(rest: httpx.Client, name: str) -> None:
    for path in (f"/v2/models/{name}", f"/v2/models/{name}/ready", f"/v2/models/{name}/versions/1/ready"):
        assert rest.get(path).status_code == 404, path
    answer = rest.post(f"/v2/models/{name}/infer", json={"inputs": [json_input()]})
    assert answer.status_code == 404


def test_an_encoded_letter_is_the_letter(rest: httpx.Client) -> None:
    assert rest.get("/v2/models/%76ersions/ready").status_code == 200
    assert rest.get("/v2/models/versions%2Fready").status_code == 404


def test_unknown_models_and_versions_over_grpc(stub: GRPCInferenceServiceStub) -> None:
    for name in ("größe", "a/b", "", "x" * 10_000):
        refused(lambda name=name: stub.ModelInfer(message(name, ONE)), grpc.StatusCode.NOT_FOUND)
    request = message("versions", ONE)
    request.model_version = "77"
    refused(lambda: stub.ModelInfer(request), grpc.StatusCode.NOT_FOUND, "77", "1, 2")


def test_five_megabytes_pass_both_ways(stub: GRPCInferenceServiceStub, rest: httpx.Client) -> None:
    count = 5 * MEBIBYTE // 4
    data = np.arange(count, dtype=np.float32)
    answer = stub.ModelInfer(message("identity_fp32", ("x", "FP32", [1, count], data.tobytes())))
    assert answer.raw_output_contents[0] == data.tobytes()
    head = json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, count], "parameters": {"binary_data_size": data.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    response = rest.post(
        "/v2/models/identity_fp32/infer",
        content=head + data.tobytes(),
        headers={"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))},
    )
    assert response.content[int(response.headers["inference-header-content-length"]) :] == data.tobytes()


def test_almost_sixty_four_megabytes_pass_both_ways(stub: GRPCInferenceServiceStub) -> None:
    data = np.ones(16 * MEBIBYTE - 1024, np.float32)
    answer = stub.ModelInfer(message("identity_fp32", ("x", "FP32", [1, len(data)], data.tobytes())))
    assert answer.raw_output_contents[0] == data.tobytes()


def test_seventy_megabytes_are_refused_both_ways_with_the_limit(stub: GRPCInferenceServiceStub, rest: httpx.Client) -> None:
    limit = str(64 * MEBIBYTE)
    count = 70 * MEBIBYTE // 4
    inward = message("identity_fp32", ("x", "FP32", [1, count], floats(count)))
    refused(lambda: stub.ModelInfer(inward), grpc.StatusCode.RESOURCE_EXHAUSTED, limit)
    outward = message("zeros", ("count", "INT64", [1], np.array([count], np.int64).tobytes()))
    refused(lambda: stub.ModelInfer(outward), grpc.StatusCode.RESOURCE_EXHAUSTED, limit)
    answer = rest.post("/v2/models/identity_fp32/infer", content=bytes(70 * MEBIBYTE), headers={"content-type": "application/octet-stream"})
    assert answer.status_code == 413
    assert limit in answer.json()["error"]
    body = {"inputs": [{"name": "count", "datatype": "INT64", "shape": [1], "data": [count]}]}
    answer = rest.post("/v2/models/zeros/infer", json={**body, "parameters": {"binary_data_output": True}})
    assert answer.status_code == 413
    assert limit in answer.json()["error"]


def dropped(mesh: Mesh) -> float:
    """Requests for the model `slow` whose deadline passed before they ran."""
    total = 0.0
    for name, metric in (("batcher", "mcprun_batcher_requests_total"), ("worker", "mcprun_worker_dropped_total")):
        for line in mesh.metrics(name).splitlines():
            if line.startswith(metric) and 'model="slow"' in line and 'expired"' in line:
                total += float(line.rpartition(" ")[2])
    return total


def test_a_short_deadline_behind_a_long_job_is_never_run_and_is_counted(
    mesh: Mesh, stub: GRPCInferenceServiceStub, rest: httpx.Client
) -> None:
    def job(turns: int) -> oip.ModelInferRequest:
        return message("slow", ("turns", "INT64", [1], np.array([turns], np.int64).tobytes()))

    stub.ModelInfer(job(50))
    started = time.perf_counter()
    stub.ModelInfer(job(100))
    turns = max(200, int(100 / (time.perf_counter() - started)))

    def inferences() -> int:
        return int(stub.ModelStatistics(oip.ModelStatisticsRequest(name="slow")).model_stats[0].inference_count)

    ran, counted = inferences(), dropped(mesh)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        long_job = threads.submit(stub.ModelInfer, job(turns))
        deadline = time.monotonic() + 20
        while "mcprun_batcher_running_requests 1.0" not in mesh.metrics("batcher"):
            assert time.monotonic() < deadline
        refused(lambda: stub.ModelInfer(job(1), timeout=0.05), grpc.StatusCode.DEADLINE_EXCEEDED)
        answer = rest.post(
            "/v2/models/slow/infer",
            json={"inputs": [{"name": "turns", "datatype": "INT64", "shape": [1], "data": [1]}], "parameters": {"timeout": 50_000}},
        )
        assert answer.status_code == 504
        assert not long_job.done()
        long_job.result()
    stub.ModelInfer(job(1))
    assert inferences() == ran + 2
    assert dropped(mesh) >= counted + 1


def test_one_bad_row_among_good_ones_fails_alone(stub: GRPCInferenceServiceStub) -> None:
    import io

    from PIL import Image

    target = io.BytesIO()
    Image.new("RGB", (9, 9), (10, 20, 30)).save(target, "PNG")
    good, bad = encode_bytes([target.getvalue()]), encode_bytes([b"this is no image"])
    before = stub.ModelStatistics(oip.ModelStatisticsRequest(name="means")).model_stats[0].execution_count
    calls = [stub.ModelInfer.future(message("means", ("image", "BYTES", [1], bad if number == 3 else good))) for number in range(8)]
    for number, call in enumerate(calls):
        if number == 3:
            refused(call.result, INVALID, "'image'", "element 0")
        else:
            np.testing.assert_allclose(np.frombuffer(call.result().raw_output_contents[0], np.float32), [10, 20, 30])
    after = stub.ModelStatistics(oip.ModelStatisticsRequest(name="means")).model_stats[0].execution_count
    assert after - before < 7, "the good rows were not batched, so the test showed nothing"


def test_a_broken_file_is_refused_each_time_and_loads_once_it_is_repaired(repository: Path, stub: GRPCInferenceServiceStub) -> None:
    folder = zoo.write(repository, "broken", "model_path: model.onnx\n", model_onnx=b"this is no model")
    try:
        for _ in range(2):
            refused(lambda: stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="broken")), INVALID, "model.onnx")
        assert not stub.ModelReady(oip.ModelReadyRequest(name="broken")).ready
        refused(lambda: stub.ModelInfer(message("broken", ONE)), grpc.StatusCode.UNAVAILABLE, "model.onnx")
        (folder / "model.onnx").write_bytes(zoo.scaled(3))
        stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="broken"))
        answer = stub.ModelInfer(message("broken", ("x", "FP32", [1, 4], np.ones(4, np.float32).tobytes())))
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [3, 3, 3, 3]
        (folder / "model.yaml").write_text("model_path: model.onnx\nbackend: [\n")
        refused(lambda: stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="broken")), INVALID, "model.yaml")
        assert stub.ModelReady(oip.ModelReadyRequest(name="broken")).ready, "what was loaded must go on to serve"
    finally:
        stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name="broken"))
        shutil.rmtree(folder)


def test_loading_and_unloading_what_is_not_there(stub: GRPCInferenceServiceStub, rest: httpx.Client) -> None:
    for name in ("unknown", "../versions", "", "a/b"):
        refused(lambda name=name: stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name=name)), grpc.StatusCode.NOT_FOUND)
        refused(
            lambda name=name: stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name=name)),
            grpc.StatusCode.NOT_FOUND,
        )
    assert rest.post("/v2/repository/models/unknown/load").status_code == 404


def test_ready_is_false_while_a_model_is_unloaded(stub: GRPCInferenceServiceStub, rest: httpx.Client) -> None:
    stub.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name="mlp"))
    try:
        assert not stub.ModelReady(oip.ModelReadyRequest(name="mlp")).ready
        assert rest.get("/v2/models/mlp/ready").status_code == 503
    finally:
        stub.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="mlp"))
    assert rest.get("/v2/models/mlp/ready").status_code == 200
