"""The module between Envoy and the component's core functions, as WebAssembly text.

It exports the ABI's callbacks, adapts those hostcalls that answer through pointers, and stands in for the few parts of WASI that Python
uses: clocks, randomness, standard output and error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from proxy_wasm.build.interface import ABI_MARKER, Callback, Hostcall
from proxy_wasm.build.saved import HostClass

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
    "PyLong_AsLongLong": "(param i32) (result i64)",
    "PyLong_AsUnsignedLong": "(param i32) (result i32)",
    "PyLong_AsUnsignedLongLong": "(param i32) (result i64)",
    "PyLong_FromUnsignedLongLong": "(param i64) (result i32)",
    "PyBytes_AsStringAndSize": "(param i32 i32 i32) (result i32)",
    "PyBytes_FromStringAndSize": "(param i32 i32) (result i32)",
    "PyTuple_New": "(param i32) (result i32)",
    "PyTuple_SetItem": "(param i32 i32 i32) (result i32)",
    "PyCMethod_New": "(param i32 i32 i32 i32) (result i32)",
    "PyObject_SetAttrString": "(param i32 i32 i32) (result i32)",
    "PyErr_Occurred": "(result i32)",
    "PyErr_Clear": "",
    "PyErr_WriteUnraisable": "(param i32)",
    "Py_DecRef": "(param i32)",
}
"""The functions of Python's C API that callbacks and hostcalls are made with, and their types."""
_ARGUMENTS_OFFSET: Final = 1 << 31
"""`PY_VECTORCALL_ARGUMENTS_OFFSET`: there is room for one more before the arguments."""
BEGIN_REQUEST: Final = "begin_request"
"""What the dispatcher has for a stream's creation and its request's headers together."""
_SETTLE: Final = """
(global $new (mut i32) (i32.const 0))
(global $parent (mut i32) (i32.const 0))
(func $settle (local $id i32)
  (if (global.get $new) (then
    (local.set $id (global.get $new)) (global.set $new (i32.const 0))
    (call $python:on_context_create (local.get $id) (global.get $parent)))))
"""
"""Creates the stream that waits to be."""
_METH_FASTCALL: Final = 0x80
_SIZE_OF_METHOD: Final = 16
"""Of C's `PyMethodDef`: name, function, flags, documentation."""
_SCRATCH: Final = 192
"""Bytes: 32 for the arguments of callbacks, then 64 for those of hostcalls, then what they put out."""
_GIVEN: Final = 32
_PUT_OUT: Final = 96
_NUMBERS: Final = {"u32": "PyLong_AsUnsignedLong", "s32": "PyLong_AsLong", "u64": "PyLong_AsUnsignedLongLong", "s64": "PyLong_AsLongLong"}

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


