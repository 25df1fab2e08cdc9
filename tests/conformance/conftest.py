"""One mesh for all conformance tests: every process of it, behind Envoy, as users run it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import zoo

from mcprun.testing import Mesh


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.build(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def mesh(repository: Path) -> Iterator[Mesh]:
    with Mesh(repository, wasm=True) as running:
        yield running


@pytest.fixture
def rest(mesh: Mesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mesh.http_url, timeout=30) as client:
        yield client
