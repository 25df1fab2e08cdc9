"""How policies and modules reach Envoy: whole files, what Envoy makes of them, and what stays when it refuses them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mcprun_edge.delivery
from mcprun.edge.delivery import STATE_FILE, DeliveryState, Wanted
from mcprun_edge.configuration import FILTER_FILES
from mcprun_edge.delivery import Delivery, NotDelivered
from mcprun_edge.settings import EdgeSettings

MODULE = b"\0asm\x01\0\0\0"
PREFIX = "extension_config_discovery.http_filter.edge."


class Envoy:
    """Envoy's side: it reads the watched file whenever it is asked for its counts, and takes it or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = ""
        self.read = ""
        self.rejected = 0
        self.refuses: Callable[[str, bytes], bool] = lambda policy, module: False
        self.hiccups = 0
        """How many times more it does not answer."""

    async def stats(self, pattern: str) -> Mapping[str, str]:
        if self.hiccups:
            self.hiccups -= 1
            raise OSError("no admin interface")
        told = json.loads((self.folder / FILTER_FILES["edge"]).read_bytes())
        if told["version_info"] != self.read:
            self.read = told["version_info"]
            policy, module = content(self.folder)
            if self.refuses(json.dumps(policy), module.read_bytes()):
                self.rejected += 1
            else:
                self.version = self.read
        return {f"{PREFIX}version_text": f'"{self.version}"', f"{PREFIX}update_rejected": str(self.rejected)}


def content(folder: Path, listener: str = "edge") -> tuple[dict[str, Any], Path]:
    """The policy and the module in the file for Envoy."""
    told = json.loads((folder / FILTER_FILES[listener]).read_bytes())
    (resource,) = told["resources"]
    config = resource["typed_config"]["config"]
    return json.loads(config["configuration"]["value"])["policy"], Path(config["vm_config"]["code"]["local"]["filename"])


