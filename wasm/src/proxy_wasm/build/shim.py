"""The module between Envoy and the component's core functions, as WebAssembly text.

It exports the ABI's callbacks, adapts those hostcalls that answer through pointers, and stands in for the few parts of WASI that Python
uses: clocks, randomness, standard output and error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from proxy_wasm.build.interface import ABI_MARKER, Callback, Hostcall

_ADAPTER: Final = "wit-component:adapter:wasi:"

WASI: Final[dict[tuple[str, str], str]] = {
    (_ADAPTER + module, function): export
    for module, function, export in (
        ("clocks/wall-clock@0.2.0", "now", "wall_clock"),
        ("clocks/wall-clock@0.2.0", "resolution", "wall_clock_resolution"),
        ("clocks/monotonic-clock@0.2.0", "now", "monotonic_clock"),
        ("clocks/monotonic-clock@0.2.0", "resolution", "monotonic_clock_resolution"),
        ("random/random@0.2.0", "get-random-bytes", "random_bytes"),
        ("cli/environment@0.2.0", "get-environment", "empty_list"),
        ("cli/environment@0.2.0", "get-arguments", "empty_list"),
        ("cli/stdin@0.2.0", "get-stdin", "standard_input"),
        ("cli/stdout@0.2.0", "get-stdout", "standard_output"),
        ("cli/stderr@0.2.0", "get-stderr", "standard_error"),
        ("cli/terminal-stdin@0.2.0", "get-terminal-stdin", "nothing"),
        ("cli/terminal-stdout@0.2.0", "get-terminal-stdout", "nothing"),
        ("cli/terminal-stderr@0.2.0", "get-terminal-stderr", "nothing"),
        ("filesystem/preopens@0.2.0", "get-directories", "empty_list"),
        ("io/streams@0.2.0", "[method]output-stream.check-write", "stream_check_write"),
        ("io/streams@0.2.0", "[method]output-stream.write", "stream_write"),
        ("io/streams@0.2.0", "[method]output-stream.blocking-flush", "stream_flush"),
        ("io/streams@0.2.0", "[resource-drop]output-stream", "stream_drop"),
    )
}
"""What stands in for which function of WASI, by the name of the adapter's module and of its export."""

PYTHON: Final = "python"
"""The module name of what the shim needs of the component: `memory`, `realloc`, `free`, and `PYTHON_FUNCTIONS`."""
PYTHON_FUNCTIONS: Final[dict[str, str]] = {
    "PyGILState_Ensure": "(result i32)",
    "PyLong_FromUnsignedLong": "(param i32) (result i32)",
    "PyLong_AsLong": "(param i32) (result i32)",
    "PyObject_Vectorcall": "(param i32 i32 i32 i32) (result i32)",
    "PyErr_WriteUnraisable": "(param i32)",
    "Py_DecRef": "(param i32)",
}
"""The functions of Python's C API that callbacks are made with, and their types."""
_ARGUMENTS_OFFSET: Final = 1 << 31
"""`PY_VECTORCALL_ARGUMENTS_OFFSET`: there is room for one more before the arguments."""

