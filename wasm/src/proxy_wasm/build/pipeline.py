"""From a filter's source to a module that Envoy loads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from proxy_wasm.build import saved, tools
from proxy_wasm.build.application import Application
from proxy_wasm.build.areas import MODULES
from proxy_wasm.build.errors import ApplicationError, BuildError, FormatError, ToolError
from proxy_wasm.build.interface import WORLD, Callback, callbacks, hostcalls, world
from proxy_wasm.build.lowering import Parts, lower
from proxy_wasm.build.recording import Exercises, reduce
from proxy_wasm.build.shim import BEGIN_REQUEST, exports
from proxy_wasm.build.trim import MESSAGE, trim
from proxy_wasm.build.wasm import Module

FACTS = "proxy-wasm-sdk"
"""The custom section with what the build tells of itself, as JSON."""
ENTRY = "proxy_wasm_entry"
_PROVIDED = frozenset({("wasi_snapshot_preview1", "random_get")})
"""What Envoy has beside the hostcalls in `env`."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a build can be told."""

    search: tuple[Path, ...] = ()
    """More folders in which modules are looked for."""
    include: tuple[str, ...] = ()
    """Modules that the filter imports only while it runs."""
    trimmed: bool = True
    """Whether what the filter cannot reach of the interpreter is cut."""
    compiler: bool = False
    """Whether `compile`, `eval` and `exec` of text are kept in a trimmed module."""
    profile: Path | None = None
    """The exercise by which all is cut that it does not run; see `recording`."""
    cached: bool = True
    """Whether a module that was made of the same inputs before is taken."""
    cache: Path | None = None
    """Where modules and tools are kept; by default a folder of the user's own."""


def build(source: Path, output: Path, options: Options, tell: tools.Tell) -> bool:
    """Makes `output`. Whether it had to be made; False: it was in the cache. Raises BuildError."""
    exercises = Exercises.load(options.profile) if options.profile else None
    if output.is_dir():
        raise BuildError(f"{output} is a folder: name the file that is to be made, such as {output / source.stem}.wasm")
    application = Application.examine(source, search=options.search, include=options.include)
    if output.resolve() in {path.resolve() for path in (source, *application.files.values())}:
        raise BuildError(f"{output} is a source file of the filter, and would be overwritten")
    cache = options.cache or tools.cache_folder()
    command = tools.componentize_py()
    binaryen = tools.binaryen(folder=cache / "tools", tell=tell)
    digest = _digest(application, options, binaryen)
    kept = cache / "modules" / f"{digest}.wasm"
    if options.cached and kept.exists():
        _place(kept, output)
        return False
    tell(f"building {output.name}: {len(application.callbacks)} callbacks, {len(application.files)} source files")
    with tempfile.TemporaryDirectory(prefix="proxy-wasm-") as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        component = _componentize(application, options, command, folder)
        tell(f"  interpreter and filter initialised ({time.monotonic() - began:.0f} s)")
        exported = callbacks(application.callbacks)
        parts = Parts.of(component)
        if options.trimmed:
            parts, count = trim(parts, keep_compiler=options.compiler)
            tell(f"  {count} functions of the interpreter cut")
        module = _core(parts, exported, binaryen, folder)
        if exercises is not None:
            module, count = reduce(module, exercises, binaryen, folder)
            tell(f"  {count} functions that training did not run cut; {len(exercises.holdout)} of the holdout pass")
        facts = {
            "sdk": version("proxy-wasm-sdk"),
            "application": application.module,
            "inputs": digest,
            "trimmed": options.trimmed,
            "profiled": exercises is not None,
            "tools": tools.versions(binaryen),
        }
        finished = Module.parse(module.read_bytes()).without_custom().with_custom(FACTS, json.dumps(facts).encode())
        check(finished, exported)
        made = folder / "finished.wasm"
        made.write_bytes(finished.serialize())
        binaryen.validate(made)
        tell(f"  one core module of {made.stat().st_size / 1e6:.1f} MB ({time.monotonic() - began:.0f} s)")
        _place(made, output)
        try:
            _place(made, kept)
        except OSError as error:
            tell(f"  not kept for the next time: {kept.parent}: {error.strerror or error}")
    return True


def componentize(source: Path, options: Options, folder: Path) -> bytes:
    """The first step alone: the component that componentize-py makes of a filter, with nothing cut. Raises BuildError."""
    application = Application.examine(source, search=options.search, include=options.include)
    return _componentize(application, options, tools.componentize_py(), folder)


