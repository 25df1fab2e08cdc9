"""A built filter that would wait is told so by an exception; it does not trap."""

import pytest

from proxy_wasm.build.pipeline import Options, build
from proxy_wasm.testing import Simulation, WasmModule

FILTER = """
import time
from time import sleep

from proxy_wasm import Action, HttpContext, RootContext, register

WAYS = {"module": lambda: time.sleep(0), "name": lambda: sleep(0.01), "input": input}


class Stream(HttpContext["Root"]):
    def on_request_headers(self, headers, end_of_stream):
        try:
            WAYS[headers.text("x-way")]()
        except Exception as error:
            headers["x-error"] = f"{type(error).__name__}: {error}"
        return Action.CONTINUE


class PatientStream(Stream):
    async def on_request_headers(self, headers, end_of_stream):
        await self.sleep(0.25)
        return Action.CONTINUE


@register
class Root(RootContext):
    def create_http_context(self, context_id):
        return (Stream if self.hasty else PatientStream)(context_id, self)

    http_context = Stream

    def on_configure(self, configuration):
        self.hasty = configuration == b"hasty"
        return True
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> WasmModule:
    """The filter, built."""
    folder = tmp_path_factory.mktemp("waiting")
    (folder / "app.py").write_text(FILTER)
    build(folder / "app.py", folder / "filter.wasm", Options(), print)
    return WasmModule(folder / "filter.wasm")


@pytest.mark.heavy
@pytest.mark.parametrize(("way", "told"), [("module", "await self.sleep"), ("name", "await self.sleep"), ("input", "lost sys.stdin")])
def test_what_would_wait_raises(module: WasmModule, way: str, told: str) -> None:
    with Simulation(module=module, configuration="hasty") as host:
        for _ in range(2):
            error = host.request({"x-way": way}).sent_upstream.headers.text("x-error") or ""
            assert error.startswith("RuntimeError: ")
            assert told in error


@pytest.mark.heavy
def test_a_callback_waits_by_await(module: WasmModule) -> None:
    with Simulation(module=module) as host:
        stream = host.request()
        host.advance(0.2)
        assert not stream.reached_upstream
        host.advance(0.1)
        assert stream.reached_upstream
