"""One trace over every hop: a collector of the test's own receives the spans of real services."""

import concurrent.futures
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import zoo
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from mcprun.testing import Mesh

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent: service name and span."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, object]] = []

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            name = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            self.spans += [(name, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of_trace(self, trace: str) -> dict[str, tuple[str, str, str]]:
        """Service, span id and parent id by the names of the spans of a trace."""
        return {
            span.name: (service, span.span_id.hex(), span.parent_span_id.hex())  # type: ignore[attr-defined]
            for service, span in self.spans
            if span.trace_id.hex() == trace  # type: ignore[attr-defined]
        }


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    servicer = Collector()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    server.stop(0)


def request() -> oip.ModelInferRequest:
    made = oip.ModelInferRequest(model_name="m", raw_input_contents=[np.ones(4, np.float32).tobytes()])
    made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    return made


def test_a_request_is_one_trace_through_router_batcher_and_worker(tmp_path: Path, collector: tuple[Collector, str]) -> None:
    received, endpoint = collector
    zoo.write(tmp_path, "m", "model_path: model.onnx\n", model_onnx=zoo.scaled(1))
    with Mesh(tmp_path, settings={"otlp_endpoint": endpoint}) as mesh:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        rest = "11" * 16
        httpx.post(f"{mesh.http_url}/v2/models/m/infer", json=body, headers={"traceparent": f"00-{rest}-{PARENT}-01"})
        past = "22" * 16
        for target, trace in ((mesh.grpc_target, TRACE), (mesh.router_grpc, past)):
            with grpc.insecure_channel(target) as channel:
                GRPCInferenceServiceStub(channel).ModelInfer(request(), metadata=(("traceparent", f"00-{trace}-{PARENT}-01"),))
        stream = "33" * 16
        with grpc.insecure_channel(mesh.grpc_target) as channel:
            stub = GRPCInferenceServiceStub(channel)
            list(stub.ModelStreamInfer(iter([request()]), metadata=(("traceparent", f"00-{stream}-{PARENT}-01"),)))
        expected = {
            TRACE: {"router.ModelInfer", "batcher.queue", "worker.infer"},
            rest: {"router.infer", "batcher.queue", "worker.infer"},
            stream: {"router.ModelStreamInfer", "batcher.queue", "worker.infer"},
            past: {"router.ModelInfer", "batcher.queue", "worker.infer"},
        }
        deadline = time.monotonic() + 20
        while not all(names <= received.of_trace(trace).keys() for trace, names in expected.items()):
            assert time.monotonic() < deadline, {trace: received.of_trace(trace) for trace in expected}
            time.sleep(0.05)
    for trace, names in expected.items():
        spans = received.of_trace(trace)
        (router,) = names - {"batcher.queue", "worker.infer"}
        assert [spans[name][0] for name in (router, "batcher.queue", "worker.infer")] == [
            "mcprun-router",
            "mcprun-batcher",
            "mcprun-worker",
        ]
        assert spans["batcher.queue"][2] == spans[router][1]
        assert spans["worker.infer"][2] == spans["batcher.queue"][1]
        parents = {parent for _, _, parent in spans.values()}
        assert PARENT in parents, "the caller's span is the root of all"