def shim(
    hostcalls: Iterable[Hostcall],
    callbacks: Iterable[Callback],
    addresses: Mapping[str, int],
    host_class: HostClass,
    none: int,
    *,
    frees_bytes: bool,
) -> str:
    """The shim's text.

    `addresses` tells of each callback, by its name, the address of the Python object to call. They are called by Python's C API and not
    by the component's own exports, which takes a third of the time. So are hostcalls: the functions of `host_class` are replaced when a
    machine begins, and the Python functions that stood there are called for arguments that are not plain. `none` is the address of
    Python's None.

    With `frees_bytes`, the memory of arguments that are bytes is freed where these Python functions call: componentize-py 0.25.1 forgets
    to. Were it to learn it, the memory would be freed twice.
    """
    imports: dict[str, str] = {}

    def host(name: str, types: Iterable[str]) -> None:
        imports[name] = f'(import "env" "{name}" (func ${name} {_parameters(types)} (result i32)))'

    functions = []
    known = tuple(hostcalls)
    for hostcall in known:
        pointers = ("i32",) * (1 if hostcall.form == "value" else len(hostcall.outputs))
        host(hostcall.environment_name, (*hostcall.core_types, *pointers))
        functions.append(_adapted(hostcall, frees_bytes=frees_bytes))
        functions.append(_direct(hostcall, host_class.functions[hostcall.python_name][0], none))
    host("proxy_log", ("i32",) * 3)
    host("proxy_get_current_time_nanoseconds", ("i32",))
    imports["random_get"] = '(import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))'
    for name, types in PYTHON_FUNCTIONS.items():
        imports[name] = f'(import "{PYTHON}" "{name}" (func ${name} {types}))'
    for callback in callbacks:
        functions.append(_calling(callback.name, len(callback.parameters), addresses[callback.name], answers=callback.answers))
        functions.append(_exported(callback))
    functions.append(_calling(BEGIN_REQUEST, 3, addresses[BEGIN_REQUEST], answers=True))
    return "\n".join(
        [
            "(module",
            *imports.values(),
            f'(import "{PYTHON}" "memory" (memory $memory 1))',
            f'(import "{PYTHON}" "realloc" (func $realloc (param i32 i32 i32 i32) (result i32)))',
            f'(import "{PYTHON}" "free" (func $free (param i32)))',
            f'(import "{PYTHON}" "table" (table $table 0 funcref))',
            '(export "memory" (memory $memory))',
            f'(func (export "{ABI_MARKER}"))',
            "(global $place (mut i32) (i32.const 0))",
            _initialising(known, host_class),
            _SETTLE,
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


def _initialising(hostcalls: tuple[Hostcall, ...], host_class: HostClass) -> str:
    """The function that the host calls first. The interpreter was saved without a thread in it: one enters it, and stays."""
    lines = []
    for number, hostcall in enumerate(hostcalls):
        method = f"(i32.add (local.get $methods) (i32.const {number * _SIZE_OF_METHOD}))"
        name = host_class.functions[hostcall.python_name][1]
        lines.append(f"""
  (i32.store {method} (i32.const {name}))
  (i32.store offset=4 {method} (table.grow $table (ref.func $direct:{hostcall.name}) (i32.const 1)))
  (i32.store offset=8 {method} (i32.const {_METH_FASTCALL})) (i32.store offset=12 {method} (i32.const 0))
  (local.set $function (call $PyCMethod_New {method} (i32.const 0) (i32.const 0) (i32.const 0)))
  (drop (call $PyObject_SetAttrString (i32.const {host_class.address}) (i32.const {name}) (local.get $function)))
  (call $Py_DecRef (local.get $function))""")
    return f"""
(elem declare func {" ".join(f"$direct:{hostcall.name}" for hostcall in hostcalls)})
(func (export "_initialize") (local $methods i32) (local $function i32)
  (drop (call $PyGILState_Ensure))
  (global.set $place (call $malloc (i32.const {_SCRATCH})))
  (local.set $methods (call $malloc (i32.const {max(1, len(hostcalls)) * _SIZE_OF_METHOD})))
  {"".join(lines)})
(func $taken (param $pointer i32) (param $length i32) (result i32) (local $made i32)
  (local.set $made (call $PyBytes_FromStringAndSize (local.get $pointer) (local.get $length)))
  (if (local.get $pointer) (then (call $free (local.get $pointer))))
  (local.get $made))"""


def _direct(hostcall: Hostcall, slow: int, none: int) -> str:
    """A hostcall as a function of Python's, with the calling convention METH_FASTCALL.

    Whatever is not of the plain type, or too large, goes to the Python function `slow`, which converts or complains.
    """
    locals_, reads, given, bytes_ = [], [], [], 0
    for number, parameter in enumerate(hostcall.parameters):
        argument = f"(i32.load offset={4 * number} (local.get $arguments))"
        if parameter.is_bytes:
            place = _GIVEN + 8 * bytes_
            bytes_ += 1
            target = f"(i32.add (global.get $place) (i32.const {place})) (i32.add (global.get $place) (i32.const {place + 4}))"
            reads.append(f"(br_if $slow (call $PyBytes_AsStringAndSize {argument} {target}))")
            given += [f"(i32.load offset={place} (global.get $place))", f"(i32.load offset={place + 4} (global.get $place))"]
        else:
            (core,) = parameter.core_types
            locals_.append(f"(local $n{number} {core})")
            reads.append(
                f"(local.set $n{number} (call ${_NUMBERS[parameter.type]} {argument}))"
                f" (if ({core}.eq (local.get $n{number}) ({core}.const -1)) (then (br_if $slow (call $PyErr_Occurred))))"
            )
            given.append(f"(local.get $n{number})")
    clear, pointers, values = [], [], []
    for number, kind in enumerate(hostcall.answers):
        place = _PUT_OUT + 8 * number
        clear.append(f"(i64.store offset={place} (global.get $place) (i64.const 0))")
        pointers.append(f"(i32.add (global.get $place) (i32.const {place}))")
        if kind == "list<u8>":
            pointers.append(f"(i32.add (global.get $place) (i32.const {place + 4}))")
            values.append(f"(call $taken (i32.load offset={place} (global.get $place)) (i32.load offset={place + 4} (global.get $place)))")
        elif kind == "u64":
            values.append(f"(call $PyLong_FromUnsignedLongLong (i64.load offset={place} (global.get $place)))")
        else:
            values.append(f"(call $PyLong_FromUnsignedLong (i32.load offset={place} (global.get $place)))")
    status = "(call $PyLong_FromUnsignedLong (local.get $status))"
    if hostcall.form == "status":
        answer = status
    elif hostcall.form == "value":
        answer = values[0]
    elif hostcall.form == "tuple":
        answer = _tuple([status, *values])
    else:
        found = values[0] if len(values) == 1 else _tuple(values)
        answer = f"(if (result i32) (local.get $status) (then (i32.const {none})) (else {found}))"
    return f"""
(func $direct:{hostcall.name} (param $self i32) (param $arguments i32) (param $count i32) (result i32)
  {" ".join(locals_)} (local $status i32) (local $tuple i32)
  (block $slow
    (br_if $slow (i32.ne (local.get $count) (i32.const {len(hostcall.parameters)})))
    {" ".join(reads)}
    {" ".join(clear)}
    (local.set $status (call ${hostcall.environment_name} {" ".join(given)} {" ".join(pointers)}))
    (return {answer}))
  (call $PyErr_Clear)
  (call $PyObject_Vectorcall (i32.const {slow}) (local.get $arguments) (local.get $count) (i32.const 0)))"""


def _tuple(items: list[str]) -> str:
    """An expression for a Python tuple of these."""
    sets = " ".join(f"(drop (call $PyTuple_SetItem (local.get $tuple) (i32.const {place}) {item}))" for place, item in enumerate(items))
    return f"(block (result i32) (local.set $tuple (call $PyTuple_New (i32.const {len(items)}))) {sets} (local.get $tuple))"


def _exported(callback: Callback) -> str:
    """The function that the host calls for a callback.

    A stream's creation waits for the callback that comes next: with its request's headers it is one call of Python's instead of two.
    """
    types = ["i32"] * len(callback.parameters)
    head = f'(func (export "{callback.export_name}") {_parameters(types)} {"(result i32)" if callback.answers else ""}'
    call = f"(call $python:{callback.name} {_locals(len(types))})"
    if callback.name == "on_context_create":
        return f"""{head} (call $settle)
  (if (local.get 1) (then (global.set $new (local.get 0)) (global.set $parent (local.get 1))) (else {call})))"""
    if callback.name == "on_request_headers":
        return f"""{head} (if (result i32) (i32.eq (local.get 0) (global.get $new))
  (then (global.set $new (i32.const 0)) (call $python:{BEGIN_REQUEST} (local.get 0) (global.get $parent) (local.get 2)))
  (else (call $settle) {call})))"""
    return f"{head} (call $settle) {call})"


def _calling(name: str, count: int, address: int, *, answers: bool) -> str:
    """Calls a Python object with so many numbers.

    An exception, which the dispatcher lets through only when memory has run out, is told on standard error; the answer is then 0.
    """
    made = " ".join(f"(local.set $a{place} (call $PyLong_FromUnsignedLong (local.get {place})))" for place in range(count))
    placed = " ".join(f"(i32.store offset={4 * place + 4} (global.get $place) (local.get $a{place}))" for place in range(count))
    released = " ".join(f"(call $Py_DecRef (local.get $a{place}))" for place in range(count))
    answer = "(local.set $n (call $PyLong_AsLong (local.get $r)))" if answers else ""
    return f"""
(func $python:{name} {_parameters(["i32"] * count)} {"(result i32)" if answers else ""}
  {" ".join(f"(local $a{place} i32)" for place in range(count))} (local $r i32) (local $n i32)
  {made} {placed}
  (local.set $r (call $PyObject_Vectorcall (i32.const {address}) (i32.add (global.get $place) (i32.const 4))
    (i32.const {count + _ARGUMENTS_OFFSET - (1 << 32)}) (i32.const 0)))
  {released}
  (if (local.get $r) (then {answer} (call $Py_DecRef (local.get $r))) (else (call $PyErr_WriteUnraisable (i32.const {address}))))
  {"(local.get $n)" if answers else ""})"""


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