# Lines of standard output are logged as `info`, of standard error as `error`. The monotonic clock is the host's only clock.
_WASI_TEXT: Final = """
(global $scratch (mut i32) (i32.const 0))
(func $nanoseconds (result i64)
  (if (i32.eqz (global.get $scratch)) (then (global.set $scratch (call $malloc (i32.const 16)))))
  (drop (call $proxy_get_current_time_nanoseconds (global.get $scratch)))
  (i64.load (global.get $scratch)))
(func (export "wall_clock") (param $answer i32) (local $time i64)
  (local.set $time (call $nanoseconds))
  (i64.store (local.get $answer) (i64.div_u (local.get $time) (i64.const 1000000000)))
  (i32.store offset=8 (local.get $answer) (i32.wrap_i64 (i64.rem_u (local.get $time) (i64.const 1000000000)))))
(func (export "wall_clock_resolution") (param $answer i32)
  (i64.store (local.get $answer) (i64.const 0)) (i32.store offset=8 (local.get $answer) (i32.const 1)))
(func (export "monotonic_clock") (result i64) (call $nanoseconds))
(func (export "monotonic_clock_resolution") (result i64) (i64.const 1))
(func (export "random_bytes") (param $size i64) (param $answer i32) (local $pointer i32) (local $length i32)
  (local.set $length (i32.wrap_i64 (local.get $size)))
  (local.set $pointer (call $malloc (local.get $length)))
  (drop (call $random_get (local.get $pointer) (local.get $length)))
  (i32.store (local.get $answer) (local.get $pointer)) (i32.store offset=4 (local.get $answer) (local.get $length)))
(func (export "empty_list") (param $answer i32) (i64.store (local.get $answer) (i64.const 0)))
(func (export "nothing") (param $answer i32) (i32.store8 (local.get $answer) (i32.const 0)))
(func (export "standard_input") (result i32) (i32.const 0))
(func (export "standard_output") (result i32) (i32.const 1))
(func (export "standard_error") (result i32) (i32.const 2))
(func (export "stream_drop") (param $stream i32))
(func (export "stream_flush") (param $stream i32) (param $answer i32) (i32.store8 (local.get $answer) (i32.const 0)))
(func (export "stream_check_write") (param $stream i32) (param $answer i32)
  (i32.store8 (local.get $answer) (i32.const 0)) (i64.store offset=8 (local.get $answer) (i64.const 65536)))
(func (export "stream_write") (param $stream i32) (param $pointer i32) (param $length i32) (param $answer i32)
  (drop (call $proxy_log
    (select (i32.const 4) (i32.const 2) (i32.eq (local.get $stream) (i32.const 2))) (local.get $pointer) (local.get $length)))
  (i32.store8 (local.get $answer) (i32.const 0)))
"""


def hostcall_export(name: str) -> str:
    """The shim's export that stands for a hostcall."""
    return f"hostcall {name}"


def shim(hostcalls: Iterable[Hostcall], callbacks: Mapping[Callback, int], *, frees_bytes: bool) -> str:
    """The shim's text.

    `callbacks` tells of each the address of the Python object to call. They are called by Python's C API and not by the component's own
    exports, which takes a third of the time. With `frees_bytes`, the memory
    of arguments that are bytes is freed here: componentize-py 0.25.1 forgets to. Were it to learn it, the memory would be freed twice.
    """
    imports: dict[str, str] = {}

    def host(name: str, types: Iterable[str]) -> None:
        imports[name] = f'(import "env" "{name}" (func ${name} {_parameters(types)} (result i32)))'

    functions = []
    for hostcall in hostcalls:
        pointers = ("i32",) * (1 if hostcall.form == "value" else len(hostcall.outputs))
        host(hostcall.environment_name, (*hostcall.core_types, *pointers))
        functions.append(_adapted(hostcall, frees_bytes=frees_bytes))
    host("proxy_log", ("i32",) * 3)
    host("proxy_get_current_time_nanoseconds", ("i32",))
    imports["random_get"] = '(import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))'
    for name, types in PYTHON_FUNCTIONS.items():
        imports[name] = f'(import "{PYTHON}" "{name}" (func ${name} {types}))'
    functions += [_calling(callback, address) for callback, address in callbacks.items()]
    return "\n".join(
        [
            "(module",
            *imports.values(),
            f'(import "{PYTHON}" "memory" (memory $memory 1))',
            f'(import "{PYTHON}" "realloc" (func $realloc (param i32 i32 i32 i32) (result i32)))',
            f'(import "{PYTHON}" "free" (func $free (param i32)))',
            '(export "memory" (memory $memory))',
            f'(func (export "{ABI_MARKER}"))',
            "(global $arguments (mut i32) (i32.const 0))",
            # The interpreter was saved without a thread in it. One thread enters it, and stays.
            '(func (export "_initialize") (drop (call $PyGILState_Ensure)) (global.set $arguments (call $malloc (i32.const 32))))',
            '(func $malloc (export "proxy_on_memory_allocate") (export "malloc") (param i32) (result i32)',
            "  (call $realloc (i32.const 0) (i32.const 0) (i32.const 8) (local.get 0)))",
            *functions,
            _WASI_TEXT,
            ")",
            "",
        ]
    )


