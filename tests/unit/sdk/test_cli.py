"""The command line, as a script sees it: output, exit codes, no tracebacks."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mcprun.cli.failure import CommandFailed
from mcprun.cli.infer import Given, read_input, request
from mcprun.cli.output import duration, size
from mcprun.cli.tensors import rows, tensor
from mcprun.model.config import load_model_config
from mcprun.supervisor.ports import free_port
from mcprun.workspace import load_workspace

SCRIPT = Path(sys.executable).with_name("mcprun")


def mcprun(*arguments: str, cwd: Path | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MCPRUN_")}
    done = subprocess.run([str(SCRIPT), *arguments], cwd=cwd, input=stdin, capture_output=True, timeout=60, env=environment, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


class Stub(http.server.BaseHTTPRequestHandler):
    """A mesh of one model, `double`, whose answers are its requests."""

    seen: ClassVar[list[tuple[str, str, dict[str, str], bytes]]] = []

    def _answer(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self._handle(b"")

    def do_POST(self) -> None:
        self._handle(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _handle(self, body: bytes) -> None:
        self.seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        match self.path:
            case "/v2/health/ready":
                self._answer(200, {})
            case "/v2/repository/index":
                self._answer(200, [{"name": "double", "version": "1", "state": "READY", "reason": ""}])
            case "/v2/models/image":
                self._answer(200, {"name": "image", "inputs": [{"name": "data", "datatype": "BYTES", "shape": [-1]}]})
            case "/v2/models/double":
                self._answer(200, {"name": "double", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]})
            case "/v2/models/double/infer":
                outputs = [
                    {"name": "labels", "datatype": "BYTES", "shape": [1, 2], "data": ["[red]", "blue"]},
                    {"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [0.75, 0.25]},
                    {"name": "y", "datatype": "INT64", "shape": [20], "data": list(range(20))},
                ]
                self._answer(200, {"model_name": "double", "model_version": "1", "outputs": outputs})
            case "/v2/models/image/infer" | "/v2/repository/models/double/load":
                self._answer(200, {"model_name": "image", "model_version": "1", "outputs": []})
            case _:
                self._answer(404, {"error": f"nothing at {self.path}"})

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Stub.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_init_makes_a_workspace_that_loads(tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    done = mcprun("init", str(folder), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["files"][-1] == "mcprun.yaml"
    assert load_workspace(folder / "mcprun.yaml").version == "2026.3.1"
    config = load_model_config(folder / "models" / "colors" / "model.yaml")
    assert len(config.class_labels(folder / "models" / "colors")) == 12
    again = mcprun("init", str(folder))
    assert again.returncode == 1
    assert b"exists already; nothing was changed" in again.stderr


def test_init_keeps_files_of_the_user(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    assert mcprun("init", "--version", "2027.1.0", cwd=tmp_path).returncode == 0
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
    assert load_workspace(tmp_path / "mcprun.yaml").version == "2027.1.0"


def test_init_refuses_what_is_no_version(tmp_path: Path) -> None:
    assert mcprun("init", str(tmp_path), "--version", "latest").returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("infer", "m", "--input", "[1]"), ("models", "list"), ("models", "load", "m"), ("models", "unload", "m"), ("status",)]
)
def test_an_unreachable_mesh_is_told(arguments: tuple[str, ...], tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = mcprun(*arguments, "--url", url, cwd=tmp_path)
    assert done.returncode == 3
    assert f"no mesh answers at {url}" in done.stderr.decode()


@pytest.mark.parametrize("url", ["http://", "nonsense://x", "http://[", "http://127.0.0.1:99999"])
def test_a_bad_url_is_told(url: str, tmp_path: Path) -> None:
    assert mcprun("models", "list", "--url", url, cwd=tmp_path).returncode in (2, 3)


def test_wrong_usage_ends_with_2(tmp_path: Path) -> None:
    assert mcprun("serve", "--port", "0").returncode == 2
    assert mcprun("nothing").returncode == 2
    assert mcprun("serve", str(tmp_path / "nowhere")).returncode == 2


def test_serve_tells_mistakes_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "mcprun.yaml").write_text("edge: {prt: 1}\nmodels: nowhere\nworkers: many\n")
    done = mcprun("serve", cwd=tmp_path)
    assert done.returncode == 2
    assert "mcprun.yaml:3:1: workers: expected a whole number, got 'many'" in done.stderr.decode()


def test_serve_tells_who_has_the_port(tmp_path: Path) -> None:
    assert mcprun("init", cwd=tmp_path).returncode == 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = mcprun("serve", "--port", str(port), cwd=tmp_path)
    assert done.returncode in (1, 4)
    if done.returncode == 4:
        assert f"port {port} is taken by" in done.stderr.decode()
        assert f"(pid {os.getpid()})" in done.stderr.decode()
        assert "--port N" in done.stderr.decode()


def test_infer_prints_ranks_and_other_outputs(url: str) -> None:
    done = mcprun("infer", "double", "--input", "[1, 2]", "--url", url)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "[red]" in text
    assert "0.75" in text
    assert "20 in all" in text
    assert json.loads(Stub.seen[-1][3]) == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def test_infer_prints_json(url: str) -> None:
    done = mcprun("infer", "double", "--input", '{"x": [[1, 2], [3, 4]]}', "--routing", "v2-canary", "--json", "--url", url)
    assert json.loads(done.stdout)["outputs"][2]["data"] == list(range(20))
    assert Stub.seen[-1][2]["x-routing"] == "v2-canary"


def test_infer_sends_a_file_as_it_is(url: str, tmp_path: Path) -> None:
    content = bytes(range(256))
    (tmp_path / "a.jpg").write_bytes(content)
    assert mcprun("infer", "image", "--input", str(tmp_path / "a.jpg"), "--url", url).returncode == 0
    assert mcprun("infer", "image", "--input", "-", "--url", url, stdin=content).returncode == 0
    for *_, headers, body in [seen for seen in Stub.seen if seen[1].endswith("infer")]:
        size = int(headers["inference-header-content-length"])
        assert json.loads(body[:size])["inputs"][0]["shape"] == [1]
        assert body[size:] == (256).to_bytes(4, "little") + content


def test_infer_tells_what_the_mesh_says(url: str) -> None:
    done = mcprun("infer", "gone/away", "--input", "[1]", "--url", url)
    assert done.returncode == 1
    assert "nothing at /v2/models/gone%2Faway" in done.stderr.decode()


def test_models_and_status_speak_json(url: str, tmp_path: Path) -> None:
    assert json.loads(mcprun("models", "list", "--json", "--url", url).stdout)[0]["name"] == "double"
    assert json.loads(mcprun("models", "load", "double", "--json", "--url", url).stdout) == {"model": "double", "done": "loaded"}
    status = json.loads(mcprun("status", "--json", "--url", url, cwd=tmp_path).stdout)
    assert status["ready"]
    assert "processes" not in status


def test_doctor_speaks_json() -> None:
    done = mcprun("doctor", "--json", "--port", str(free_port()))
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["ok"] else 1)
    findings = {finding["what"]: finding for finding in told["findings"]}
    assert findings["Python"]["verdict"] == "ok"
    assert findings["mcprun"]["verdict"] == "ok"
    assert all(finding["remedy"] for finding in told["findings"] if finding["verdict"] == "missing")


def test_help_says_the_exit_codes() -> None:
    done = mcprun("--help")
    assert done.returncode == 0
    assert b"Exit codes" in done.stdout


def test_input_is_json_a_file_or_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "b.txt").write_text("[1]")
    assert read_input("[1, 2]") == Given(json=[1, 2])
    assert read_input(str(tmp_path / "a.json")) == Given(json={"x": 1})
    assert read_input(str(tmp_path / "b.txt")) == Given(content=b"[1]")
    assert read_input("good morning") == Given(content=b"good morning")
    assert read_input("a. b" * 200) == Given(content=b"a. b" * 200)
    for wrong in ("{", str(tmp_path), "gone.jpg", "./gone"):
        with pytest.raises(CommandFailed):
            read_input(wrong)


def test_json_becomes_tensors() -> None:
    spec = {"name": "x", "datatype": "INT32", "shape": [-1, 2]}
    assert tensor(spec, [[1, 2]])["shape"] == [1, 2]
    assert tensor(spec, [1, 2]) == {"name": "x", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}
    assert tensor({"name": "x", "datatype": "INT32", "shape": []}, 3)["shape"] == []
    assert tensor(spec, [])["data"] == []
    with pytest.raises(CommandFailed, match="ragged"):
        tensor(spec, [[1], [2, 3]])
    metadata = {"name": "m", "inputs": [spec, {"name": "y", "datatype": "BOOL", "shape": [1]}]}
    body, size = request(metadata, Given(json={"y": [True], "x": [[1, 2]]}))
    assert size is None
    assert [given["name"] for given in json.loads(body)["inputs"]] == ["y", "x"]
    for wrong in (Given(json=[1]), Given(json={"z": 1}), Given(content=b"x")):
        with pytest.raises(CommandFailed):
            request(metadata, wrong)


def test_outputs_by_row() -> None:
    assert rows({"shape": [2, 2], "data": [1, 2, 3, 4]}) == [[1, 2], [3, 4]]
    assert rows({"shape": [2], "data": [1, 2]}) == [[1, 2]]
    assert rows({"shape": [0, 3], "data": []}) == []
    assert rows({"shape": [], "data": [1]}) == [[1]]


def test_times_and_sizes_for_people() -> None:
    assert [duration(value) for value in (3, 90, 7200, 200_000)] == ["3 s", "2 min", "2 h", "2 d"]
    assert [size(value) for value in (10, 2048, 3 * 1024**2, 5 * 1024**4)] == ["10 B", "2.0 KiB", "3.0 MiB", "5120.0 GiB"]
