"""`proxy-wasm build` and `inspect` when something is wrong: what is told, and what stays."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy_wasm.build import pipeline, tools
from proxy_wasm.build.application import Application
from proxy_wasm.build.component import MAGIC as COMPONENT
from proxy_wasm.build.errors import ToolError
from proxy_wasm.build.pipeline import Options, build
from proxy_wasm.build.tools import Binaryen
from proxy_wasm.build.wasm import MAGIC, Export, Module, Section

PROXY_WASM = str(Path(sys.executable).with_name("proxy-wasm"))
FILTER = "from proxy_wasm import RootContext, register\n\n\n@register\nclass Root(RootContext):\n    def on_tick(self):\n        pass\n"


def _run(*arguments: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROXY_WASM, *map(str, arguments)], check=False, capture_output=True, text=True, env={**os.environ, **options})


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name'"),
        ("x = 1\n", "registers no filter"),
    ],
)
def test_an_application_that_cannot_be_imported_is_told_and_the_old_module_stays(tmp_path: Path, source: str, complaint: str) -> None:
    app, output = tmp_path / "app.py", tmp_path / "filter.wasm"
    app.write_text(source)
    output.write_bytes(b"old")
    done = _run("build", app, "-o", output)
    assert done.returncode == 3
    assert complaint in done.stderr
    assert output.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["app.py", "filter.wasm"]


def test_what_only_the_python_of_the_filter_lacks_is_told_as_the_exception_alone_with_the_names_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import sys\ntry:\n    if sys.platform == 'wasi':\n        import _ssl\nexcept ImportError as error:\n"
        f"    raise RuntimeError('long ' * 700 + 'and told to the end') from error\n{FILTER}"
    )
    done = _run("build", tmp_path / "app.py", "-o", tmp_path / "f.wasm", "--no-cache", "--quiet")
    assert done.returncode == 3
    told = done.stderr.splitlines()
    assert told[0].startswith("proxy-wasm: app cannot be imported by the filter's own Python")
    assert told[1:4] == ["Traceback (most recent call last):", f'  File "{tmp_path}/app.py", line 4, in <module>', "    import _ssl"]
    assert told[-1].startswith("RuntimeError: long")
    assert told[-1].endswith("and told to the end")
    assert [
        line for line in told if "proxy_wasm_entry" in line or "importlib" in line or "Caused by" in line or "Stack backtrace" in line
    ] == []
    assert not (tmp_path / "f.wasm").exists()


def test_what_ends_the_interpreter_of_the_filter_is_told_without_the_backtrace_of_the_tool(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"import os, sys\nif sys.platform == 'wasi':\n    os.abort()\n{FILTER}")
    done = _run("build", tmp_path / "app.py", "-o", tmp_path / "f.wasm", "--no-cache", "--quiet")
    assert done.returncode == 4
    assert done.stderr.startswith("proxy-wasm: componentize-py failed:\n")
    assert "os_abort" in done.stderr
    assert "Stack backtrace" not in done.stderr


@pytest.mark.parametrize("source", ["import os\nos._exit(0)\n", "raise SystemExit\n"])
def test_an_application_that_ends_the_interpreter_is_told(tmp_path: Path, source: str) -> None:
    (tmp_path / "app.py").write_text(source)
    done = _run("build", tmp_path / "app.py", "-o", tmp_path / "f.wasm")
    assert done.returncode == 3
    assert done.stderr == f"proxy-wasm: {tmp_path}/app.py ends the interpreter when it is imported\n"


@pytest.mark.parametrize("name", ["app.v2.py", "app", "app.txt"])
def test_a_source_that_python_cannot_import_by_its_name_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILTER)
    done = _run("build", tmp_path / name, "-o", tmp_path / "f.wasm")
    assert done.returncode == 3
    assert "Python can import no file of that name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_output_that_is_a_folder_or_a_source_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(FILTER)
    done = _run("build", app, "-o", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"proxy-wasm: {tmp_path} is a folder: name the file that is to be made, such as {tmp_path}/app.wasm\n"
    done = _run("build", app, "-o", app)
    assert (done.returncode, done.stdout) == (1, "")
    assert "would be overwritten" in done.stderr
    assert app.read_text() == FILTER


def test_a_source_that_is_missing_is_named(tmp_path: Path) -> None:
    done = _run("build", tmp_path / "no.py", "-o", tmp_path / "f.wasm")
    assert done.returncode == 3
    assert "no.py: there is no such file" in done.stderr


def test_a_wrong_binaryen_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FILTER)
    done = _run("build", tmp_path / "app.py", "-o", tmp_path / "f.wasm", BINARYEN=str(tmp_path))
    assert done.returncode == 4
    assert "$BINARYEN names" in done.stderr


def test_a_missing_or_wrong_componentize_py_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ToolError, match="componentize-py is missing; get it with: pip install componentize-py=="):
        tools.componentize_py()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1")
    with pytest.raises(ToolError, match=r"version 0\.1.*pip install componentize-py=="):
        tools.componentize_py()


def test_a_missing_node_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "_node_folder", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"Node.js is missing.*pip install 'proxy-wasm-sdk\[build\]'"):
        tools.install(folder=tmp_path, tell=print)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a core module"),
        (b"<html>", "not a core module"),
        (COMPONENT, "not a core module"),
        (MAGIC + b"\x01\x7f", "ends"),
        (MAGIC + bytes([99, 0]), "section"),
        (MAGIC, "is no filter"),
        (MAGIC + b"\x07\x04\x01\x01a\x63", "kind"),
    ],
)
def test_inspect_tells_of_a_broken_file_in_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "f.wasm"
    path.write_bytes(content)
    done = _run("inspect", path)
    assert done.returncode == 5
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_inspect_names_a_file_that_is_missing(tmp_path: Path) -> None:
    done = _run("inspect", tmp_path / "no.wasm")
    assert done.returncode == 1
    assert done.stderr.endswith("no.wasm: No such file or directory\n")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    exports = tuple(Export(f"name_{number}", "function", 0) for number in range(20_000))
    marker = Export("proxy_abi_version_0_2_1", "function", 0)
    path = tmp_path / "f.wasm"
    path.write_bytes(Module((Section(7, b"\0"),)).with_exports((marker, *exports)).serialize())
    running = subprocess.Popen([PROXY_WASM, "inspect", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline() == b"abi: 0.2.1\n"
    running.stdout.close()
    assert running.stderr.read() == b""
    running.stderr.close()
    assert running.wait() == 0


def test_the_cache_knows_sources_and_options_apart(tmp_path: Path) -> None:
    app = tmp_path / "app.py"

    def digest(**options: object) -> str:
        return pipeline._digest(Application.examine(app), Options(**options), Binaryen(tmp_path, 132))  # type: ignore[arg-type]

    app.write_text(FILTER)
    first = digest()
    assert digest() == first
    assert len({first, digest(trimmed=False), digest(compiler=True), digest(include=("json",))}) == 4
    app.write_text(FILTER + "# another\n")
    assert digest() != first


def test_the_same_inputs_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(FILTER)
    monkeypatch.setattr(tools, "binaryen", lambda **_: Binaryen(tmp_path, 132))
    digest = pipeline._digest(Application.examine(tmp_path / "app.py"), Options(), Binaryen(tmp_path, 132))
    kept = tmp_path / "cache" / "modules" / f"{digest}.wasm"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"built before")
    assert not build(tmp_path / "app.py", tmp_path / "out.wasm", Options(cache=tmp_path / "cache"), print)
    assert (tmp_path / "out.wasm").read_bytes() == b"built before"
