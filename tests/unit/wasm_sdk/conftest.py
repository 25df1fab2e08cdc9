"""The examples as modules, and filters that tests make up."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from proxy_wasm.testing import Simulation

EXAMPLES = Path(__file__).parents[3] / "wasm" / "examples"


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
    """Imports an example by its name."""
    loaded: dict[str, ModuleType] = {}

    def load(name: str) -> ModuleType:
        if name not in loaded:
            spec = importlib.util.spec_from_file_location(f"wasm_example_{name}", EXAMPLES / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            loaded[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        return loaded[name]

    return load


@pytest.fixture
def run(example: Callable[[str], ModuleType]) -> Callable[..., Simulation]:
    """Runs an example's classes in this process."""
    roots = {"header_rewrite": "Rewrite", "api_key": "ApiKey", "body_rewrite": "Redact"}

    def start(name: str, **options: Any) -> Simulation:
        return Simulation(getattr(example(name), roots[name]), **options)

    return start
