"""mcprun.yaml."""

from pathlib import Path

import pytest

from mcprun.document import ConfigError
from mcprun.workspace import Workspace, load_workspace


def write(folder: Path, text: str) -> Path:
    (folder / "models").mkdir(exist_ok=True)
    path = folder / "mcprun.yaml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    workspace = load_workspace(write(tmp_path, "version: '2026.3.1'\n"))
    assert workspace == Workspace()
    assert (workspace.edge.host, workspace.edge.port, workspace.models, workspace.workers) == ("127.0.0.1", 8080, "models", 1)


@pytest.mark.parametrize("text", ["", "# all defaults\n"])
def test_a_file_of_comments_is_all_defaults(tmp_path: Path, text: str) -> None:
    empty = load_workspace(write(tmp_path, text))
    assert empty.services_config() == load_workspace(write(tmp_path, "version: '2026.3.1'\n")).services_config()


def test_a_section_of_comments_is_an_empty_one(tmp_path: Path) -> None:
    assert load_workspace(write(tmp_path, "router:\n  # nothing\nbatcher:\nedge:\n")) == Workspace()


def test_sections_reach_their_services(tmp_path: Path) -> None:
    workspace = load_workspace(write(tmp_path, "edge: {port: 9000, concurrency: 1}\nworker: {device: cpu}\n"))
    assert workspace.edge.port == 9000
    assert workspace.services_config()["worker"] == {"device": "cpu"}
    assert workspace.services_config()["edge"] == {"concurrency": 1}


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = "edge:\n  port: 70000\nworkers: 0\nmodel: x\nlog_level: loud\nrouter: 3\nmax_message_bytes: 1\nworkers: 2\n"
    with pytest.raises(ConfigError) as caught:
        load_workspace(write(tmp_path, text))
    assert [(problem.line, problem.field) for problem in caught.value.problems] == [
        (2, "edge.port"),
        (3, "workers"),
        (4, "model"),
        (5, "log_level"),
        (6, "router"),
        (7, "max_message_bytes"),
        (8, "workers"),
    ]
    assert str(caught.value.problems[0]).endswith("mcprun.yaml:2:3: edge.port: expected at most 65535, got 70000")
    assert caught.value.problems[2].hint == "did you mean 'models'?"


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mcprun.yaml:1:1: models: expected a folder, got .*/elsewhere', which does not exist"):
        load_workspace(write(tmp_path, "models: elsewhere\n"))
