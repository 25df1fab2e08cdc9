"""The real Triton server, out of the wheel `nvidia-pytriton`: its front end and its dynamic batcher in C++, with ONNX Runtime in
its Python backend (its own ONNX Runtime backend is in no wheel). Installed into an environment of its own.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from bench.h2load import METHOD
from bench.models import BenchModel
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.supervisor.ports import free_port

_PACKAGES = ("nvidia-pytriton==0.7.0", "onnxruntime", "numpy")

_MODEL = """
import sys
sys.path.insert(0, {site!r})
import numpy as np, onnxruntime as ort, triton_python_backend_utils as backend

class TritonPythonModel:
    def initialize(self, args):
        options = ort.SessionOptions()
        options.intra_op_num_threads = {threads}
        self.session = ort.InferenceSession({file!r}, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        inputs = [backend.get_input_tensor_by_name(request, {input!r}).as_numpy() for request in requests]
        (outputs,) = self.session.run(None, {{{input!r}: np.concatenate(inputs)}})
        responses, begin = [], 0
        for rows in map(len, inputs):
            tensor = backend.Tensor({output!r}, np.ascontiguousarray(outputs[begin : begin + rows]))
            responses.append(backend.InferenceResponse([tensor]))
            begin += rows
        return responses
"""


def install(folder: Path) -> Path:
    """Makes the environment, once; returns its site-packages."""
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if not (site / "pytriton" / "tritonserver").is_dir():
        print("Installing Triton (nvidia-pytriton) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([str(uv), "pip", "install", "--quiet", "--python", str(python), *_PACKAGES], check=True)
    return site


@contextmanager
def serving(model: BenchModel, file: Path, *, site: Path, scratch: Path, delay_us: int) -> Iterator[int]:
    """Runs Triton with one model, named as in `model`, and gives its gRPC port. `delay_us` is its queue delay."""
    server = site / "pytriton" / "tritonserver"
    backends, repository = scratch / "backends", scratch / "repository"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python_backend = backends / "python"
    if not python_backend.exists():
        backends.mkdir(parents=True)
        subprocess.run(["cp", "-r", str(server / "backends" / "python"), str(python_backend)], check=True)
        stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        subprocess.run(["cp", str(stub), str(python_backend)], check=True)
    folder = repository / model.name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(
        textwrap.dedent(f"""\
            backend: "python"
            max_batch_size: {model.max_batch_size}
            input [{{ name: "{model.input}" data_type: TYPE_FP32 dims: {list(model.shape)} }}]
            output [{{ name: "{model.output}" data_type: TYPE_FP32 dims: [{model.classes}] }}]
            dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
            instance_group [{{ kind: KIND_CPU count: 1 }}]
            """)
    )
    threads = len(os.sched_getaffinity(0))
    code = _MODEL.format(site=str(site), threads=threads, file=str(file), input=model.input, output=model.output)
    (folder / "1" / "model.py").write_text(code)
    port = free_port()
    libraries = f"{site / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with (scratch / "triton.log").open("w") as log:
        process = subprocess.Popen(
            [
                str(server / "bin" / "tritonserver"),
                *(f"--model-repository={repository}", f"--backend-directory={backends}", "--disable-auto-complete-config"),
                *("--http-address=127.0.0.1", f"--http-port={free_port()}", "--allow-metrics=false"),
                *("--grpc-address=127.0.0.1", f"--grpc-port={port}", "--exit-timeout-secs=1"),
            ],
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _wait_ready(process, port, model, scratch / "triton.log")
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", port: int, model: BenchModel, log: Path) -> None:
    deadline = time.monotonic() + 60
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = channel.unary_unary(METHOD, request_serializer=oip.ModelInferRequest.SerializeToString)
        while True:
            try:
                infer(model.request(model.name), timeout=10)
                return
            except grpc.RpcError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"Triton did not start; the end of its log:\n{log.read_text()[-2000:]}") from error
                time.sleep(0.1)
