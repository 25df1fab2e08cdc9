"""The configuration is the same for the same settings, and Envoy takes what every setting makes of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from mcprun_edge.configuration import FILTER_FILES, render
from mcprun_edge.envoy import find_binary
from mcprun_edge.settings import EdgeSettings

_SCRIPT = Path(sys.executable).with_name("mcprun-edge")


def test_the_same_settings_render_the_same_bytes() -> None:
    assert render(EdgeSettings(listen_port=9000)) == render(EdgeSettings(listen_port=9000))


def test_print_config_prints_what_envoy_would_be_given() -> None:
    printed = subprocess.run([_SCRIPT, "--print-config", "--listen-port", "9000"], capture_output=True, text=True, check=True)
    assert printed.stdout == render(EdgeSettings(listen_port=9000))
    assert printed.stderr == ""


@pytest.mark.parametrize(
    "settings",
    [
        EdgeSettings(),
        EdgeSettings(router_http='unix:/run/a b/"http".sock', router_grpc="unix:/run/grpc.sock", admin_address="unix:/run/admin.sock"),
        EdgeSettings(listen_host="::", router_http="router.mesh:8000", router_grpc="[::1]:8001", admin_address=""),
        EdgeSettings(router_http="127.0.0.1:1, 127.0.0.1:2", router_grpc="127.0.0.1:3,[::1]:4", status_address="unix:/run/status.sock"),
        EdgeSettings(wasm=False),
        EdgeSettings(access_log=True, max_requests=1, stream_idle_seconds=0.25, header_seconds=0.5),
    ],
    ids=["default", "sockets", "names", "replicas", "no filter", "access log"],
)
def test_envoy_takes_it(settings: EdgeSettings, tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    for name in FILTER_FILES.values():
        (tmp_path / name).write_text('{"version_info": "0", "resources": []}')
    path.write_text(render(settings, filter_folder=tmp_path))
    done = subprocess.run(
        [find_binary(None), "--mode", "validate", "-c", path, "--log-level", "warning"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("--listen-host", "localhost", "listen_host"),
        ("--listen-port", "0", "listen_port"),
        ("--router-http", "router", "HOST:PORT"),
        ("--router-grpc", "router:99999", "HOST:PORT"),
        ("--admin-address", "localhost:9901", "IP address"),
        ("--router-idle-seconds", "75", "router_idle_seconds"),
        ("--router-http", "127.0.0.1:1,127.0.0.1:2", "router_http and router_grpc must name the same replicas, got 2 and 1 addresses"),
        ("--router-http", "127.0.0.1:1,router:2", "either all of the addresses must hold names or none"),
        ("--router-http", "127.0.0.1:1,127.0.0.1:1", "an address stands twice"),
        ("--status-address", "localhost:1", "IP address"),
    ],
)
def test_a_bad_value_stops_the_start_and_is_named(argument: str, value: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        EdgeSettings.load([argument, value])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
