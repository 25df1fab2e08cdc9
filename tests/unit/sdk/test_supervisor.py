"""The supervisor, with stand-ins for the services."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mcprun.supervisor.events import Died, Logged, Ready, Stopped
from mcprun.supervisor.folders import RunFolders
from mcprun.supervisor.plan import Listening, ProcessPlan
from mcprun.supervisor.state import AlreadyRunning, RunLock, RunState
from mcprun.testing import Mesh, MeshFailed

STANDIN = Path(__file__).with_name("standin.py")
NAMES = ("kvcache", "batcher", "worker", "router", "edge")
Plans = Callable[[RunFolders, Listening], list[ProcessPlan]]


def standins(
    *, diary: Path | None = None, stop_seconds: float = 10.0, listen: bool = True, more: dict[str, list[str]] | None = None
) -> Plans:
    def plans(_: RunFolders, listening: Listening) -> list[ProcessPlan]:
        made = []
        for stage, name in enumerate(NAMES):
            command = [sys.executable, str(STANDIN), name, *(more or {}).get(name, [])]
            if diary is not None:
                command += ["--diary", str(diary)]
            if name == "edge" and listen:
                command += ["--http", str(listening.port)]
            made.append(ProcessPlan(name, tuple(command), stage, stop_seconds))
        return made

    return plans


def wait_serving(mesh: Mesh) -> None:
    """The edge answers before the others are through their start."""
    mesh.wait_until(lambda: all("serving" in mesh.logs(name) for name in NAMES), "every stand-in serving")


def test_processes_stop_from_the_edge_inwards(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with Mesh(tmp_path, plans=standins(diary=diary)) as mesh:
        wait_serving(mesh)
        pids = [mesh.pid(name) for name in NAMES]
        assert any(isinstance(event, Ready) for event in mesh.events)
    assert diary.read_text().split() == ["edge", "router", "worker", "batcher", "kvcache"]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not any(event.killed for event in mesh.events if isinstance(event, Stopped))


def test_a_killed_process_is_started_again_and_its_death_is_told(tmp_path: Path) -> None:
    with Mesh(tmp_path, plans=standins()) as mesh:
        wait_serving(mesh)
        first = mesh.pid("worker")
        mesh.kill("worker", signal.SIGKILL)
        mesh.wait_restarted("worker", restarts=0)
        assert mesh.pid("worker") != first
        (death,) = mesh.deaths
        assert (death.name, death.pid, death.how, death.last_line) == ("worker", first, "killed by SIGKILL", "serving")
        assert death.wait_seconds == pytest.approx(0.1)
        assert mesh.restarts("worker") == 1
        assert mesh.restarts("router") == 0


def test_a_process_that_ignores_sigterm_is_killed_after_its_bound(tmp_path: Path) -> None:
    with Mesh(tmp_path, plans=standins(stop_seconds=0.3, more={"batcher": ["--stubborn"]})) as mesh:
        wait_serving(mesh)
        pid = mesh.pid("batcher")
    assert not psutil.pid_exists(pid)
    assert [event.name for event in mesh.events if isinstance(event, Stopped) and event.killed] == ["batcher"]


def test_refused_settings_end_the_start_with_the_reason(tmp_path: Path) -> None:
    more = {"router": ["--exit", "2", "--say", "mcprun-router: port: a number is expected"]}
    with (
        pytest.raises(MeshFailed, match="router refuses its settings: mcprun-router: port: a number is expected"),
        Mesh(tmp_path, plans=standins(more=more, listen=False)),
    ):
        pass


def test_a_process_that_keeps_dying_ends_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(MeshFailed, match="worker ended with exit code 7 5 times before the mesh was ready"),
        Mesh(tmp_path, plans=standins(more={"worker": ["--exit", "7"]}, listen=False)),
    ):
        pass


def test_a_command_that_does_not_exist_ends_the_start(tmp_path: Path) -> None:
    def plans(_: RunFolders, __: Listening) -> list[ProcessPlan]:
        return [ProcessPlan("edge", ("/nowhere/mcprun-edge",), 0, 1.0)]

    with pytest.raises(MeshFailed, match="edge ended with exit code 1"), Mesh(tmp_path, plans=plans):
        pass


def test_warnings_are_told_and_everything_is_logged(tmp_path: Path) -> None:
    told: list[Logged] = []

    class Listener(Mesh):
        def tell(self, event: object) -> None:
            if isinstance(event, Logged):
                told.append(event)

    line = json.dumps({"level": "warning", "event": "the queue is full", "model": "m", "service_name": "mcprun-worker"})
    with Listener(tmp_path, plans=standins(more={"worker": ["--say", line]})) as mesh:
        wait_serving(mesh)
        assert mesh.logs("worker").splitlines() == [line, '{"level": "info", "event": "serving"}']
    assert [(event.name, event.line.level, event.line.text) for event in told] == [("worker", "warning", "the queue is full (model=m)")]


def test_the_state_file_holds_what_runs_and_goes_with_it(tmp_path: Path) -> None:
    with Mesh(tmp_path, plans=standins()) as mesh:
        path = mesh.data_folder / "run.json"
        mesh.wait_until(lambda: (state := RunState.read(path)) is not None and state.ready, "the state file")
        state = RunState.read(path)
        assert state is not None
        assert [(process.name, process.state, process.pid) for process in state.processes] == [
            (name, "running", mesh.pid(name)) for name in NAMES
        ]
        assert state.url == mesh.http_url
    assert not path.exists()


def test_a_second_stop_kills_at_once(tmp_path: Path) -> None:
    with Mesh(tmp_path, plans=standins(stop_seconds=60, more={"edge": ["--stubborn"]})) as mesh:
        wait_serving(mesh)
        pids = [mesh.pid(name) for name in NAMES]
        mesh.request_stop()
        mesh.request_stop()
        mesh.stop()
        assert not any(psutil.pid_exists(pid) for pid in pids)


_ORPHANAGE = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_supervisor import NAMES, standins
from mcprun.testing import Mesh
with Mesh(Path({folder!r}), plans=standins()) as mesh:
    print(*[mesh.pid(name) for name in NAMES], flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_children_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    script = _ORPHANAGE.format(tests=str(STANDIN.parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        children = [psutil.Process(int(pid)) for pid in supervisor.stdout.readline().split()]
        assert len(children) == len(NAMES)
        supervisor.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_one_mesh_a_workspace(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path / "run.lock"), RunLock(tmp_path / "run.lock")
    assert not first.held
    first.acquire()
    assert second.held
    with pytest.raises(AlreadyRunning, match=f"its supervisor is pid {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    assert not first.held


def test_an_unreadable_state_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert RunState.read(path) is None
    for text in ("", "{", "[]", "{}", '{"pid": 1, "processes": [{"nam": 1}]}'):
        path.write_text(text)
        assert RunState.read(path) is None


def test_deaths_before_ready_are_told_too(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, plans=standins(more={"kvcache": ["--exit", "3"]}, listen=False))
    with pytest.raises(MeshFailed), mesh:
        pass
    assert any(isinstance(event, Died) and event.how.endswith("exit code 3") for event in mesh.events)
