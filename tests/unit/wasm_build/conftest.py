"""Small modules and components, made by hand."""

import pytest

from proxy_wasm.build.leb128 import text, unsigned

FILTER_ABI = "proxy_abi_version_0_2_1"


def section(number: int, content: bytes) -> bytes:
    return bytes([number]) + unsigned(len(content)) + content


@pytest.fixture(scope="session")
def small_module() -> bytes:
    """A filter that does nothing: a type, an import, a function of its own, which is exported, a global, data, names."""
    return b"\0asm\1\0\0\0" + b"".join(
        [
            section(1, b"\1\x60\0\0"),
            section(2, b"\1" + text("env") + text("proxy_done") + b"\0\0"),
            section(3, b"\1\0"),
            section(5, b"\1\0\1"),
            section(6, b"\1\x7f\0\x41\x05\x0b"),
            section(7, b"\1" + text(FILTER_ABI) + b"\0\1"),
            section(10, b"\1\2\0\x0b"),
            section(11, b"\1\0\x41\x08\x0b\3abc"),
            section(0, text("name") + b"\1\7\1\1" + text("twos")),
        ]
    )


@pytest.fixture(scope="session")
def small_component(small_module: bytes) -> bytes:
    """A component: a core module, an instance of it, an alias of its function, a bundle of that, a lift that is exported."""
    return b"\0asm\x0d\0\1\0" + b"".join(
        [
            section(1, small_module),
            section(10, b"\1\0" + text("host") + b"\5\0"),
            section(6, b"\1\1\0\0" + text("done")),
            section(8, b"\1\1\0\0\0"),
            section(2, b"\1\1\1" + text("proxy_done") + b"\0\0"),
            section(2, b"\1\0\0\1" + text("env") + b"\x12\0"),
            section(6, b"\1\0\0\1\1" + text(FILTER_ABI)),
            section(8, b"\1\0\0\1\0\0"),
            section(11, b"\1\0" + text("run") + b"\1\1\0"),
        ]
    )
