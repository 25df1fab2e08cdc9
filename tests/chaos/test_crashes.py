"""kill -9 of each process under load. What is lost, retried and refused must match the first invariant: every request ends
in exactly one answer or one error with the right code."""

import concurrent.futures
import signal
import time
from pathlib import Path

import grpc
import httpx
import pytest
from load import METHOD, Load, slow_request

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.testing import Mesh, MeshFailed

pytestmark = pytest.mark.heavy


def wait_until(condition: "object", what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def restarted(mesh: Mesh, name: str, pid: int) -> bool:
    """Whether another process than `pid` runs under the name."""
    try:
        return mesh.pid(name) != pid
    except MeshFailed:
        return False


def only(mesh: Mesh, load: Load, *codes: str) -> None:
    """Fails, with what the processes said, when a call ended in another way."""
    if not set(load.ended) <= set(codes):
        said = [line for name in ("router", "batcher", "worker") for line in mesh.logs(name).splitlines()[-15:]]
        raise AssertionError("\n".join([str(load.ended), str(load.reasons), *said]))


def health(mesh: Mesh) -> dict[str, object]:
    document: dict[str, object] = httpx.get(f"{mesh.http_url}/v1/health", timeout=10).json()
    return document


def metric(mesh: Mesh, process: str, start: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in mesh.metrics(process).splitlines() if line.startswith(start))


def test_a_killed_worker_loses_no_request(repository: Path) -> None:
    with Mesh(repository) as mesh:
        with Load(mesh.grpc_target) as load:
            for _ in range(2):
                before = mesh.pid("worker")
                mesh.kill("worker", signal.SIGKILL)
                load.wait_for_answers(200)
                assert restarted(mesh, "worker", before)
            requeued = metric(mesh, "batcher", "mcprun_batcher_requeued_total")
        only(mesh, load, "OK")
    assert requeued > 0, "the worker had no request when it was killed, so the test showed nothing"


def test_a_request_whose_two_workers_died_is_refused_and_kills_no_third(repository: Path) -> None:
    with Mesh(repository) as mesh, grpc.insecure_channel(mesh.grpc_target) as channel:
        infer = channel.unary_unary(METHOD, request_serializer=oip.ModelInferRequest.SerializeToString)
        call = infer.future(slow_request(10_000_000))
        for _ in range(2):
            wait_until(lambda: "mcprun_batcher_running_requests 1.0" in mesh.metrics("batcher"), "the job never ran")
            pid = mesh.pid("worker")
            mesh.kill("worker", signal.SIGKILL)
            wait_until(lambda pid=pid: restarted(mesh, "worker", pid), "the worker was not restarted")
        with pytest.raises(grpc.RpcError) as error:
            call.result(timeout=30)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "2 workers died" in (error.value.details() or "")
        pid = mesh.pid("worker")
        assert len(infer(slow_request(1))) > 0
        assert mesh.pid("worker") == pid


def test_a_killed_batcher_refuses_what_it_had_and_comes_back(repository: Path) -> None:
    with Mesh(repository) as mesh:
        with Load(mesh.grpc_target) as load:
            mesh.kill("batcher", signal.SIGKILL)
            load.wait_for_answers(200)
            assert health(mesh)["status"] == "healthy"
        only(mesh, load, "OK", "UNAVAILABLE")


def test_a_killed_router_is_unavailable_until_it_is_back(repository: Path) -> None:
    with Mesh(repository) as mesh:
        with Load(mesh.grpc_target) as load:
            mesh.kill("router", signal.SIGKILL)
            load.wait_for_answers(200)
            wait_until(lambda: metric(mesh, "batcher", "mcprun_batcher_running_requests") <= 16, "the batcher holds dead requests")
        only(mesh, load, "OK", "UNAVAILABLE")


def test_a_killed_edge_comes_back_on_the_same_port(repository: Path) -> None:
    with Mesh(repository) as mesh:
        with Load(mesh.grpc_target) as load:
            mesh.kill("edge", signal.SIGKILL)
            load.wait_for_answers(200)
        only(mesh, load, "OK", "UNAVAILABLE")


def test_a_killed_kvcache_hurts_no_request_and_is_told(repository: Path) -> None:
    with Mesh(repository) as mesh:
        wait_until(lambda: health(mesh)["status"] == "healthy", "never healthy")
        with Load(mesh.grpc_target) as load:
            mesh.kill("kvcache", signal.SIGKILL)
            load.wait_for_answers(200)
            wait_until(lambda: health(mesh)["status"] == "healthy", "the kvcache did not come back")
            only(mesh, load, "OK")


def test_sigterm_of_one_of_two_workers_under_load_fails_nothing(repository: Path) -> None:
    with Mesh(repository, workers=2) as mesh:
        with Load(mesh.grpc_target) as load:
            mesh.kill("worker-1", signal.SIGTERM)
            load.wait_for_answers(300)
            mesh.kill("worker-2", signal.SIGTERM)
            load.wait_for_answers(300)
        only(mesh, load, "OK")


def test_reloading_a_model_under_load_fails_nothing(repository: Path) -> None:
    with Mesh(repository) as mesh:
        with Load(mesh.grpc_target) as load, httpx.Client(base_url=mesh.http_url, timeout=30) as client:
            for _ in range(5):
                (repository / "versions" / "model.onnx").touch()
                assert client.post("/v2/repository/models/versions/load").status_code == 200
                assert client.post("/v2/repository/models/slow/unload").status_code == 200
                assert client.post("/v2/repository/models/slow/load").status_code == 200
                load.wait_for_answers(50)
        only(mesh, load, "OK")


def test_stopping_the_mesh_finishes_what_was_accepted(repository: Path) -> None:
    with Mesh(repository) as mesh, grpc.insecure_channel(mesh.grpc_target) as channel:
        infer = channel.unary_unary(METHOD, request_serializer=oip.ModelInferRequest.SerializeToString)
        infer(slow_request(100))
        started = time.perf_counter()
        infer(slow_request(200))
        turns = int(200 / (time.perf_counter() - started))
        with concurrent.futures.ThreadPoolExecutor() as threads:
            job = threads.submit(infer, slow_request(turns))
            wait_until(lambda: "mcprun_batcher_running_requests 1.0" in mesh.metrics("batcher"), "the job never ran")
            mesh.stop()
            assert len(job.result(timeout=10)) > 0
