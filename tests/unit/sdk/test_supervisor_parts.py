"""Backoff, logs, ports and folders."""

import os
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun.supervisor.backoff import Backoff
from mcprun.supervisor.child import how_it_ended
from mcprun.supervisor.folders import SOCKET_PATH_BYTES, run_folders
from mcprun.supervisor.logfile import LogFile, understand
from mcprun.supervisor.plan import SERVICES, Listening, plan
from mcprun.supervisor.ports import free_port, listening_port, obstacle
from mcprun.workspace import Workspace


def test_backoff_doubles_to_its_bound_and_starts_over_after_a_healthy_run() -> None:
    now = 100.0
    backoff = Backoff(lambda: now)
    waits = []
    for _ in range(9):
        backoff.started()
        now += 1
        waits.append(backoff.died())
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])
    backoff.started()
    now += 30
    assert backoff.died() == pytest.approx(0.1)
    assert backoff.deaths_in_a_row == 1


@given(st.lists(st.floats(0, 100), max_size=50))
def test_backoff_stays_within_its_bounds(lives: list[float]) -> None:
    now = 0.0
    backoff = Backoff(lambda: now)
    for life in lives:
        backoff.started()
        now += life
        assert 0.1 <= backoff.died() <= 10


def test_how_a_process_ended() -> None:
    assert how_it_ended(0) == "ended with exit code 0"
    assert how_it_ended(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert how_it_ended(-200) == "killed by signal 200"


def test_a_log_file_keeps_at_most_two_times_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = LogFile(path, max_bytes=100)
    for number in range(100):
        log.write(f"line {number:05}\n".encode())
    log.close()
    kept = sorted(tmp_path.iterdir())
    assert [file.name for file in kept] == ["x.log", "x.log.1"]
    assert all(file.stat().st_size <= 100 for file in kept)
    assert path.read_text().splitlines()[-1] == "line 00099"
    joined = (tmp_path / "x.log.1").read_text() + path.read_text()
    numbers = [int(line.split()[1]) for line in joined.splitlines()]
    assert numbers == list(range(numbers[0], 100))


def test_a_log_file_goes_on_where_an_earlier_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for _ in range(2):
        log = LogFile(path)
        log.write(b"once\n")
        log.close()
    assert path.read_text() == "once\nonce\n"


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ('{"level":"error","event":"broke","exception":"Traceback\\nValueError: no"}', "error", "broke (ValueError: no)"),
        ('{"level":"info","event":"hi","trace_id":"0","model":"m"}', "info", "hi (model=m)"),
        ("[2026-01-01 00:00:00.000][12][warning][main] [source/x.cc:3] slow down", "warning", "slow down"),
        ("[2026-01-01 00:00:00.000][12][critical][main] bad", "error", "bad"),
        ("{not json", "info", "{not json"),
        ("[1, 2]", "info", "[1, 2]"),
        ("plain", "info", "plain"),
    ],
)
def test_log_lines_in_short_form(line: str, level: str, text: str) -> None:
    understood = understand(line)
    assert (understood.level, understood.text) == (level, text)


@given(st.text())
def test_any_line_is_understood(line: str) -> None:
    assert understand(line).level in ("debug", "info", "warning", "error")
    assert understand("{" + line).level in ("debug", "info", "warning", "error")


def test_a_taken_port_is_told_with_its_owner() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        found = obstacle("127.0.0.1", port)
        assert found is not None
        assert found.startswith(f"port {port} is taken by ")
        assert f"(pid {os.getpid()})" in found
        assert listening_port(os.getpid()) is not None
    assert obstacle("127.0.0.1", port) is None


def test_a_foreign_address_is_told() -> None:
    assert "192.0.2.1" in (obstacle("192.0.2.1", free_port()) or "")
    assert "is no address" in (obstacle("no such host.invalid", 1) or "")


def test_sockets_have_short_paths(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ".mcprun"
    folders = run_folders(deep, {"XDG_RUNTIME_DIR": str(tmp_path / ("y" * 120))})
    assert len(folders.socket("worker-999").removeprefix("unix:")) <= SOCKET_PATH_BYTES
    folders.prepare()
    assert oct(folders.sockets.stat().st_mode)[-3:] == "700"
    assert folders.logs.is_dir()
    folders.remove_sockets()
    assert not folders.sockets.exists()


def test_two_workspaces_have_sockets_of_their_own(tmp_path: Path) -> None:
    one, two = run_folders(tmp_path / "a", {}), run_folders(tmp_path / "b", {})
    assert one.sockets != two.sockets
    assert run_folders(tmp_path / "a", {}) == one


def test_the_plan_has_every_process_with_the_addresses_of_its_peers(tmp_path: Path) -> None:
    folders = run_folders(tmp_path, {})
    scripts = {name: Path("/bin", f"mcprun-{name}") for name in SERVICES}
    plans = plan(scripts, folders=folders, listening=Listening("0.0.0.0", 9), models=tmp_path, workers=2)
    by_name = {process.name: process for process in plans}
    assert list(by_name) == ["kvcache", "batcher", "worker-1", "worker-2", "router", "edge"]
    assert [process.stage for process in plans] == [0, 1, 2, 2, 3, 4]

    def option(process: str, name: str) -> str:
        command = by_name[process].command
        return command[command.index(name) + 1]

    for process in ("worker-1", "worker-2", "router"):
        assert option(process, "--batcher-address") == option("batcher", "--grpc-address")
    assert option("worker-1", "--kvcache-address") == option("kvcache", "--grpc-address")
    assert option("worker-1", "--grpc-address") != option("worker-2", "--grpc-address")
    assert option("edge", "--router-http") == option("router", "--http-address")
    assert option("edge", "--router-grpc") == option("router", "--grpc-address")
    assert option("edge", "--listen-host") == "0.0.0.0"
    assert by_name["edge"].address == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("host", "target"), [("127.0.0.1", "127.0.0.1:80"), ("0.0.0.0", "127.0.0.1:80"), ("::", "[::1]:80"), ("example", "example:80")]
)
def test_a_client_of_this_machine_gets_an_address_it_can_use(host: str, target: str) -> None:
    assert Listening(host, 80).target == target


def test_services_get_the_shared_settings_and_their_own_sections(tmp_path: Path) -> None:
    workspace = Workspace.model_validate(
        {"edge": {"port": 9, "concurrency": 2}, "default_model": "m", "router": {"connect_seconds": 2}, "log_level": "error"}
    )
    values = workspace.services_config()
    assert values["edge"] == {"concurrency": 2}
    assert values["router"] == {"default_model": "m", "connect_seconds": 2}
    assert values["log_level"] == "error"
    workspace.write_services_config(tmp_path / "services.yaml")
    assert "connect_seconds: 2" in (tmp_path / "services.yaml").read_text()
