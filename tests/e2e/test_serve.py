"""`mcprun init` and `mcprun serve`, as a newcomer runs them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from mcprun.supervisor.ports import free_port

SCRIPT = Path(sys.executable).with_name("mcprun")
NAMES = ["kvcache", "batcher", "worker", "router", "edge"]


def mcprun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(SCRIPT), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@dataclass
class Serving:
    process: subprocess.Popen[str]
    port: int
    events: list[dict[str, Any]]
    folder: Path

    def until(self, kind: str) -> dict[str, Any]:
        """Reads events up to one of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == kind:
                return self.events[-1]
        raise AssertionError(f"no event {kind!r}; {self.process.wait(10)} {self.events}")

    def pids(self) -> dict[str, int]:
        state = json.loads((self.folder / ".mcprun" / "run.json").read_text())
        return {process["name"]: process["pid"] for process in state["processes"]}


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Serving]:
    port = free_port()
    command = [str(SCRIPT), "serve", "--json", "--port", str(port), *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Serving(process, port, [], folder)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    assert mcprun("init", cwd=tmp_path).returncode == 0
    return tmp_path


def test_a_workspace_is_served_asked_and_stopped(workspace: Path) -> None:
    with serving(workspace) as mesh:
        mesh.until("ready")
        pids = mesh.pids()
        assert list(pids) == NAMES
        answer = json.loads(mcprun("infer", "colors", "--input", "[[250, 30, 20]]", "--json", cwd=workspace).stdout)
        assert answer["outputs"][0]["data"][0] == "red"
        status = json.loads(mcprun("status", "--json", cwd=workspace).stdout)
        assert status["ready"]
        assert [process["state"] for process in status["processes"]] == ["running"] * 5
        assert all(process["metrics_address"] and process["memory_bytes"] > 0 for process in status["processes"])
        assert [model["name"] for model in status["models"]] == ["colors"]
        again = mcprun("serve", cwd=workspace)
        assert again.returncode == 5
        assert f"pid {mesh.process.pid}" in again.stderr
        children = psutil.Process(mesh.process.pid).children(recursive=True)
        mesh.process.send_signal(signal.SIGINT)
        assert mesh.process.wait(60) == 0
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert mcprun("status", cwd=workspace).returncode == 3


def test_models_are_unloaded_and_loaded_while_serving(workspace: Path) -> None:
    with serving(workspace) as mesh:
        mesh.until("ready")
        assert mcprun("models", "unload", "colors", cwd=workspace).returncode == 0
        refused = mcprun("infer", "colors", "--input", "[[1, 2, 3]]", cwd=workspace)
        assert refused.returncode == 1
        assert mcprun("models", "load", "colors", cwd=workspace).returncode == 0
        assert mcprun("infer", "colors", "--input", "[[1, 2, 3]]", cwd=workspace).returncode == 0
        assert mcprun("models", "load", "nothing", cwd=workspace).returncode == 1


def test_every_process_that_is_killed_comes_back(workspace: Path) -> None:
    body = {"inputs": [{"name": "rgb", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}]}
    with serving(workspace) as mesh, httpx.Client(base_url=f"http://127.0.0.1:{mesh.port}", trust_env=False) as client:
        mesh.until("ready")
        for name in NAMES:
            pid = mesh.pids()[name]
            os.kill(pid, signal.SIGKILL)
            death = mesh.until("died")
            assert (death["name"], death["pid"], death["how"]) == (name, pid, "killed by SIGKILL")
            assert mesh.until("started")["name"] == name
            end = time.monotonic() + 30
            while not answers(client, body):
                assert time.monotonic() < end, f"no answer after {name} was killed"


def answers(client: httpx.Client, body: dict[str, Any]) -> bool:
    try:
        return client.post("/v2/models/colors/infer", json=body).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_nothing_outlives_a_killed_supervisor(workspace: Path) -> None:
    with serving(workspace) as mesh:
        mesh.until("ready")
        children = psutil.Process(mesh.process.pid).children(recursive=True)
        assert len(children) >= len(NAMES)
        mesh.process.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
    with serving(workspace) as mesh:
        mesh.until("ready")


def test_a_mesh_without_the_edge_filter_serves_and_says_so(workspace: Path) -> None:
    with serving(workspace, "--no-wasm") as mesh:
        mesh.until("ready")
        assert json.loads(mcprun("status", "--json", cwd=workspace).stdout)["ready"]
        answer = json.loads(mcprun("infer", "colors", "--input", "[[250, 30, 20]]", "--json", cwd=workspace).stdout)
        assert answer["outputs"][0]["data"][0] == "red"
        told = mcprun("edge", "status", cwd=workspace)
        assert told.returncode == 3
        assert told.stderr.endswith("Was the mesh started with --no-wasm?\n")
        (workspace / "policy.yaml").write_text("environment: prod\n")
        told = mcprun("edge", "apply", "policy.yaml", cwd=workspace)
        assert told.returncode == 1
        assert told.stderr.endswith("was the mesh started with --no-wasm?\n")


def test_wrong_settings_of_a_service_end_the_start_with_their_reason(workspace: Path) -> None:
    settings = workspace / "mcprun.yaml"
    settings.write_text(settings.read_text().replace("router:\n", "router:\n  connect_seconds: soon\n"))
    done = mcprun("serve", "--port", str(free_port()), cwd=workspace)
    assert done.returncode == 1
    assert "router refuses its settings" in done.stderr
    assert "connect_seconds" in done.stderr


def test_the_demo_is_served_where_there_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text("import sys\n\n\ndef main() -> None:\n    print(sys.argv)\n")
    with serving(tmp_path) as mesh:
        mesh.until("ready")
        try_what_is_printed(mesh, ["elf", "embedding", "[["])
        url = f"http://127.0.0.1:{mesh.port}"
        found = json.loads(mcprun("infer", "filetype", "--input", "text.py", "--json", "--url", url, cwd=tmp_path).stdout)
        assert found["outputs"][0]["data"][0] == "python"
        vectors = json.loads(mcprun("infer", "embed", "--input", "good morning", "--json", cwd=tmp_path).stdout)
        (embedding,) = vectors["outputs"]
        assert embedding["shape"] == [1, 384]
        assert sum(value * value for value in embedding["data"]) == pytest.approx(1, abs=1e-3)
    (tmp_path / ".mcprun" / "demo" / "models" / "resnet50" / "model.onnx").unlink()


def try_what_is_printed(mesh: Serving, expected: list[str]) -> None:
    """Runs the commands of the greeting; each must print what is expected of it."""
    while "Ctrl-C" not in mesh.until("note")["text"]:
        pass
    notes = [event["text"] for event in mesh.events if event["event"] == "note"]
    tries = [note.strip() for note in notes if note.startswith("  ")]
    assert [command.split()[0] for command in tries] == ["mcprun", "curl", "python"]
    environment = {**os.environ, "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}"}
    for command, wanted in zip(tries, expected, strict=True):
        done = subprocess.run(
            command, shell=True, cwd=mesh.folder, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        assert wanted in done.stdout, command


def test_the_commands_that_are_printed_work(workspace: Path) -> None:
    with serving(workspace) as mesh:
        mesh.until("ready")
        try_what_is_printed(mesh, ["black", "black", "black"])
