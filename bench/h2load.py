"""Load by h2load, the load generator of nghttp2: closed loops of gRPC calls over HTTP/2."""

import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import grpc

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub

METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    in_flight: int
    per_second: float
    """Good answers a second."""
    p50: float
    """Seconds."""
    p99: float
    """Seconds."""
    failed: int


def ensure() -> str:
    """The path of h2load. On Debian it is installed when it is missing; raises SystemExit where that cannot be."""
    found = shutil.which("h2load")
    if found:
        return found
    command = ["apt-get", "install", "-y", "-qq", "nghttp2-client"]
    if os.geteuid() != 0:
        command.insert(0, "sudo")
    print("Installing h2load (nghttp2-client) ...")
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        raise SystemExit("h2load is needed: apt-get install nghttp2-client")
    return ensure()


def frame(message: oip.ModelInferRequest) -> bytes:
    """A request as gRPC puts it on the wire."""
    body = message.SerializeToString()
    return b"\0" + struct.pack(">I", len(body)) + body


def succeeded(port: int, model: str) -> int:
    """How many requests the server says that it has answered well: a gRPC error is an HTTP success to h2load."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        told = GRPCInferenceServiceStub(channel).ModelStatistics(oip.ModelStatisticsRequest(name=model))  # type: ignore[no-untyped-call]
    return sum(version.inference_stats.success.count for version in told.model_stats)


def run(port: int, request: oip.ModelInferRequest, *, in_flight: int, seconds: float, calls: int | None = None) -> Measured:
    """Keeps `in_flight` calls open for so many seconds, after a second that is not counted; or, for a server that answers so few
    a second that where the second ends would matter, until `calls` are answered.

    Raises SystemExit when the server has answered fewer calls well than were counted.
    """
    much = ("-D", f"{seconds:g}", "--warm-up-time=1") if calls is None else ("-n", str(calls))
    body = frame(request)
    before = succeeded(port, request.model_name)
    clients = min(in_flight, 8)
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder, "body"), Path(folder, "log")
        data.write_bytes(body)
        subprocess.run(
            [
                *(ensure(), "-c", str(clients), "-m", str(in_flight // clients), *much),
                *("-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(data), f"--log-file={log}"),
                *("-w", "20", "-W", "24"),
                f"http://127.0.0.1:{port}{METHOD}",
            ],
            check=True,
            capture_output=True,
            timeout=seconds + 300,
        )
        rows = [line.split("\t") for line in log.read_text().splitlines()]
    times = sorted(int(row[2]) / 1e6 for row in rows if row[1] == "200")
    if calls is not None:
        began = [int(row[0]) / 1e6 for row in rows]
        seconds = max(start + int(row[2]) / 1e6 for start, row in zip(began, rows, strict=True)) - min(began)
    if not times:
        raise SystemExit(f"no call at port {port} was answered")
    if (good := succeeded(port, request.model_name) - before) < len(times):
        raise SystemExit(f"the server at port {port} answered {good} calls well, and {len(times)} came back")
    return Measured(
        in_flight=in_flight,
        per_second=len(times) / seconds,
        p50=times[len(times) // 2],
        p99=times[min(len(times) - 1, int(len(times) * 0.99))],
        failed=len(rows) - len(times),
    )
