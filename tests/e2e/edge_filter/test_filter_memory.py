"""Envoy with the filter does not grow with the requests it has served."""

import subprocess
from pathlib import Path

import psutil
import pytest

from bench import h2load
from bench.edge_filter import start
from mcprun.edge.policy import compiled
from mcprun_edge.delivery import packaged_module

GROWN_MB = 16
"""Some 80 bytes a request: less than any object that a filter would forget to give back."""


@pytest.mark.heavy
def test_200000_requests_leave_memory_as_it_was(tmp_path: Path) -> None:
    """For 40 models, so that each worker's records are read, written and counted."""
    behind = start(tmp_path, "behind", None, {}, upstream=None)
    policy = compiled(None, environment="prod", nodes={"router": [f"127.0.0.1:{behind.port}"]}, node_header="x-mcprun-node")
    edge = start(tmp_path, "edge", packaged_module(), {"policy": policy}, upstream=behind.port)
    urls = tmp_path / "urls"
    urls.write_text("".join(f"http://127.0.0.1:{edge.port}/v2/models/m{number}/infer\n" for number in range(40)))

    def serve(count: int) -> float:
        """Sends so many, and returns Envoy's resident memory in MB."""
        command = [h2load.ensure(), "--h1", "-c8", "-t1", f"-n{count}", "-i", str(urls)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert f"{count} succeeded, 0 failed" in told
        return float(psutil.Process(edge.process.pid).memory_info().rss) / 1e6

    try:
        warm = serve(20_000)
        assert serve(200_000) - warm < GROWN_MB
    finally:
        for one in (edge, behind):
            one.process.terminate()
            one.process.wait()
