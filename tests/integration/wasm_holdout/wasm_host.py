"""A module in wasmtime, with as much of proxy-wasm's host as configuring it takes."""

import os
import struct
import time
from pathlib import Path
from typing import Any

import wasmtime

ROOT = 1
_OK, _NOT_FOUND = 0, 1
_BUFFER_CONFIGURATION = 7


class WasmHost:
    """One instance of a module. A trap ends a call with `wasmtime.Trap`."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.lines: list[str] = []
        self.configuration = b""
        self._store = wasmtime.Store(engine)
        functions = [wasmtime.Func(self._store, item.type, self._function(str(item.name))) for item in module.imports]  # type: ignore[arg-type]
        self._exports = wasmtime.Instance(self._store, module, functions).exports(self._store)
        self._memory: Any = self._exports["memory"]
        self.call("_initialize")
        self.call("proxy_on_context_create", ROOT, 0)

    def configure(self, configuration: bytes) -> bool:
        """Gives it a configuration; whether it took it."""
        self.configuration = configuration
        return bool(self.call("proxy_on_configure", ROOT, len(configuration)))

    def call(self, name: str, *arguments: int) -> Any:
        """Calls an export; nothing when there is none of that name."""
        function: Any = self._exports.get(name)
        return None if function is None else function(self._store, *arguments)

    @property
    def memory_bytes(self) -> int:
        """How large its memory is."""
        return int(self._memory.data_len(self._store))

    def _read(self, address: int, length: int) -> bytes:
        return bytes(self._memory.read(self._store, address, address + length))

    def _answer(self, content: bytes, pointer: int, length: int) -> int:
        address = self.call("malloc", max(1, len(content)))
        self._memory.write(self._store, content, address)
        self._memory.write(self._store, struct.pack("<I", address), pointer)
        self._memory.write(self._store, struct.pack("<I", len(content)), length)
        return _OK

    def _function(self, name: str) -> Any:
        return getattr(self, f"_{name}", lambda *_: _NOT_FOUND)

    def _proxy_log(self, level: int, address: int, length: int) -> int:
        self.lines.append(self._read(address, length).decode())
        return _OK

    def _proxy_get_log_level(self, pointer: int) -> int:
        self._memory.write(self._store, struct.pack("<I", 0), pointer)
        return _OK

    def _proxy_get_buffer_bytes(self, kind: int, start: int, size: int, pointer: int, length: int) -> int:
        return self._answer(self.configuration[start : start + size], pointer, length) if kind == _BUFFER_CONFIGURATION else _NOT_FOUND

    def _proxy_get_current_time_nanoseconds(self, pointer: int) -> int:
        self._memory.write(self._store, struct.pack("<Q", time.time_ns()), pointer)
        return _OK

    def _random_get(self, address: int, length: int) -> int:
        self._memory.write(self._store, os.urandom(length), address)
        return _OK


def load(path: Path) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """A module, compiled; its machine code is kept beside it."""
    settings = wasmtime.Config()
    settings.max_wasm_stack = 1 << 20
    engine = wasmtime.Engine(settings)
    kept = path.with_suffix(".compiled")
    if kept.exists() and kept.stat().st_mtime > path.stat().st_mtime:
        return engine, wasmtime.Module.deserialize_file(engine, str(kept))
    module = wasmtime.Module.from_file(engine, str(path))
    kept.write_bytes(module.serialize())
    return engine, module
