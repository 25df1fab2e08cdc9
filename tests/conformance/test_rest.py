"""REST as curl and others speak it, and the two v1 endpoints."""

import io
import math
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from mcprun.testing import Mesh

INFINITE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, -1, 0]}]}


def infer(rest: httpx.Client, model: str, *inputs: dict[str, Any], **more: Any) -> httpx.Response:
    return rest.post(f"/v2/models/{model}/infer", json={"inputs": list(inputs), **more})


def test_the_health_of_each_part(rest: httpx.Client) -> None:
    answer = rest.get("/v1/health")
    document = answer.json()
    assert answer.status_code == 200
    assert document["status"] == "healthy"
    assert {name: part["status"] for name, part in document["parts"].items()} == dict.fromkeys(
        ("router", "batcher", "workers", "kvcache"), "ok"
    )


def test_v1_infer_names_its_model_in_the_body(rest: httpx.Client) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    answer = rest.post("/v1/infer", json={"model": "versions", "version": "2", **body})
    assert answer.status_code == 200
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]
    without = rest.post("/v1/infer", json=body)
    assert without.status_code == 400
    assert "names no model" in without.json()["error"]


def test_nested_and_flat_data_are_the_same(rest: httpx.Client) -> None:
    flat = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8]}
    nested = {**flat, "data": [[1, 2, 3, 4], [5, 6, 7, 8]]}
    assert infer(rest, "versions", flat).json() == infer(rest, "versions", nested).json()


def test_not_a_number_and_infinities_follow_one_policy_in_json(rest: httpx.Client) -> None:
    answer = rest.post("/v2/models/divide/infer", json=INFINITE)
    assert answer.json()["outputs"][0]["data"] == ["Infinity", "-Infinity", "NaN"]
    back = infer(rest, "identity_fp32", {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": ["Infinity", "-Infinity", "NaN"]})
    assert back.json()["outputs"][0]["data"] == ["Infinity", "-Infinity", "NaN"]


def test_not_a_number_and_infinities_are_exact_in_binary(rest: httpx.Client) -> None:
    answer = rest.post("/v2/models/divide/infer", json={**INFINITE, "parameters": {"binary_data_output": True}})
    length = int(answer.headers["inference-header-content-length"])
    values = np.frombuffer(answer.content[length:], np.float32)
    assert values[0] == math.inf
    assert values[1] == -math.inf
    assert math.isnan(values[2])


def test_large_whole_numbers_keep_every_bit(rest: httpx.Client) -> None:
    for datatype, values in (("UINT64", [2**64 - 1, 2**53 + 1, 0]), ("INT64", [-(2**63), 2**63 - 1, 2**53 + 1])):
        tensor = {"name": "x", "datatype": datatype, "shape": [1, 3], "data": values}
        assert infer(rest, f"identity_{datatype.lower()}", tensor).json()["outputs"][0]["data"] == values


def encoded(color: tuple[int, int, int], form: str) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(target, form)
    return target.getvalue()


def test_an_encoded_image_is_decoded_and_scaled_by_the_chain(mesh: Mesh) -> None:
    import tritonclient.http as triton

    with triton.InferenceServerClient(mesh.grpc_target) as client:
        metadata = client.get_model_metadata("means")
        assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        images = np.array([encoded((255, 0, 0), "PNG"), encoded((0, 0, 255), "BMP")], object)
        made = triton.InferInput("image", [2], "BYTES")
        made.set_data_from_numpy(images)
        np.testing.assert_allclose(client.infer("means", [made]).as_numpy("means"), [[255, 0, 0], [0, 0, 255]])


def test_head_and_unknown_methods(rest: httpx.Client) -> None:
    head = rest.head("/v2/health/ready")
    assert (head.status_code, head.content) == (200, b"")
    wrong = rest.delete("/v2/models/mlp")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "GET"
    assert rest.get("/v2/nothing").status_code == 404


def test_http2_without_tls(mesh: Mesh) -> None:
    with httpx.Client(http1=False, http2=True, base_url=mesh.http_url) as client:
        answer = client.get("/v2")
        assert answer.http_version == "HTTP/2"
        assert answer.json()["name"] == "mcprun"


def test_metrics_are_told_in_base_units(mesh: Mesh) -> None:
    for name, expected in (
        ("router", "mcprun_router_request_seconds_bucket"),
        ("batcher", "mcprun_batcher_queue_seconds_bucket"),
        ("worker", "mcprun_worker_run_seconds_bucket"),
        ("kvcache", "mcprun_kvcache_committed_bytes"),
    ):
        text = mesh.metrics(name)
        assert expected in text, name
        for line in text.splitlines():
            assert not any(unit in line.partition("{")[0] for unit in ("_ms", "_millis", "_mb", "_kb")), line


@pytest.mark.parametrize("name", ["router", "batcher", "worker", "kvcache"])
def test_logs_are_json_and_always_say_who_and_which_trace(mesh: Mesh, name: str) -> None:
    import orjson

    lines = [line for line in mesh.logs(name).splitlines() if line.strip()]
    assert lines
    for line in lines:
        document = orjson.loads(line)
        assert document["service_name"] == f"mcprun-{name}"
        assert len(document["trace_id"]) == 32
        assert len(document["span_id"]) == 16