def exports(callbacks: Iterable[Callback]) -> frozenset[str]:
    """What the finished module exports."""
    own = {"memory", "malloc", "_initialize", "proxy_on_memory_allocate", ABI_MARKER}
    return frozenset(own | {callback.export_name for callback in callbacks})


def _calling(callback: Callback, address: int) -> str:
    """The function that the host calls for a callback: numbers become Python's, and back.

    An exception, which the dispatcher lets through only when memory has run out, is told on standard error; the answer is then 0.
    """
    count = len(callback.parameters)
    made = " ".join(f"(local.set $a{place} (call $PyLong_FromUnsignedLong (local.get {place})))" for place in range(count))
    placed = " ".join(f"(i32.store offset={4 * place + 4} (global.get $arguments) (local.get $a{place}))" for place in range(count))
    released = " ".join(f"(call $Py_DecRef (local.get $a{place}))" for place in range(count))
    answer = "(local.set $n (call $PyLong_AsLong (local.get $r)))" if callback.answers else ""
    return f"""
(func (export "{callback.export_name}") {_parameters(["i32"] * count)} {"(result i32)" if callback.answers else ""}
  {" ".join(f"(local $a{place} i32)" for place in range(count))} (local $r i32) (local $n i32)
  {made} {placed}
  (local.set $r (call $PyObject_Vectorcall (i32.const {address}) (i32.add (global.get $arguments) (i32.const 4))
    (i32.const {count + _ARGUMENTS_OFFSET - (1 << 32)}) (i32.const 0)))
  {released}
  (if (local.get $r) (then {answer} (call $Py_DecRef (local.get $r))) (else (call $PyErr_WriteUnraisable (i32.const {address}))))
  {"(local.get $n)" if callback.answers else ""})"""


def _parameters(types: Iterable[str]) -> str:
    listed = " ".join(types)
    return f"(param {listed})" if listed else ""


def _locals(count: int) -> str:
    return " ".join(f"(local.get {number})" for number in range(count))


def _adapted(hostcall: Hostcall, *, frees_bytes: bool) -> str:
    name, types = hostcall.environment_name, hostcall.core_types
    count = len(types)
    free, position = "", 0
    for parameter in hostcall.parameters:
        if parameter.is_bytes and frees_bytes:
            # An empty list has no memory: its pointer is no address.
            free += f" (if (local.get {position + 1}) (then (call $free (local.get {position}))))"
        position += len(parameter.core_types)
    arguments = _locals(count)
    start = f'(func (export "{hostcall_export(hostcall.name)}") {_parameters(types)}'
    if hostcall.form == "status":
        return f"{start} (result i32) (call ${name} {arguments}){free})"
    if hostcall.form == "value":
        return f"{start} (result i64) (call $nanoseconds){free})"
    answer = f"(local.get {count})"
    outputs = " ".join(f"(i32.add {answer} (i32.const {offset}))" for offset in hostcall.outputs)
    # The host writes its outputs only when it has something.
    clear = " ".join(f"(i32.store offset={offset} {answer} (i32.const 0))" for offset in hostcall.outputs)
    call = f"(call ${name} {arguments} {outputs})"
    told = f"(i32.store8 {answer} (i32.eqz {call}))" if hostcall.form == "option" else f"(i32.store {answer} {call})"
    return f"{start[:-1] if types else start}{' i32)' if types else ' (param i32)'} {clear} {told}{free})"
