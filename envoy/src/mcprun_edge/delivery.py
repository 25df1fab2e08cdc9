"""Brings the edge filter's module and policy to Envoy, at the start and whenever either changes.

What is wanted stands in two files, which may be replaced at any time. What Envoy is to run stands in a third, which Envoy
watches; this module alone writes it. Envoy loads a new module beside the old one, moves over once it is up, and keeps the old
one when that fails.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from mcprun.document import ConfigError
from mcprun.edge.delivery import STATE_FILE, DeliveryState, Wanted
from mcprun.edge.policy import compiled, load_policy
from mcprun.runtime import logs
from mcprun_edge.configuration import FILTER_FILES, NODE_HEADER
from mcprun_edge.settings import EdgeSettings

_log = logs.get_logger(__name__)

_POLL_SECONDS = 0.2
_LOAD_SECONDS = 60.0
"""How long Envoy may take to load a module: some seconds on an idle machine."""
_DIGITS = 16
"""Hexadecimal digits of a digest in the name of a module's copy."""
_MAGIC = b"\0asm\x01\0\0\0"
_WASM = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"


class NotDelivered(Exception):
    """What is wanted cannot be had; the message says why."""


class Admin(Protocol):
    """What is asked of Envoy's admin interface."""

    async def stats(self, pattern: str) -> Mapping[str, str]:
        """Counters, gauges and text by name. Raises OSError when Envoy does not answer."""
        ...


@dataclass(frozen=True, slots=True)
class _Counts:
    version: str
    rejected: int