class Edge:
    """The files of one edge."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "edge" / "filter"
        self.policy = root / "policy.yaml"
        self.policy.write_text("breaker: {probes: 1}\n")
        self.module = root / "module.wasm"
        self.module.write_bytes(MODULE + b"first")
        self.wanted = Wanted(self.folder)
        self.envoy = Envoy(self.folder)

    def settings(self) -> EdgeSettings:
        return EdgeSettings(policy=self.policy, filter_module=self.module, environment="prod")

    def state(self) -> DeliveryState:
        state = DeliveryState.read(self.folder)
        assert state is not None
        return state

    def probes(self) -> Any:
        return content(self.folder)[0]["breaker"].get("probes")

    def replace(self, path: Path, written: str | bytes) -> None:
        other = path.with_name("other")
        other.write_bytes(written.encode() if isinstance(written, str) else written)
        other.replace(path)

    def ask(self, policy: str | None = None, module: bytes | None = None) -> str:
        sources: dict[str, Path | None] = {"policy": None, "module": None}
        for name, given in (("policy", policy), ("module", module)):
            if given is not None:
                sources[name] = self.folder.parent / f"new-{name}"
                sources[name].write_bytes(given.encode() if isinstance(given, str) else given)  # type: ignore[union-attr]
        return self.wanted.ask(policy=sources["policy"], module=sources["module"])

    async def answer(self, request: str) -> DeliveryState:
        """What came of a request."""
        await until(lambda: self.state().request == request)
        return self.state()


async def until(found: Callable[[], Any]) -> Any:
    async with asyncio.timeout(30):
        while not (value := found()):
            await asyncio.sleep(0.01)
    return value


@asynccontextmanager
async def running(edge: Edge, *, admin: bool = True) -> AsyncIterator[Delivery]:
    """The delivery of an edge process, up to its end."""
    delivery = Delivery(edge.settings(), edge.folder)
    delivery.prepare()
    await delivery.confirm(edge.envoy if admin else None)
    watching = asyncio.create_task(delivery.watch())
    try:
        yield delivery
        assert not watching.done()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edge:
    monkeypatch.setattr(mcprun_edge.delivery, "_POLL_SECONDS", 0.01)
    return Edge(tmp_path)


async def test_both_listeners_are_given_the_same_policy_and_module_and_a_part_of_their_own(edge: Edge) -> None:
    async with running(edge):
        assert edge.state().outcome == "applied"
        assert content(edge.folder, "edge") == content(edge.folder, "edge-status")
        roles = {}
        for listener, file in FILTER_FILES.items():
            (resource,) = json.loads((edge.folder / file).read_bytes())["resources"]
            assert resource["name"] == listener
            roles[listener] = json.loads(resource["typed_config"]["config"]["configuration"]["value"])["role"]
        assert roles == {"edge": "guard", "edge-status": "status"}
        policy, _ = content(edge.folder)
        assert policy["environment"] == "prod"
        assert policy["nodes"] == [{"name": "router", "addresses": ["127.0.0.1:8000", "127.0.0.1:8001"]}]
        assert edge.probes() == 1


@pytest.mark.parametrize("admin", [True, False], ids=["with an admin interface", "without"])
async def test_a_file_that_changes_is_delivered(edge: Edge, admin: bool) -> None:
    async with running(edge, admin=admin):
        edge.replace(edge.policy, "breaker: {probes: 2}\n")
        await until(lambda: edge.probes() == 2 and edge.state().outcome == "applied")
        before = edge.state()
        edge.replace(edge.module, MODULE + b"second")
        await until(lambda: edge.state().module != before.module)
        assert content(edge.folder)[1].read_bytes() == MODULE + b"second"
        assert edge.state().policy == before.policy


async def test_what_envoy_reads_is_replaced_in_one_step(edge: Edge) -> None:
    async with running(edge):
        for name in (*FILTER_FILES.values(), STATE_FILE):
            path = edge.folder / name
            with path.open("rb") as opened:
                before, inode = path.read_bytes(), path.stat().st_ino
                await edge.answer(edge.ask(f"max_fleets: {100 + len(name)}\n"))
                assert path.stat().st_ino != inode
                assert path.read_bytes() != before
                # Who has begun to read it ends with what it was.
                assert opened.read() == before
        assert not [path for path in edge.folder.iterdir() if path.name.startswith(".")]


async def test_a_module_is_copied_under_a_name_that_tells_its_content(edge: Edge) -> None:
    async with running(edge):
        _, module = content(edge.folder)
        assert module.parent == edge.folder
        assert module.stem == edge.state().module
        # In place, as a compiler writes: what Envoy was given does not change under it.
        edge.module.write_bytes(MODULE + b"later")
        await until(lambda: edge.state().module != module.stem)
        assert module.read_bytes() == MODULE + b"first"


async def test_copies_that_nobody_needs_are_removed_once_no_envoy_can_be_loading_them(edge: Edge) -> None:
    async with running(edge):
        _, first = content(edge.folder)
        await edge.answer(edge.ask(module=MODULE + b"second"))
        assert first.exists()
        os.utime(first, (0, 0))
        await edge.answer(edge.ask(policy="max_fleets: 7"))
        assert not first.exists()
        assert content(edge.folder)[1].exists()


@pytest.mark.parametrize(
    ("policy", "module", "reason"),
    [
        ("breaker: {probes: 99}", None, "breaker.probes: expected at most 16, got 99"),
        ("breaker: [", None, "expected YAML"),
        (None, b"no module", "is no WebAssembly module: expected a core module, got b'no modul'"),
        ("max_fleets: 666", None, "Envoy refuses it: its log says why"),
        (None, MODULE + b"bad", "Envoy refuses it: its log says why"),
    ],
)
async def test_what_cannot_be_had_is_told_and_what_ran_goes_on(edge: Edge, policy: str | None, module: bytes | None, reason: str) -> None:
    edge.envoy.refuses = lambda policy, module: b"bad" in module or "666" in policy
    async with running(edge):
        await edge.answer(edge.ask("breaker: {probes: 5}"))
        ran = edge.envoy.version
        before = {name: (edge.folder / name).read_bytes() for name in FILTER_FILES.values()}
        for old in edge.folder.glob("*.wasm"):
            os.utime(old, (0, 0))
        state = await edge.answer(edge.ask(policy, module))
        assert state.outcome == "rejected"
        assert reason in state.reason
        assert edge.envoy.version == ran
        assert {name: (edge.folder / name).read_bytes() for name in FILTER_FILES.values()} == before
        # Also after a minute: the module that runs is there for an Envoy that reads the file anew.
        assert content(edge.folder)[1].exists()
        # The next change begins with what ran, and not with what was refused.
        state = await edge.answer(edge.ask(module=MODULE + b"good"))
        assert (state.outcome, edge.probes()) == ("applied", 5)


async def test_what_was_applied_outlives_the_edge_and_what_was_refused_does_not(edge: Edge) -> None:
    edge.envoy.refuses = lambda policy, module: "666" in policy
    async with running(edge):
        await edge.answer(edge.ask("breaker: {probes: 5}"))
        assert (await edge.answer(edge.ask("max_fleets: 666"))).outcome == "rejected"
    edge.envoy = Envoy(edge.folder)
    async with running(edge):
        assert edge.probes() == 5
        assert edge.state().outcome == "applied"
        await edge.answer(edge.wanted.take_back())
        assert edge.probes() == 1
    async with running(edge):
        assert edge.probes() == 1


async def test_a_request_that_came_while_no_edge_ran_is_not_told_to_be_applied(edge: Edge) -> None:
    async with running(edge):
        pass
    request = edge.ask("breaker: {probes: 5}")
    async with running(edge):
        assert edge.probes() == 1
        state = await edge.answer(request)
        assert (state.outcome, state.reason) == ("rejected", "the edge was started anew before it took it; apply it again")
        assert (await edge.answer(edge.ask("breaker: {probes: 5}"))).outcome == "applied"
    # What was answered once is not answered anew.
    async with running(edge):
        assert edge.state().outcome == "applied"


async def test_at_the_start_there_is_nothing_to_go_back_to(edge: Edge) -> None:
    edge.envoy.refuses = lambda policy, module: True
    with pytest.raises(NotDelivered, match=rf"Envoy refuses the edge filter {edge.module}: its log says why"):
        async with running(edge):
            pass
    edge.replace(edge.policy, "breaker: {probes: 0}")
    with pytest.raises(NotDelivered, match=r"breaker\.probes: expected at least 1, got 0"):
        Delivery(edge.settings(), edge.folder).prepare()
    edge.policy.unlink()
    with pytest.raises(NotDelivered, match="expected a file that can be read, got no such file"):
        Delivery(edge.settings(), edge.folder).prepare()
    edge.replace(edge.policy, "")
    edge.module.unlink()
    with pytest.raises(NotDelivered, match="cannot be read: no such file or directory"):
        Delivery(edge.settings(), edge.folder).prepare()


async def test_an_envoy_that_starts_slowly_is_waited_for(edge: Edge) -> None:
    edge.envoy.hiccups = 3
    async with running(edge):
        assert edge.state().outcome == "applied"


async def test_an_envoy_that_says_nothing_is_waited_for_and_then_given_up(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcprun_edge.delivery, "_LOAD_SECONDS", 0.2)
    async with running(edge):
        stats: Callable[[str], Awaitable[Mapping[str, str]]] = edge.envoy.stats

        async def never_that_one(pattern: str) -> Mapping[str, str]:
            answer = dict(await stats(pattern))
            return {**answer, f"{PREFIX}version_text": '"another"'}

        monkeypatch.setattr(edge.envoy, "stats", never_that_one)
        state = await edge.answer(edge.ask("breaker: {probes: 5}"))
        assert (state.outcome, state.reason) == ("rejected", "Envoy did not take it within 0.2 s")
        assert edge.probes() == 1


async def test_a_folder_that_cannot_be_written_stops_no_edge(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    quiet = SimpleNamespace(error=lambda event, **values: told.append(event), info=lambda event, **values: None)
    monkeypatch.setattr(mcprun_edge.delivery, "_log", quiet)
    async with running(edge):
        target = edge.folder / FILTER_FILES["edge"]
        target.unlink()
        target.mkdir()
        (target / "in-the-way").touch()
        edge.ask("breaker: {probes: 5}")
        await until(lambda: told == ["the edge filter is not changed", "nobody can be told of it"])
        (target / "in-the-way").unlink()
        target.rmdir()
        state = await edge.answer(edge.ask("breaker: {probes: 6}"))
        assert (state.outcome, edge.probes()) == ("applied", 6)


@pytest.mark.parametrize("written", ["", "{", "[]", "5", "null", '"request"', '{"request": 5}', '{"reason": null}', "\xff"])
def test_a_state_of_another_version_is_none(tmp_path: Path, written: str) -> None:
    (tmp_path / STATE_FILE).write_bytes(written.encode("latin-1"))
    assert DeliveryState.read(tmp_path) is None


def test_a_state_with_more_and_with_less_is_read(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text(json.dumps({"request": "r", "outcome": "applied", "at_seconds": 5, "later": [1]}))
    assert DeliveryState.read(tmp_path) == DeliveryState(request="r", outcome="applied", at_seconds=5)
