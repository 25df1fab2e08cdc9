"""Cuts every function that an exercise of the filter did not run. A choice, and a dangerous one: see `WARNING`.

The exercise is a Python file with functions of one argument, a `proxy_wasm.testing.WasmModule`, which they run in simulations. What those
whose names begin with `train` make the module run is kept, and nothing else. Those whose names begin with `hold` are the gate: they stand
for what was not thought of when training was written, and each has to pass with the finished module.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy_wasm.build import tools
from proxy_wasm.build.errors import ApplicationError, HoldoutFailed, ToolError
from proxy_wasm.build.leb128 import signed
from proxy_wasm.build.wasm import Module

if TYPE_CHECKING:
    from proxy_wasm.testing import WasmModule

WARNING: Final = """\
warning: --profile cut all that training did not run. Python finds much of its code through tables that no profile shows, so requests
unlike those of training may end the virtual machine: theirs get 503, with FAIL_RELOAD so do those of the next second, and what the
machine kept in memory is lost. A client that finds such a request can repeat it. Without --profile nothing that is cut can do so."""
_EXECUTED: Final = "executed"
_UNREACHABLE: Final = b"\x00\x00\x0b"

Exercise = Callable[["WasmModule"], object]


@dataclass(frozen=True, slots=True)
class Exercises:
    """What a file exercises a filter by."""

    training: dict[str, Exercise]
    holdout: dict[str, Exercise]

    @classmethod
    def load(cls, path: Path) -> Exercises:
        """Imports the file. Raises ApplicationError when that fails, or when it lacks functions of either kind."""
        specification = importlib.util.spec_from_file_location(f"exercise_{path.stem}", path)
        if specification is None or specification.loader is None or not path.is_file():
            raise ApplicationError(f"{path}: there is no such Python file")
        module = importlib.util.module_from_spec(specification)
        sys.path.insert(0, str(path.resolve().parent))
        try:
            specification.loader.exec_module(module)
        except Exception:
            raise ApplicationError(traceback.format_exc().strip()) from None
        finally:
            sys.path.pop(0)
        found = {name: one for name, one in vars(module).items() if callable(one) and getattr(one, "__module__", "") == module.__name__}
        training = {name: one for name, one in found.items() if name.startswith("train")}
        holdout = {name: one for name, one in found.items() if name.startswith("hold")}
        for kind, functions in (("train", training), ("hold", holdout)):
            if not functions:
                raise ApplicationError(f"{path}: no function's name begins with {kind}: --profile needs both training and a holdout")
        return cls(training, holdout)


def reduce(module: Path, exercises: Exercises, binaryen: tools.Binaryen, folder: Path) -> tuple[Path, int]:
    """The module without what training does not run, and how many functions that were. Raises HoldoutFailed, or ApplicationError.

    Raises ToolError when wasmtime is missing, in which both are run.
    """
    whole = Module.parse(module.read_bytes())
    recording = folder / "recording.wasm"
    recording.write_bytes(_recording(whole).serialize())
    executed = _record(recording, exercises.training)
    unseen = [place for place in range(len(whole.bodies)) if place not in executed]
    cut = folder / "cut.wasm"
    cut.write_bytes(whole.with_bodies(dict.fromkeys(unseen, _UNREACHABLE)).serialize())
    reduced = binaryen.optimize(cut, folder / "reduced.wasm", "--duplicate-function-elimination", "--remove-unused-module-elements")
    for name, function in exercises.holdout.items():
        _hold(name, function, _load(module), _load(reduced))
    return reduced, len(unseen)


def _recording(module: Module) -> Module:
    """The same with a byte for each function in a second memory, which is 1 once the function was called."""
    bodies = {
        place: module.after_locals(body, b"\x41" + signed(place) + b"\x41\x01\x3a\x40\x01\x00") for place, body in enumerate(module.bodies)
    }
    pages = -(-len(bodies) // (1 << 16))
    return module.with_bodies(bodies).with_second_memory(_EXECUTED, pages)


def _record(module: Path, training: dict[str, Exercise]) -> frozenset[int]:
    program = _load(module)
    for name, function in training.items():
        try:
            function(program)
        except BaseException:
            raise ApplicationError(f"{name} fails, with nothing cut:\n{traceback.format_exc().strip()}") from None
    memories = [instance.memory(_EXECUTED) for instance in program.instances]
    return frozenset(place for memory in memories for place, byte in enumerate(memory) if byte)


def _hold(name: str, function: Exercise, whole: WasmModule, reduced: WasmModule) -> None:
    try:
        function(whole)
    except BaseException:
        raise ApplicationError(f"{name} fails, with nothing cut:\n{traceback.format_exc().strip()}") from None
    try:
        function(reduced)
    except BaseException as error:
        last = "".join(traceback.format_exception_only(error)).strip()
        raise HoldoutFailed(
            f"{name} passes with nothing cut, and fails once all that training did not run is cut:\n{last}\n"
            "Train it with more, and with more kinds of requests; or build without --profile, which is safe."
        ) from None


def _load(path: Path) -> WasmModule:
    from proxy_wasm.testing import WasmModule  # the simulation is needed here alone

    try:
        return WasmModule(path)
    except ImportError as error:
        raise ToolError(str(error)) from error
