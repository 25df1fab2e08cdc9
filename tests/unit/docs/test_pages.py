"""What the pages say is so: their links, their policies, their first filter, and that no field or option is left out."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from e2e.edge.fake_router import wait_until
from ruamel.yaml import YAML

from mcprun.edge.policy import Breaker, CanaryRule, EdgePolicy, Tenant, TenantIdentity, load_policy
from mcprun.supervisor.ports import free_port
from mcprun.workspace import Workspace
from mcprun_edge.envoy import find_binary
from proxy_wasm import cli

ROOT = Path(__file__).parents[3]
POLICY = ROOT / "docs" / "edge-policy.md"
FILTERS = ROOT / "docs" / "wasm-filters.md"
PROXY_WASM = str(Path(sys.executable).with_name("proxy-wasm"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy" / "istio" / "README.md"]


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of code of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("text", blocks(POLICY, "yaml"))
def test_a_policy_of_the_page_is_taken(text: str, tmp_path: Path) -> None:
    values = YAML(typ="safe").load(text)
    if "edge" in values:
        assert Workspace.model_validate(values).edge.policy
        return
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    load_policy(path)


def test_the_default_rules_are_those_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(next(text for text in blocks(POLICY, "yaml") if "name: api-v2" in text))
    assert load_policy(path) == EdgePolicy()


@pytest.mark.parametrize("model", [EdgePolicy, Breaker, CanaryRule, Tenant, TenantIdentity])
def test_every_field_of_a_policy_is_described(model: type) -> None:
    described = set(re.findall(r"`(?:tenant_identity\.)?([a-z_]+)`", POLICY.read_text()))
    assert set(model.model_fields) - described == set()  # type: ignore[attr-defined]


def test_every_option_of_a_build_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["build", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert options
    assert {option for option in options if f"`{option}" not in FILTERS.read_text()} == set()


def test_the_first_filter_passes_the_tests_of_its_page(tmp_path: Path) -> None:
    filter_text, test_text = blocks(FILTERS, "python")[:2]
    (tmp_path / "doorman.py").write_text(filter_text)
    (tmp_path / "test_doorman.py").write_text(test_text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.heavy
def test_the_first_filter_runs_in_envoy_as_its_page_says(tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(blocks(FILTERS, "python")[0])
    (bootstrap,) = blocks(FILTERS, "yaml")
    door, admin = free_port(), free_port()
    (tmp_path / "envoy.yaml").write_text(bootstrap.replace("10000", str(door)).replace("9901", str(admin)))
    subprocess.run([PROXY_WASM, "build", "doorman.py", "-o", "doorman.wasm"], check=True, cwd=tmp_path)
    with subprocess.Popen([find_binary(None), "-c", "envoy.yaml", "--concurrency", "2", "--disable-hot-restart"], cwd=tmp_path) as envoy:
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{admin}/ready"), "Envoy is ready", seconds=60)
            answer = httpx.get(f"http://127.0.0.1:{door}/")
            assert (answer.text, answer.headers["x-door"]) == ("welcome\n", "python")
            answer = httpx.get(f"http://127.0.0.1:{door}/", headers={"user-agent": "Spider 1.0"})
            assert (answer.status_code, answer.text) == (403, "not today\n")
            assert "wasmcustom.doorman_turned_away: 1\n" in httpx.get(f"http://127.0.0.1:{admin}/stats").text
        finally:
            envoy.terminate()


def answers(url: str) -> bool:
    """Whether a server says that it is well."""
    try:
        return httpx.get(url).is_success
    except httpx.HTTPError:
        return False
