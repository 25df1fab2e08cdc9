"""`proxy-wasm inspect`, run as users run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proxy_wasm.build.wasm import Module

PROGRAM = str(Path(sys.executable).with_name("proxy-wasm"))


def inspect(path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([PROGRAM, "inspect", str(path), *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_it_tells_what_a_module_needs_gives_and_weighs(tmp_path: Path, small_module: bytes) -> None:
    path = tmp_path / "filter.wasm"
    path.write_bytes(small_module)
    told = json.loads(inspect(path, "--json").stdout)
    assert (told["abi"], told["bytes"], told["functions"]) == ("0.2.1", len(small_module), 1)
    assert told["imports"] == ["env.proxy_done"]
    assert told["exports"] == ["proxy_abi_version_0_2_1"]
    assert told["build"] == {}


def test_facts_that_are_no_json_are_none(tmp_path: Path, small_module: bytes) -> None:
    path = tmp_path / "filter.wasm"
    path.write_bytes(Module.parse(small_module).with_custom("proxy-wasm-sdk", b"{").serialize())
    assert json.loads(inspect(path, "--json").stdout)["build"] == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "not a core module of WebAssembly"),
        ("text", "not a core module of WebAssembly"),
        ("component", "a component of WebAssembly, and not a core module"),
        ("truncated", "the file ends"),
        ("no-filter", "is no filter: it exports no proxy_abi_version_0_2_1"),
    ],
)
def test_what_is_no_filter_is_told_in_one_line(tmp_path: Path, small_module: bytes, small_component: bytes, name: str, reason: str) -> None:
    contents = {
        "empty": b"",
        "text": b"import proxy_wasm\n",
        "component": small_component,
        "truncated": small_module[: len(small_module) // 2],
        "no-filter": Module.parse(small_module).with_exports([]).serialize(),
    }
    path = tmp_path / f"{name}.wasm"
    path.write_bytes(contents[name])
    done = inspect(path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (5, "", 1)
    assert str(path) in done.stderr
    assert reason in done.stderr


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    done = inspect(tmp_path / "none.wasm")
    assert (done.returncode, done.stderr) == (1, f"proxy-wasm: {tmp_path / 'none.wasm'}: No such file or directory\n")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, small_module: bytes) -> None:
    path = tmp_path / "filter.wasm"
    path.write_bytes(small_module)
    with subprocess.Popen([PROGRAM, "inspect", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Nobody reads any more before it has begun to write.
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
