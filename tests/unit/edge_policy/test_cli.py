"""`mcprun edge`, as a script sees it: output, exit codes, one clear line for what is wrong."""

import http.server
import json
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mcprun.cli.edge
from mcprun.cli import main
from mcprun.edge.delivery import STATE_FILE, DeliveryState, Wanted, outcome
from mcprun.supervisor.folders import RunFolders, run_folders
from mcprun.supervisor.state import RunLock, RunState

MODULE = b"\0asm\x01\0\0\0"
NOW = 1_790_000_000.0
NODE = {
    "node": "router-1",
    "state": "open",
    "since_seconds": NOW - 10,
    "reason": "6 failures in a row",
    "until_seconds": NOW + 20,
    "isolations": 1,
    "requests": 40,
    "failures": 6,
    "consecutive_failures": 0,
    "probes": 0,
}
WELL = {**NODE, "node": "router-2", "state": "closed", "since_seconds": 0.0, "reason": "", "until_seconds": None, "failures": 0}
STATUS = {"environment": "prod", "fleets": [{"tenant": "default", "model": "m", "side": "v2-canary", "nodes": [NODE, WELL]}]}


class Ran:
    """What a command said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


Command = Callable[..., Ran]


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `mcprun edge` with arguments."""

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["mcprun", "edge", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def policy(workspace: Path) -> Path:
    path = workspace / "policy.yaml"
    path.write_text("environment: staging\nbreaker: {probes: 2}\n")
    return Path("policy.yaml")


class Mesh:
    """What a running mesh leaves in its workspace, and an edge that answers requests for a policy."""

    def __init__(self, workspace: Path) -> None:
        self.folders: RunFolders = run_folders(workspace / ".mcprun", {})
        self.folders.prepare()
        self.filter = self.folders.edge_runtime / "filter"
        RunState(pid=1, url="http://127.0.0.1:1", started_at=0, models="models").write(self.folders.state)

    def runs_a_filter(self) -> None:
        self.filter.mkdir()
        self.tell(DeliveryState(outcome="applied", policy="p" * 16, module="m" * 16))

    def tell(self, state: DeliveryState) -> None:
        values = {name: getattr(state, name) for name in DeliveryState.__slots__}
        (self.filter / "half").write_text(json.dumps(values))
        (self.filter / "half").replace(self.filter / STATE_FILE)

    @contextmanager
    def answering(self, **state: Any) -> Iterator[list[str]]:
        """Answers the next request with this state; gives the policies that it was asked for."""
        wanted = Wanted(self.filter)
        before = wanted.request()
        seen: list[str] = []
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                if wanted.request() != before:
                    seen.append(wanted.policy.read_text() if wanted.policy.exists() else "")
                    self.tell(DeliveryState(request=wanted.request(), **state))
                    return
                stop.wait(0.005)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()

    @contextmanager
    def telling(self, body: bytes, *, status: int = 200) -> Iterator[None]:
        """The status listener."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "caller"

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        path = self.folders.socket("edge-status").removeprefix("unix:")
        with socketserver.ThreadingUnixStreamServer(path, Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()
        Path(path).unlink()


@pytest.fixture
def mesh(workspace: Path) -> Iterator[Mesh]:
    made = Mesh(workspace)
    lock = RunLock(made.folders.lock)
    lock.acquire()
    try:
        yield made
    finally:
        lock.release()
        made.folders.remove_sockets()


# check


def test_a_good_policy_is_good(edge: Command, policy: Path) -> None:
    ran = edge("check", policy)
    assert (ran.code, ran.out, ran.err) == (0, "policy.yaml is good.\n", "")
    ran = edge("check", policy, "--json")
    assert (ran.code, json.loads(ran.out), ran.err) == (0, {"ok": True}, "")


def test_an_empty_policy_is_good(edge: Command, workspace: Path) -> None:
    (workspace / "empty.yaml").write_text("# all defaults\n")
    assert edge("check", "empty.yaml").code == 0


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("breaker: [", "bad.yaml:1:11: expected YAML, got "),
        ("- a\n", "bad.yaml:1:1: expected a mapping of fields, got a list"),
        ("\xff", "bad.yaml:1:1: expected UTF-8 text, got the byte 0xff"),
        ("braker: {}", "bad.yaml:1:1: braker: expected one of version, environment"),
        ("braker: {}", "got 'braker' (did you mean 'breaker'?)"),
        ("breaker:\n  isolation_secs: 3\n", "bad.yaml:2:3: breaker.isolation_secs: expected one of "),
        ("breaker:\n  isolation_secs: 3\n", "(did you mean 'isolation_seconds'?)"),
        ("canary:\n- {tag: a, prefix: /a, rewrit: /}\n", "bad.yaml:2:24: canary[0].rewrit: expected one of "),
        ("tenants: {a: {breakr: {}}}", "(did you mean 'breaker'?)"),
        ("breaker: {probes: 0}", "bad.yaml:1:11: breaker.probes: expected at least 1, got 0"),
        ("breaker: {probes: 1}\nbreaker: {probes: 2}\n", "bad.yaml:2:1: breaker: expected each field once, got 'breaker' again"),
    ],
)
def test_mistakes_are_told_by_line_and_field_with_what_was_meant(edge: Command, workspace: Path, written: str, line: str) -> None:
    (workspace / "bad.yaml").write_bytes(written.encode("latin-1"))
    ran = edge("check", "bad.yaml")
    assert (ran.code, ran.out) == (2, "")
    heading, told = ran.err.splitlines()
    assert heading == "mcprun: bad.yaml has mistakes:"
    assert line in told


def test_a_policy_that_is_not_there_is_told(edge: Command, workspace: Path) -> None:
    ran = edge("check", "missing.yaml")
    assert ran.code == 2
    assert ran.err.endswith("missing.yaml:1:1: expected a file that can be read, got no such file or directory\n")


def test_check_needs_something_to_check(edge: Command, workspace: Path) -> None:
    ran = edge("check")
    assert (ran.code, ran.err) == (2, "mcprun: nothing to check: name a policy, or a module with --module\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"#!/bin/sh\n", "expected a WebAssembly core module, got a file that begins with b'#!/bin/s'"),
        (b"\0asm\x0d\0\x01\0", "expected a WebAssembly core module"),
        (b"", "got a file that begins with b''"),
        (None, "no such file or directory"),
    ],
    ids=["text", "component", "empty", "missing"],
)
def test_what_is_no_module_is_told(edge: Command, workspace: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (workspace / "filter.wasm").write_bytes(content)
    ran = edge("check", "--module", "filter.wasm")
    assert ran.code == 2
    (line,) = ran.err.splitlines()
    assert line.startswith("mcprun: filter.wasm: ")
    assert said in line


# apply


def test_a_policy_is_applied_to_the_mesh_that_runs_here(edge: Command, policy: Path, mesh: Mesh) -> None:
    mesh.runs_a_filter()
    with mesh.answering(outcome="applied", policy="1" * 16, module="2" * 16) as seen:
        ran = edge("apply", policy)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Applied: policy 1111111111111111, module 2222222222222222.")
    assert seen == [policy.read_text()]
    with mesh.answering(outcome="applied", policy="3" * 16) as seen:
        ran = edge("apply", "--reset", "--json")
    assert (ran.code, json.loads(ran.out)["policy"]) == (0, "3" * 16)
    assert seen == [""]


def test_what_the_edge_refuses_is_told_and_fails(edge: Command, policy: Path, mesh: Mesh) -> None:
    mesh.runs_a_filter()
    with mesh.answering(outcome="rejected", reason="Envoy refuses it: its log says why"):
        ran = edge("apply", policy)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "mcprun: the edge keeps what it had: Envoy refuses it: its log says why\n"
    with mesh.answering(outcome="rejected", reason="no"):
        ran = edge("apply", policy, "--json")
    assert (ran.code, json.loads(ran.out)["outcome"]) == (1, "rejected")


def test_a_policy_with_mistakes_never_reaches_the_edge(edge: Command, mesh: Mesh, workspace: Path) -> None:
    mesh.runs_a_filter()
    (workspace / "bad.yaml").write_text("breaker: {probes: 0}")
    assert edge("apply", "bad.yaml").code == 2
    assert Wanted(mesh.filter).request() == ""


def test_without_a_mesh_there_is_nothing_to_apply_to(edge: Command, policy: Path, workspace: Path) -> None:
    for command in (("apply", policy), ("status",)):
        ran = edge(*command)
        assert (ran.code, ran.out) == (3, "")
        assert ran.err == f"mcprun: no mesh runs in {workspace}\n"


def test_a_mesh_that_was_killed_does_not_run(edge: Command, policy: Path, workspace: Path) -> None:
    """Its files are there, its lock is free."""
    Mesh(workspace).runs_a_filter()
    ran = edge("apply", policy)
    assert (ran.code, ran.err) == (3, f"mcprun: no mesh runs in {workspace}\n")


def test_a_mesh_without_the_filter_says_so(edge: Command, policy: Path, mesh: Mesh) -> None:
    ran = edge("apply", policy)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"mcprun: no edge filter runs out of {mesh.filter}: was the mesh started with --no-wasm?\n"


def test_an_edge_that_says_nothing_is_unreachable(edge: Command, policy: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.runs_a_filter()
    monkeypatch.setattr(mcprun.cli.edge, "outcome", lambda folder, request, *, timeout: outcome(folder, request, timeout=timeout / 900))
    ran = edge("apply", policy)
    assert ran.code == 3
    assert ran.err == f"mcprun: the edge said nothing for 0.1 s; what is wanted stays in {mesh.filter}\n"


@pytest.mark.parametrize("arguments", [(), ("--reset", "policy.yaml"), ("--reset", "--module", "filter.wasm")])
def test_apply_is_told_one_thing(edge: Command, policy: Path, arguments: tuple[str, ...]) -> None:
    ran = edge("apply", *arguments)
    assert (ran.code, ran.err) == (2, "mcprun: name a policy, a module with --module, or --reset alone\n")


@pytest.mark.parametrize("written", ["[]", "5", '{"request": 5}', "{"])
def test_an_edge_of_another_version_whose_state_cannot_be_read_is_told(edge: Command, policy: Path, mesh: Mesh, written: str) -> None:
    mesh.runs_a_filter()
    (mesh.filter / STATE_FILE).write_text(written)
    ran = edge("apply", policy)
    assert ran.code == 1
    assert ran.err.startswith("mcprun: no edge filter runs out of ")


def test_an_edge_that_runs_by_itself_is_named_by_its_folder(edge: Command, policy: Path, mesh: Mesh, workspace: Path) -> None:
    mesh.runs_a_filter()
    RunLock(mesh.folders.lock).release()
    elsewhere = workspace / "elsewhere"
    elsewhere.mkdir()
    with mesh.answering(outcome="applied"):
        assert edge("apply", policy, "--folder", elsewhere, "--filter-folder", mesh.filter).code == 0


# status


def test_every_breaker_is_shown(edge: Command, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.runs_a_filter()
    monkeypatch.setattr(time, "time", lambda: NOW)
    with mesh.telling(json.dumps(STATUS).encode()):
        ran = edge("status")
        as_json = edge("status", "--json")
    assert (ran.code, ran.err) == (0, "")
    heading, _, titles, first, second = ran.out.splitlines()
    assert heading == f"environment prod, policy {'p' * 16}, module {'m' * 16}"
    assert titles.split()[:6] == ["tenant", "model", "side", "node", "state", "for"]
    assert first.split() == [
        "default",
        "m",
        "v2-canary",
        "router-1",
        "open",
        "10",
        "s",
        "20",
        "s",
        "6",
        "of",
        "40",
        "0",
        "0",
        "6",
        "failures",
        "in",
        "a",
        "row",
    ]
    assert " ".join(second.split()) == "default m v2-canary router-2 closed 0 of 40 0 0"
    told = json.loads(as_json.out)
    assert told["fleets"] == STATUS["fleets"]
    assert told["delivery"]["outcome"] == "applied"


def test_before_any_request_there_is_nothing_to_show(edge: Command, mesh: Mesh) -> None:
    with mesh.telling(b'{"environment": "dev", "fleets": []}'):
        ran = edge("status")
    assert (ran.code, ran.out) == (0, "environment dev\nNo requests yet.\n")


def test_a_refused_change_is_shown(edge: Command, mesh: Mesh) -> None:
    mesh.runs_a_filter()
    mesh.tell(DeliveryState(outcome="rejected", reason="Envoy refuses it"))
    with mesh.telling(json.dumps(STATUS).encode()):
        assert "what was asked for last is not what runs: Envoy refuses it" in edge("status").out


def test_a_filter_of_another_version_that_tells_more_is_understood(edge: Command, mesh: Mesh) -> None:
    later = {**STATUS, "colour": "blue", "fleets": [{**STATUS["fleets"][0], "nodes": [{**NODE, "weight": 3}]}]}  # type: ignore[dict-item]
    with mesh.telling(json.dumps(later).encode()):
        assert edge("status").code == 0


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{}", 200, "answers what is no status of this version: environment: Field required"),
        (b"<html>", 200, "answers what is no status of this version: Invalid JSON"),
        (b"", 200, "answers what is no status of this version: Invalid JSON"),
        (b'{"environment": "dev", "fleets": [{"tenant": "a", "model": "m", "side": "", "nodes": [{}]}]}', 200, "fleets.0.nodes.0.node"),
        (
            json.dumps(STATUS).replace("open", "ajar").encode(),
            200,
            "fleets.0.nodes.0.state: Input should be ",
        ),
        (b"no \xff", 500, "answers with HTTP status 500: no "),
        (b"", 404, "answers with HTTP status 404"),
    ],
)
def test_what_another_version_tells_and_this_one_cannot_understand_is_told(
    edge: Command, mesh: Mesh, body: bytes, status: int, said: str
) -> None:
    with mesh.telling(body, status=status):
        ran = edge("status")
    assert (ran.code, ran.out) == (3, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"mcprun: {mesh.folders.socket('edge-status')} ")
    assert said in line


def test_a_run_of_another_version_is_none(edge: Command, mesh: Mesh, workspace: Path) -> None:
    mesh.folders.state.write_text('{"pid": 1, "address": "somewhere"}')
    ran = edge("status")
    assert (ran.code, ran.err) == (3, f"mcprun: no mesh runs in {workspace}\n")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense:port", "unix:", "unix:/nowhere/status.sock", "unix:/" + "a" * 200])
def test_an_address_at_which_nothing_answers_is_told(edge: Command, workspace: Path, address: str) -> None:
    ran = edge("status", "--address", address)
    assert (ran.code, ran.out) == (3, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"mcprun: nothing answers at {address}: ")


def test_a_mesh_whose_filter_does_not_answer_is_told_with_the_likely_reason(edge: Command, mesh: Mesh) -> None:
    ran = edge("status")
    line, hint = ran.err.splitlines()
    assert (ran.code, hint) == (3, "Was the mesh started with --no-wasm?")
    assert line.startswith(f"mcprun: nothing answers at {mesh.folders.socket('edge-status')}: ")
