"""Built filters, in wasmtime and in a real Envoy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy_wasm.build.pipeline import Options, build
from proxy_wasm.testing import Simulation, WasmModule
from proxy_wasm.testing.envoy import EnvoyFilter
from proxy_wasm.testing.exchange import FilterUnderTest

EXAMPLES = Path(__file__).parents[3] / "wasm" / "examples"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Builds a filter once."""
    folder = tmp_path_factory.mktemp("built")

    def make(source: Path) -> Path:
        output = folder / f"{source.stem}.wasm"
        if not output.exists():
            build(source, output, Options(), print)
        return output

    return make


@pytest.fixture(scope="session")
def machine(built: Callable[[Path], Path]) -> Callable[[Path], WasmModule]:
    """Compiles a built filter once."""
    compiled: dict[Path, WasmModule] = {}

    def make(source: Path) -> WasmModule:
        if source not in compiled:
            compiled[source] = WasmModule(built(source))
        return compiled[source]

    return make


@pytest.fixture(params=["in wasmtime", "in Envoy"])
def run(
    request: pytest.FixtureRequest, built: Callable[[Path], Path], machine: Callable[[Path], WasmModule]
) -> Callable[..., FilterUnderTest]:
    """Runs a built example."""

    def start(name: str, **options: Any) -> FilterUnderTest:
        source = EXAMPLES / f"{name}.py"
        return Simulation(module=machine(source), **options) if request.param == "in wasmtime" else EnvoyFilter(built(source), **options)

    return start
