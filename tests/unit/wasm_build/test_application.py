"""What the build sees of a filter before anything is made of it: its names, its files, and those of the packages that it imports."""

from pathlib import Path

import pytest

from proxy_wasm.build import pipeline
from proxy_wasm.build.application import Application
from proxy_wasm.build.pipeline import Options
from proxy_wasm.build.tools import Binaryen

FILTER = "from proxy_wasm import RootContext, register\n\n\n@register\nclass Root(RootContext):\n    def on_tick(self):\n        pass\n"


def _own(application: Application) -> set[str]:
    return {name for name in application.files if not name.startswith("proxy_wasm/")}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, as pip fills one, that this Python finds."""
    folder = tmp_path / "environment" / "site-packages"
    files = {
        "colours/__init__.py": "from colours.red import RED\n",
        "colours/red.py": "RED = 1\n",
        "colours/newer.py": "",
        "colours/names.txt": "red",
        "colours/_fast.cpython-311-x86_64-linux-gnu.so": "",
        "colours-1.0.dist-info/METADATA": "Name: colours\nVersion: 1.0\n",
        "colours-1.0.dist-info/RECORD": "colours/__init__.py,,\ncolours/red.py,,\n",
        "shared/part/__init__.py": "",
        "shared/other/__init__.py": "",
        "single.py": "ONE = 1\n",
        "single-2.0.dist-info/METADATA": "Name: single\nVersion: 2.0\n",
        "single-2.0.dist-info/RECORD": "single.py,,\n",
        "unrelated.py": "",
        "unrelated-3.0.dist-info/METADATA": "",
        "unrelated-3.0.dist-info/RECORD": "unrelated.py,,\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.mark.usefixtures("installed")
def test_packages_that_it_imports_come_whole_but_for_machine_code_and_others_stay_away(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"import colours, json, shared.part, single\n{FILTER}")
    assert _own(Application.examine(tmp_path / "app.py")) == {
        "app.py",
        "colours/__init__.py",
        "colours/red.py",
        "colours/newer.py",
        "colours/names.txt",
        "colours-1.0.dist-info/METADATA",
        "shared/part/__init__.py",
        "single.py",
        "single-2.0.dist-info/METADATA",
    }


def test_packages_are_found_the_same_way_in_a_folder_that_the_build_is_told(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(f"import colours\n{FILTER}")
    found = Application.examine(tmp_path / "app.py")
    monkeypatch.delenv("PYTHONPATH")
    assert Application.examine(tmp_path / "app.py", search=[installed]) == found


@pytest.mark.parametrize("changed", ["colours/red.py", "colours/newer.py", "colours-1.0.dist-info/METADATA"])
def test_the_cache_knows_when_a_package_that_it_imports_has_changed(tmp_path: Path, installed: Path, changed: str) -> None:
    def digest() -> str:
        return pipeline._digest(Application.examine(tmp_path / "app.py"), Options(), Binaryen(tmp_path, 132))

    (tmp_path / "app.py").write_text(f"import colours\n{FILTER}")
    first = digest()
    (installed / "unrelated.py").write_text("changed = True\n")
    assert digest() == first
    (installed / changed).write_text("changed = True\nRED = 2\n")
    assert digest() != first


@pytest.mark.parametrize("name", ["a, b.py", "größe ñ.py", "-c.py", "it's.py"])
def test_any_name_with_one_dot_will_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILTER)
    found = Application.examine(tmp_path / name)
    assert (found.module, _own(found)) == (name.removesuffix(".py"), {name})


def test_a_package_can_be_named_by_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "__init__.py").write_text(f"from gate.words import WORDS\n{FILTER}")
    (tmp_path / "gate" / "words.py").write_text("WORDS = ()\n")
    found = Application.examine(tmp_path / "gate" / "__init__.py")
    assert (found.module, _own(found)) == ("gate", {"gate/__init__.py", "gate/words.py"})


def test_what_it_prints_and_closes_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import atexit, os, sys\nprint('no end', end='')\natexit.register(print, 'bye')\nos.write(1, b'\\xff')\nsys.stdout.close()\n"
        + FILTER
    )
    assert "on_tick" in Application.examine(tmp_path / "app.py").callbacks