def check(module: Module, exported: Sequence[Callback]) -> None:
    """Raises FormatError when Envoy would not load the module: it exports too little, or needs what Envoy does not have."""
    known = {("env", call.environment_name) for call in hostcalls().values()} | _PROVIDED
    unknown = [f"{item.module}.{item.name}" for item in module.imports if (item.module, item.name) not in known]
    if unknown:
        raise FormatError(f"the module needs what Envoy does not have: {', '.join(unknown)}")
    missing = exports(exported) - {item.name for item in module.exports}
    if missing:
        raise FormatError(f"the module lacks exports: {', '.join(sorted(missing))}")


def facts(module: Module) -> dict[str, object]:
    """What the build told of itself; empty when another build made the module."""
    content = module.custom(FACTS)
    try:
        told = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _componentize(application: Application, options: Options, command: list[str], folder: Path) -> bytes:
    sources, interface, component = folder / "sources", folder / "wit", folder / "component.wasm"
    for name, path in application.files.items():
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    interface.mkdir()
    (interface / "filter.wit").write_text(world(callbacks(application.callbacks)))
    (sources / f"{ENTRY}.py").write_text(_entry(application, options))
    # Of itself it would look for packages in whatever Python the environment names, which need not be this one.
    packages = folder / "environment" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    try:
        tools.run(
            [*command, "-d", interface, "-w", WORLD, "componentize", "--stub-wasi", "-p", sources, ENTRY, "-o", component],
            environment={**os.environ, "VIRTUAL_ENV": str(packages.parent.parent)},
            folder=folder,
        )
    except ToolError as error:
        own = _traceback(error.said, application)
        if own is None:
            shown = error.said.partition("\n\nStack backtrace:")[0].strip() or str(error)
            raise ToolError(f"componentize-py failed:\n{shown[:3000]}", said=error.said) from None
        raise ApplicationError(own) from None
    return component.read_bytes()


def _traceback(said: str, application: Application) -> str | None:
    """The exception of the filter's own code among what componentize-py said, with the files' real names; None when it was another."""
    asked = rf'  File "/0/{ENTRY}\.py", line \d+, in <module>\n    importlib\.import_module\(name\)\n'
    found = re.search(
        r"^(?:AssertionError: )?(Traceback \(most recent call last\):\n  File \"/.*?)(?:\n+Caused by:\n|\n+Stack backtrace:\n|\Z)",
        said,
        re.DOTALL | re.MULTILINE,
    )
    if found is None or re.search(asked, found[1]) is None:
        return None
    # The frames of the import that the entry asks for, and the lines that belong to each, say nothing.
    own = re.sub(rf'^  File "(?:/python/importlib/|<frozen importlib|/0/{ENTRY}\.py).*\n(?:    .*\n)*', "", found[1], flags=re.MULTILINE)
    named = re.sub(r'File "/0/([^"]+)"', lambda match: f'File "{application.files.get(match[1], match[1])}"', own)
    return f"{application.module} cannot be imported by the filter's own Python, which is one for WebAssembly:\n{named.rstrip()}"


def _entry(application: Application, options: Options) -> str:
    calls = [(call.python_name, [(one.name.replace("-", "_"), one.type) for one in call.parameters]) for call in hostcalls().values()]
    values = {
        "@MODULES@": repr([application.module, *options.include]),
        "@HOSTCALLS@": repr(calls),
        "@CUTTABLE@": repr(tuple(MODULES)),
        "@TRIMMED@": "" if options.trimmed else "# ",
        "@CUT_MODULES@": repr(saved.CUT_MODULES),
        "@CALLBACKS@": repr(saved.CALLBACKS),
        "@BEGIN_REQUEST@": repr(BEGIN_REQUEST),
        "@HOST@": repr(saved.HOST),
        "@EXPORTED@": repr(application.callbacks),
        "@MESSAGE@": repr(MESSAGE),
    }
    text = resources.files("proxy_wasm.build").joinpath("entry.py.txt").read_text()
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _core(parts: Parts, exported: Sequence[Callback], binaryen: tools.Binaryen, folder: Path) -> Path:
    lowered = lower(parts, exported, binaryen=binaryen, folder=folder)
    return binaryen.optimize(lowered, folder / "core.wasm", "--duplicate-function-elimination", "--remove-unused-module-elements")


def _digest(application: Application, options: Options, binaryen: tools.Binaryen) -> str:
    digest = hashlib.sha256()
    own = sorted(Path(str(resources.files("proxy_wasm.build"))).iterdir())
    inputs = {
        **application.files,
        **({"profile": options.profile} if options.profile else {}),
        **{f"build/{path.name}": path for path in own if path.is_file()},
    }
    for name, path in sorted(inputs.items()):
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    rest = [
        application.module,
        application.callbacks,
        options.trimmed,
        options.compiler,
        options.include,
        tools.versions(binaryen),
        sys.version_info[:2],
    ]
    digest.update(json.dumps(rest).encode())
    return digest.hexdigest()[:24]


def _place(source: Path, target: Path) -> None:
    """Copies a file so that nobody ever sees half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
