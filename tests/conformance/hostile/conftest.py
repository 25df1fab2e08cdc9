"""What every hostile test has: clients, and a look at the mesh afterwards."""

from collections.abc import Iterator

import grpc
import httpx
import pytest

from mcprun.protocol.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from mcprun.testing import Mesh

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture
def stub(mesh: Mesh) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(mesh.grpc_target, options=UNLIMITED) as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.fixture(autouse=True)
def still_alive(mesh: Mesh) -> Iterator[None]:
    pids = {name: mesh.pid(name) for name in ("edge", "router", "batcher", "worker", "kvcache")}
    yield
    answer = httpx.post(
        f"{mesh.http_url}/v2/models/versions/infer",
        json={"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
        timeout=30,
    )
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]
    assert {name: mesh.pid(name) for name in pids} == pids
