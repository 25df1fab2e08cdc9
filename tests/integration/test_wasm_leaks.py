"""Bytes that go to the host and come back are freed, by the plain way of a hostcall and by the one for all else."""

import pytest

from proxy_wasm.build.pipeline import Options, build
from proxy_wasm.testing import Simulation, WasmInstance, WasmModule

FILTER = """
from proxy_wasm import Action, HttpContext, RootContext, register, shared_data
from proxy_wasm.binding import bound


class Stream(HttpContext["Root"]):
    def on_request_headers(self, headers, end_of_stream):
        value = bytes(10_000) if headers.get("x-plain") else bytearray(10_000)
        for number in range(100):
            bound.host.set_shared_data(b"key", value, 0)
            assert shared_data.get("key")[0] == value
            headers["x-large"] = b"x" * 10_000
            assert len(headers["x-large"]) == 10_000
            assert len(headers.items()) > 4
        return Action.CONTINUE


class Root(RootContext):
    http_context = Stream


register(Root)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> WasmModule:
    """The filter, built."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "app.py").write_text(FILTER)
    build(folder / "app.py", folder / "filter.wasm", Options(), print)
    return WasmModule(folder / "filter.wasm")


@pytest.mark.parametrize("headers", [{"x-plain": "yes"}, {}], ids=["bytes", "other buffers"])
def test_a_thousand_hostcalls_of_10_kb_leave_the_memory_as_it_was(module: WasmModule, headers: dict[str, str]) -> None:
    with Simulation(module=module) as host:
        machine = host.workers[0].machine
        assert isinstance(machine, WasmInstance)

        def requests(count: int) -> None:
            for _ in range(count):
                host.request(headers).respond(status=200)
            assert not host.exceptions

        requests(3)
        before = machine.memory_bytes
        requests(10)
        assert machine.memory_bytes == before
