"""Meshes that are broken on purpose."""

from pathlib import Path

import pytest
import zoo


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    zoo.write(repository, "versions", "model_path: model.onnx\n", model_onnx=zoo.scaled(2))
    zoo.write(repository, "slow", "model_path: model.onnx\ninstances: {threads: 1}\n", model_onnx=zoo.slow())
    return repository
