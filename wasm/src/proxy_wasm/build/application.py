"""The filter's own code, as the build sees it before anything is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import proxy_wasm
from proxy_wasm.build.errors import ApplicationError

_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
"""Folders whose packages are of others."""
_LEFT_OUT: Final = frozenset({"__pycache__", ".pyc", ".so", ".a"})

_LOOK = """
import importlib, json, sys, sysconfig, traceback
before = {module for module in sys.modules if module.startswith("_")}  # what the environment hooks into each interpreter
answer, name, included, roots = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:]
sys.argv[1:] = []
sys.path[:0] = roots
try:
    for each in [name, *included]:
        importlib.import_module(each)
    from proxy_wasm import registered
    from proxy_wasm.dispatcher import Dispatcher
    root = registered()
    if root is None:
        raise SystemExit(f"{name} registers no filter: call proxy_wasm.register(YourRootContext) in it")
    callbacks = sorted(Dispatcher.callbacks(root))
except SystemExit:
    raise
except BaseException:
    traceback.print_exc()
    raise SystemExit(1)
files = {}
for module, loaded in sorted(sys.modules.items()):
    path = getattr(loaded, "__file__", None)
    if isinstance(path, str) and module not in before:
        files[module] = path
standard = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]
with open(answer, "w") as file:
    json.dump({"callbacks": callbacks, "files": files, "standard": standard}, file)
"""


@dataclass(frozen=True, slots=True)
class Application:
    """A filter that can be imported."""

    module: str
    """The module's name, such as `app` or `package.app`."""
    callbacks: tuple[str, ...]
    """The callbacks that it has, by their names."""
    files: dict[str, Path]
    """What the interpreter of the filter can import beside the standard library, by paths within the module search path: the source
    files of its own modules, of what it includes and of the SDK, and whole packages of others that one of these imports."""

    @classmethod
    def examine(cls, source: Path, *, search: Sequence[Path] = (), include: Sequence[str] = ()) -> Application:
        """Imports a filter in a process of its own. Raises ApplicationError with its traceback when that fails.

        `search` are more folders in which modules are looked for, `include` modules that it imports only while it runs.
        """
        source = source.resolve()
        if not source.is_file():
            raise ApplicationError(f"{source}: there is no such file")
        if source.suffix != ".py" or "." in source.stem:
            raise ApplicationError(f"{source}: Python can import no file of that name; it must end with .py and hold no other dot")
        root, parts = source.parent, [source.stem] if source.stem != "__init__" else []
        while (root / "__init__.py").exists():
            parts.insert(0, root.name)
            root = root.parent
        module = ".".join(parts)
        sdk = Path(proxy_wasm.__file__).resolve().parent.parent
        roots = [root, *(path.resolve() for path in search), sdk]
        with tempfile.TemporaryDirectory(prefix="proxy-wasm-") as folder:
            answer = Path(folder) / "answer"
            done = subprocess.run(
                [sys.executable, "-c", _LOOK, answer, module, json.dumps(include), *map(str, roots)],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
            if done.returncode or not answer.exists():
                raise ApplicationError(done.stderr.strip() or f"{source} ends the interpreter when it is imported")
            told = json.loads(answer.read_text())
        files: dict[str, Path] = {}
        packaged: set[Path] = set()
        for name, path in ((name, Path(path)) for name, path in told["files"].items()):
            if path in packaged:
                continue
            home = next((home for home in roots if path.is_relative_to(home) and _PACKAGES.isdisjoint(path.relative_to(home).parts)), None)
            if home is not None and (home.name not in _PACKAGES or name.partition(".")[0] == proxy_wasm.__name__):
                if path.suffix == ".py":
                    files[str(path.relative_to(home))] = path
            elif not _is_standard(path, told["standard"]):
                package = _whole(name, path)
                packaged.update(package.values())
                files.update(package)
        return cls(module, tuple(told["callbacks"]), files)


def _is_standard(path: Path, folders: Sequence[str]) -> bool:
    return any(path.is_relative_to(folder) and _PACKAGES.isdisjoint(path.relative_to(folder).parts) for folder in folders)


def _whole(module: str, path: Path) -> dict[str, Path]:
    """The files of the package to which a module belongs: it may import others for the filter's Python than for this one."""
    parts = module.split(".")
    home = path.parent.parent if path.name == "__init__.py" else path.parent
    for part in reversed(parts[:-1]):
        if home.name != part:
            return {}  # It goes by another name than its file.
        home = home.parent
    package = home
    for part in parts:
        package /= part
        if (package / "__init__.py").exists():
            found = [one for one in sorted(package.rglob("*")) if one.is_file() and not _LEFT_OUT.intersection((*one.parts, one.suffix))]
            break
    else:
        found = [path] if path.suffix == ".py" else []
    # Packages ask for the version of their distribution.
    top = str((package if found != [path] else path).relative_to(home))
    for record in sorted(home.glob("*.dist-info/RECORD")):
        if any(line.startswith((f"{top}/", f"{top},")) for line in record.read_text(errors="replace").splitlines()):
            found.append(record.with_name("METADATA"))
    return {str(one.relative_to(home)): one for one in found if one.exists()}
