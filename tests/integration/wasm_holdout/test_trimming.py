"""A trimmed module against Python that nobody had in mind when the interpreter was trimmed."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from proxy_wasm.build import tools
from proxy_wasm.build.lowering import INTERPRETER, Parts
from proxy_wasm.build.pipeline import Options, build, componentize
from proxy_wasm.build.trim import cuttable
from proxy_wasm.testing import Simulation, WasmModule

PROGRAMS = Path(__file__).parent / "programs"


def _import(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"holdout_{name}", PROGRAMS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


CORPUS: dict[str, Any] = _import("corpus").FUNCTIONS


def _built(name: str, folder: Path, **options: Any) -> WasmModule:
    output = folder / f"{name}.wasm"
    build(PROGRAMS / f"{name}_filter.py", output, Options(**options), print)
    return WasmModule(output)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> WasmModule:
    """The corpus as a trimmed filter."""
    return _built("holdout", tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def denied(tmp_path_factory: pytest.TempPathFactory) -> WasmModule:
    """What a trimmed filter cannot do, as one."""
    return _built("denied", tmp_path_factory.mktemp("denied"))


def _told(module: WasmModule, asked: object) -> list[Any]:
    """What a filter logs of what it is asked for by its configuration."""
    with Simulation(module=module, configuration=json.dumps(asked)) as host:
        return [json.loads(line.message) for line in host.logs if line.message.startswith("[")]


@pytest.mark.parametrize("name", CORPUS)
def test_ordinary_python_answers_as_it_does_outside(corpus: WasmModule, name: str) -> None:
    expected = json.loads(json.dumps(CORPUS[name]()))
    assert _told(corpus, [name]) == [[name, {"value": expected}]]


def test_all_of_it_in_one_machine_and_again(corpus: WasmModule) -> None:
    expected = [[name, {"value": json.loads(json.dumps(function()))}] for name, function in CORPUS.items()]
    assert _told(corpus, [*CORPUS, *reversed(CORPUS)]) == [*expected, *reversed(expected)]


def test_text_cannot_be_compiled_and_says_so(denied: WasmModule) -> None:
    [[_, attempts]] = _told(denied, "attempts")
    assert len(attempts) >= 7
    assert set(attempts.values()) == {"RuntimeError"}


def test_what_was_not_imported_is_denied_at_every_door(denied: WasmModule) -> None:
    [[_, importing]] = _told(denied, "importing")
    by_name = {name: error for name, error in importing.items() if not name.startswith("create ")}
    past_the_finder = {name: error for name, error in importing.items() if name.startswith("create ")}
    assert len(past_the_finder) >= 20
    assert set(past_the_finder.values()) == {"RuntimeError"}
    assert by_name.pop("encoding") == "LookupError"
    assert set(by_name.values()) == {"ImportError"}


def test_nothing_that_is_done_to_any_type_traps(denied: WasmModule) -> None:
    [[_, told]] = _told(denied, "every_type")
    assert told["types"] > 500
    assert told["answers"] > 2000


def test_a_module_with_the_compiler_kept_compiles(tmp_path: Path) -> None:
    [[_, attempts]] = _told(_built("denied", tmp_path, compiler=True), "attempts")
    assert set(attempts.values()) == {"nothing", "TypeError"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The component of a filter, before anything is cut."""
    return Parts.of(componentize(PROGRAMS / "denied_filter.py", Options(), tmp_path_factory.mktemp("component")))


def test_what_stays_calls_what_is_cut_only_where_an_exception_is_expected(parts: Parts, tmp_path: Path) -> None:
    """By the machine code itself: every direct call from a function that stays to one that is cut, by name."""
    interpreter = parts.module(INTERPRETER)
    gone = cuttable(parts)
    binary, text = tmp_path / "python.wasm", tmp_path / "python.wat"
    binary.write_bytes(interpreter.serialize())
    tools.binaryen(folder=tools.cache_folder() / "tools", tell=print).disassemble(binary, text)
    places: dict[str, int] = {}
    calls: list[tuple[int, str]] = []
    name = r'\$("[^"]+"|[^\s")]+)'
    with text.open() as lines:
        for line in lines:
            if found := re.match(rf" \(func {name}", line):
                places[found[1]] = len(places)
            elif found := re.match(rf"\s+\(call {name}", line):
                calls.append((len(places) - 1, found[1]))
    assert len(places) == len(interpreter.bodies)
    assert len(calls) > 50_000
    names = [interpreter.function_names[interpreter.imported_functions + place] for place in range(len(interpreter.bodies))]
    entered = {names[places[called]] for caller, called in calls if called in places and places[called] in gone and caller not in gone}
    assert entered == COMPILING | INITIALISING | FINALISING | OTHER_ALLOCATOR


COMPILING = {
    "PyAST_Check", "PyAST_mod2obj", "PyAST_obj2mod", "_PyAST_Compile", "_PyAST_Validate", "_PyCfg_FromInstructionSequence",
    "_PyCfg_OptimizeCodeUnit", "_PyCfg_ToInstructionSequence", "_PyCompile_AstPreprocess", "_PyParser_ASTFromFile",
    "_PyParser_ASTFromString", "_PyParser_InteractiveASTFromFile", "_PyTokenizer_FindEncodingFilename", "calculate_stackdepth",
    "label_exception_targets", "optimize_load_fast", "translate_jump_labels_to_targets",
}  # fmt: skip
"""Called by `compile` and its kind, which look for an exception, and by tracebacks, whose files do not exist."""
INITIALISING = {
    "PyConfig_InitPythonConfig", "PyConfig_SetBytesArgv", "PyConfig_SetString", "_PyConfig_Copy", "_PyConfig_CreateXOptionsDict",
    "_PyConfig_InitCompatConfig", "_PyConfig_InitImportConfig", "_PyConfig_Read", "_PyConfig_Write", "_Py_DumpPathConfig",
}  # fmt: skip
"""Called when an interpreter starts: it had, when it was saved."""
FINALISING = {"_PyAST_Fini"}
"""Called when the interpreter ends, which it never does."""
OTHER_ALLOCATOR = {
    "_mi_free_generic", "_mi_heap_realloc_zero", "_mi_malloc_generic", "_mi_page_retire", "_mi_process_init", "_mi_warning_message",
    "mi_option_init", "mi_segment_purge", "mi_segment_try_purge",
}  # fmt: skip
"""Called by the allocator mimalloc, which is compiled in and not in use."""