class Delivery:
    """The edge filter of one Envoy. `folder` is where the file for Envoy, copies of modules and the state are kept."""

    def __init__(self, settings: EdgeSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._admin: Admin | None = None
        self._wanted = Wanted(folder)
        self._seen: tuple[object, ...] = ()
        self._state = DeliveryState()
        self._good: dict[str, bytes] = {}
        self._good_module = ""
        self._unanswered = ""
        self._put_last: dict[str, bytes] = {}

    def prepare(self) -> None:
        """Writes the file for Envoy before it starts. Raises NotDelivered."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # What a process before this one was given and Envoy took counts until it is taken back. What it was asked for and did not
        # answer does not: who asked is told so.
        last = DeliveryState.read(self._folder)
        self._wanted.go_back()
        self._seen = self._stamp()
        if last is None or last.request != self._request:
            self._unanswered = self._request
        self._write(*self._load())

    async def confirm(self, admin: Admin | None) -> None:
        """Returns once Envoy runs what `prepare` wrote. Raises NotDelivered when Envoy refuses it.

        Without an admin interface nothing is known of what Envoy makes of a change, now or later.
        """
        self._admin = admin
        if self._admin is not None and not await self._taken(_Counts("", 0)):
            raise NotDelivered(
                f"Envoy refuses the edge filter {self._module_path()}: its log says why; without it the mesh runs with --no-wasm"
            )
        self._keep()
        if self._unanswered:
            self._tell("rejected", "the edge was started anew before it took it; apply it again")

    async def watch(self) -> None:
        """Delivers each change, for ever. What cannot be had is told, and what ran before goes on."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            stamp = self._stamp()
            if stamp == self._seen:
                continue
            self._seen = stamp
            try:
                await self._change()
            except (NotDelivered, OSError) as error:
                _log.error("the edge filter is not changed", reason=str(error))
                try:
                    self._go_back()
                    self._tell("rejected", str(error))
                except OSError as another:
                    # A full disk, say. Envoy goes on with what it has, and so does the edge.
                    _log.error("nobody can be told of it", reason=str(another))

    async def _change(self) -> None:
        policy, module = await asyncio.to_thread(self._load)
        before = await self._counts()
        self._write(policy, module)
        if before is not None and not await self._taken(before):
            raise NotDelivered("Envoy refuses it: its log says why")
        self._keep()
        _log.info("the edge filter is changed", policy=self._state.policy, module=self._state.module)

    def _load(self) -> tuple[dict[str, Any], Path]:
        self._state = DeliveryState(request=self._request)
        path = self._policy_path()
        try:
            policy = load_policy(path) if path is not None else None
        except ConfigError as error:
            raise NotDelivered("; ".join(map(str, error.problems))) from error
        return (
            compiled(policy, environment=self._settings.environment, nodes=self._nodes(), node_header=NODE_HEADER),
            self._module(),
        )

    @property
    def _request(self) -> str:
        """The request that is answered next: one that comes meanwhile is seen after it."""
        return str(self._seen[0]) if self._seen else ""

    def _nodes(self) -> dict[str, list[str]]:
        routers = self._settings.routers
        names = ["router"] if len(routers) == 1 else [f"router-{number}" for number in range(1, len(routers) + 1)]
        return {name: [_address(router.http), _address(router.grpc)] for name, router in zip(names, routers, strict=True)}

    def _policy_path(self) -> Path | None:
        return self._wanted.policy if self._wanted.policy.exists() else self._settings.policy

    def _module_path(self) -> Path:
        if self._wanted.module.exists():
            return self._wanted.module
        if self._settings.filter_module is not None:
            return self._settings.filter_module
        return packaged_module()

    def _module(self) -> Path:
        """A copy of the module whose name tells its content, so that what Envoy was given never changes under it."""
        source = self._module_path()
        try:
            content = source.read_bytes()
        except OSError as error:
            raise NotDelivered(f"the edge filter's module {source} cannot be read: {(error.strerror or '').lower()}") from error
        if not content.startswith(_MAGIC):
            raise NotDelivered(f"{source} is no WebAssembly module: expected a core module, got {content[:8]!r}")
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        copy = self._folder / f"{digest}.wasm"
        if not copy.exists():
            _replace(copy, content)
        return copy

    def _write(self, policy: Mapping[str, Any], module: Path) -> None:
        resources = {
            name: _resource(name, {"role": role, "reads_messages": True, "policy": policy}, module)
            for name, role in (("edge", "guard"), ("edge-status", "status"))
        }
        version = hashlib.sha256(json.dumps(resources).encode()).hexdigest()[:16]
        self._state = DeliveryState(
            request=self._state.request,
            policy=hashlib.sha256(json.dumps(policy, sort_keys=True).encode()).hexdigest()[:16],
            module=module.stem,
            version=version,
        )
        for old in self._folder.glob(f"{'[0-9a-f]' * _DIGITS}.wasm"):
            if old != module and old.stem != self._good_module and time.time() - old.stat().st_mtime > _LOAD_SECONDS:
                old.unlink(missing_ok=True)
        self._put({name: json.dumps({"version_info": version, "resources": [one]}).encode() for name, one in resources.items()})

    def _keep(self) -> None:
        """What Envoy was given is what it runs."""
        self._good = self._put_last
        self._good_module = self._state.module
        self._wanted.keep()
        self._tell("applied")

    def _go_back(self) -> None:
        """What Envoy was given last is not what it runs, and shall not be found by who comes next."""
        if self._put_last != self._good:
            self._put(self._good)
        self._wanted.go_back()

    def _put(self, contents: dict[str, bytes]) -> None:
        self._put_last = contents
        for name, content in contents.items():
            _replace(self._folder / FILTER_FILES[name], content)

    async def _taken(self, before: _Counts) -> bool:
        """Whether Envoy took what was written."""
        end = time.monotonic() + _LOAD_SECONDS
        while time.monotonic() < end:
            counts = await self._counts()
            # In this order: when Envoy reads once more what it refused, it says that it has it.
            if counts is not None and counts.rejected > before.rejected:
                return False
            if counts is not None and counts.version == self._state.version:
                return True
            await asyncio.sleep(0.05)
        raise NotDelivered(f"Envoy did not take it within {_LOAD_SECONDS:g} s")

    async def _counts(self) -> _Counts | None:
        if self._admin is None:
            return None
        prefix = "extension_config_discovery.http_filter.edge."
        try:
            stats = await self._admin.stats(f"^{prefix.replace('.', '[.]')}(version_text|update_rejected)$")
        except OSError:
            return None
        return _Counts(stats.get(f"{prefix}version_text", "").strip('"'), int(stats.get(f"{prefix}update_rejected", "0")))

    def _stamp(self) -> tuple[object, ...]:
        def of(path: Path | None) -> object:
            try:
                status = path.stat() if path is not None else None
            except OSError:
                return None
            return status and (status.st_mtime_ns, status.st_ino, status.st_size)

        # What is wanted counts once its request is there, which is written last.
        return self._wanted.request(), of(self._settings.policy), of(self._settings.filter_module or packaged_module())

    def _tell(self, outcome: Literal["applied", "rejected"], reason: str = "") -> None:
        values = {**asdict(self._state), "outcome": outcome, "reason": reason, "at_seconds": time.time()}
        _replace(self._folder / STATE_FILE, json.dumps(values, indent=2).encode())


def packaged_module() -> Path:
    """The module in the package mcprun-filter. It need not exist."""
    spec = find_spec("mcprun_filter")
    if spec is None or not spec.submodule_search_locations:
        raise NotDelivered("the package mcprun-filter is not installed; without it the mesh runs with --no-wasm")
    return Path(spec.submodule_search_locations[0]) / "filter.wasm"


def _resource(name: str, configuration: Mapping[str, Any], module: Path) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": name,
        "typed_config": {
            "@type": _WASM,
            "config": {
                "name": name,
                "root_id": name,
                # After a trap a new VM is made, with what all VMs share as it was.
                "failure_policy": "FAIL_RELOAD",
                "allow_on_headers_stop_iteration": True,
                "configuration": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": json.dumps(configuration)},
                # One id for every module: breakers outlive the module that opened them.
                "vm_config": {"vm_id": "mcprun-edge", "runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": str(module)}}},
            },
        },
    }


def _address(address: str) -> str:
    """An address as Envoy writes that of a host."""
    return address.removeprefix("unix:")


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
