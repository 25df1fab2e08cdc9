"""The readers of WebAssembly's formats: what they understand, and that anything else is a FormatError."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy_wasm.build.component import Component, Lift, Lower, Provided
from proxy_wasm.build.errors import FormatError
from proxy_wasm.build.leb128 import Reader, signed, unsigned
from proxy_wasm.build.pipeline import facts
from proxy_wasm.build.wasm import Module

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=400)


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[float, int, int]]:
    """Places, as shares of the file, what is done there, and a byte."""
    return draw(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.integers(0, 255)), min_size=1, max_size=6))


def damaged(content: bytes, changes: list[tuple[float, int, int]]) -> bytes:
    for share, kind, byte in changes:
        place = int(share * len(content))
        change = {0: bytes([byte]), 1: b"", 2: content[place : place + 1] + bytes([byte])}
        content = content[:place] if kind == 3 else content[:place] + change[kind] + content[place + 1 :]
    return content


def read_all(module: Module) -> None:
    for name in (
        "types",
        "imports",
        "exports",
        "function_types",
        "bodies",
        "imported_functions",
        "has_start",
        "function_names",
        "segments",
    ):
        with contextlib.suppress(FormatError):
            getattr(module, name)
    with contextlib.suppress(FormatError):
        module.constants()
    with contextlib.suppress(FormatError):
        module.find(b"abc")
    module.sizes()
    facts(module)
    module.serialize()


def resolve_all(component: Component) -> None:
    def attempt(action: object, *arguments: object) -> None:
        with contextlib.suppress(FormatError):
            found = action(*arguments)  # type: ignore[operator]
            if isinstance(found, Lower):
                component.import_of(found)

    for name in [*component.exports, "nothing"]:
        attempt(component.lift, name)
    attempt(component.any_realloc)
    for number in range(4):
        attempt(component.module, number)
        attempt(component.module_name, number)
        attempt(component.resolve_export, number, "proxy_done")
        for sort in ("function", "table", "memory", "global", "instance"):
            attempt(component.resolve, sort, number)


def test_a_module_is_read_and_written_as_it_was(small_module: bytes) -> None:
    module = Module.parse(small_module)
    assert [(item.module, item.name, item.kind) for item in module.imports] == [("env", "proxy_done", "function")]
    assert [(item.name, item.index) for item in module.exports] == [("proxy_abi_version_0_2_1", 1)]
    assert module.constants() == {0: 5}
    assert module.find(b"bc") == 9
    assert module.function_names == {1: "twos"}
    assert module.serialize() == small_module


def test_a_component_tells_how_its_parts_are_tied(small_component: bytes, small_module: bytes) -> None:
    component = Component(small_component)
    assert component.module(0) == small_module
    lift = component.lift("run")
    assert isinstance(lift, Lift)
    assert component.resolve("function", lift.core_function) == Provided(1, "proxy_abi_version_0_2_1")
    lowered = component.resolve_export(0, "proxy_done")
    assert isinstance(lowered, Lower)
    assert component.import_of(lowered) == ("host", "done")


@quick
@given(changes=damage())
def test_a_damaged_module_is_a_format_error_at_most(small_module: bytes, changes: list[tuple[float, int, int]]) -> None:
    with contextlib.suppress(FormatError):
        read_all(Module.parse(damaged(small_module, changes)))


@quick
@given(changes=damage())
def test_a_damaged_component_is_a_format_error_at_most(small_component: bytes, changes: list[tuple[float, int, int]]) -> None:
    with contextlib.suppress(FormatError):
        resolve_all(Component(damaged(small_component, changes)))


@quick
@given(st.binary(max_size=60))
def test_any_bytes_are_a_format_error_at_most(content: bytes) -> None:
    with contextlib.suppress(FormatError):
        read_all(Module.parse(b"\0asm\1\0\0\0" + content))
    with contextlib.suppress(FormatError):
        resolve_all(Component(b"\0asm\x0d\0\1\0" + content))


def test_a_component_that_is_made_of_itself_is_refused() -> None:
    # An alias into an instance that comes later, and bundles the alias.
    content = b"\0asm\x0d\0\1\0" + b"\6\7\1\0\0\1\0\1a" + b"\2\6\1\1\1\1a\0\0"
    with pytest.raises(FormatError, match="number 0 of 0"):
        Component(content).resolve("function", 0)


@given(st.integers(0, 2**64 - 1))
def test_numbers_read_back_as_they_were_written(value: int) -> None:
    assert Reader(unsigned(value)).unsigned() == value
    assert Reader(signed(value - 2**63)).signed() == value - 2**63


@pytest.mark.parametrize("read", [Reader.unsigned, Reader.signed])
def test_a_number_without_end_is_refused(read: object) -> None:
    with pytest.raises(FormatError, match="longer than any"):
        read(Reader(b"\x80" * 1000))  # type: ignore[operator]
