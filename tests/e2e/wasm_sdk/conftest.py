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


@pytest.fixture(params=["in wasmtime", "in Envoy"])
def run(request: pytest.FixtureRequest, built: Callable[[Path], Path]) -> Callable[..., FilterUnderTest]:
    """Runs a built example."""

    def start(name: str, **options: Any) -> FilterUnderTest:
        path = built(EXAMPLES / f"{name}.py")
        return Simulation(module=WasmModule(path), **options) if request.param == "in wasmtime" else EnvoyFilter(path, **options)

    return start
