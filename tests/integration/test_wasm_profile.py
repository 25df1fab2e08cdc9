"""`proxy-wasm build --profile`: what training does not run is cut, and the holdout decides whether that may be."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy_wasm.build.recording import WARNING
from proxy_wasm.build.wasm import Module

PROXY_WASM = str(Path(sys.executable).with_name("proxy-wasm"))
FILTER = """
from proxy_wasm import Action, HttpContext, RootContext, register


class Stream(HttpContext["Root"]):
    def on_request_headers(self, headers, end_of_stream):
        number = headers.text("x-number") or "0"
        headers["x-double"] = str(float(number) * 2) if "." in number else str(int(number) * 2)
        return Action.CONTINUE


class Root(RootContext):
    http_context = Stream


register(Root)
"""
EXERCISE = """
from proxy_wasm.testing import Simulation


def _doubled(module, number):
    with Simulation(module=module) as host:
        return host.request({"x-number": number}).sent_upstream.headers.text("x-double")


def train_whole_numbers(module):
    for number in ("0", "7", "12345", "99999999"):
        assert _doubled(module, number) == str(int(number) * 2)
"""
HOLD_WHOLE = """

def hold_another_whole_number(module):
    assert _doubled(module, "21") == "42"
"""
HOLD_REAL = """

def hold_a_real_number(module):
    assert _doubled(module, "1.5") == "3.0"
"""
WRONG = """

def hold_what_is_wrong(module):
    assert _doubled(module, "21") == "43"
"""


def _build(folder: Path, exercise: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(FILTER)
    (folder / "exercise.py").write_text(exercise)
    command = [PROXY_WASM, "build", str(folder / "app.py"), "-o", str(folder / "filter.wasm"), "--profile"]
    return subprocess.run([*command, str(folder / "exercise.py")], check=False, capture_output=True, text=True)


@pytest.mark.heavy
def test_what_training_does_not_run_is_cut_and_warned_of(tmp_path: Path) -> None:
    done = _build(tmp_path, EXERCISE + HOLD_WHOLE)
    assert done.returncode == 0, done.stderr
    assert WARNING in done.stderr
    assert len(Module.parse((tmp_path / "filter.wasm").read_bytes()).bodies) < 1500


@pytest.mark.heavy
def test_a_holdout_that_training_did_not_think_of_refuses_the_module(tmp_path: Path) -> None:
    (tmp_path / "filter.wasm").write_bytes(b"what was there before")
    done = _build(tmp_path, EXERCISE + HOLD_WHOLE + HOLD_REAL)
    assert done.returncode == 6
    assert "hold_a_real_number passes with nothing cut, and fails" in done.stderr
    assert "the module trapped in proxy_on_request_headers" in done.stderr
    assert "without --profile, which is safe" in done.stderr
    assert (tmp_path / "filter.wasm").read_bytes() == b"what was there before"


@pytest.mark.heavy
def test_a_holdout_that_fails_anyway_is_told_apart(tmp_path: Path) -> None:
    done = _build(tmp_path, EXERCISE + WRONG)
    assert done.returncode == 3
    assert "hold_what_is_wrong fails, with nothing cut" in done.stderr


@pytest.mark.parametrize(("exercise", "complaint"), [(EXERCISE, "begins with hold"), (HOLD_WHOLE, "begins with train")])
def test_an_exercise_needs_training_and_a_holdout(tmp_path: Path, exercise: str, complaint: str) -> None:
    done = _build(tmp_path, exercise)
    assert done.returncode == 3
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("exercise", "complaint"), [("import nothing_of_that_name", "ModuleNotFoundError"), ("def train(:", "SyntaxError")]
)
def test_an_exercise_that_cannot_be_imported_is_told_by_its_traceback(tmp_path: Path, exercise: str, complaint: str) -> None:
    done = _build(tmp_path, exercise)
    assert done.returncode == 3
    assert complaint in done.stderr


def test_an_exercise_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FILTER)
    command = [PROXY_WASM, "build", str(tmp_path / "app.py"), "-o", str(tmp_path / "f.wasm"), "--profile", "no.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert "no.py: there is no such Python file" in done.stderr
