"""The filter's own code, as the build sees it before anything is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import proxy_wasm
from proxy_wasm.build.errors import ApplicationError

_LOOK = """
import importlib, json, sys, traceback
name, roots = sys.argv[1], sys.argv[2:]
sys.path[:0] = roots
try:
    importlib.import_module(name)
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
files = {module: sys.modules[module].__file__ for module in sorted(sys.modules) if getattr(sys.modules[module], "__file__", None)}
print(json.dumps({"callbacks": callbacks, "files": files}))
"""


@dataclass(frozen=True, slots=True)
class Application:
    """A filter that can be imported."""

    module: str
    """The module's name, such as `app` or `package.app`."""
    callbacks: tuple[str, ...]
    """The callbacks that it has, by their names."""
    files: dict[str, Path]
    """The source files of its own modules, of what it includes and of the SDK, by their paths within the module search path."""

    @classmethod
    def examine(cls, source: Path, *, search: Sequence[Path] = (), include: Sequence[str] = ()) -> Application:
        """Imports a filter in a process of its own. Raises ApplicationError with its traceback when that fails.

        `search` are more folders in which modules are looked for, `include` modules that it imports only while it runs.
        """
        source = source.resolve()
        if not source.is_file():
            raise ApplicationError(f"{source}: there is no such file")
        root, parts = source.parent, [source.stem]
        while (root / "__init__.py").exists():
            parts.insert(0, root.name)
            root = root.parent
        module = ".".join(parts)
        sdk = Path(proxy_wasm.__file__).parent.parent
        roots = [root, *(path.resolve() for path in search), sdk]
        look = _LOOK.replace("importlib.import_module(name)", "[importlib.import_module(each) for each in name.split(',')]")
        done = subprocess.run(
            [sys.executable, "-c", look, ",".join([module, *include]), *map(str, roots)],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if done.returncode:
            raise ApplicationError(done.stderr.strip() or f"{source} ends the interpreter when it is imported")
        told = json.loads(done.stdout.splitlines()[-1])
        files: dict[str, Path] = {}
        for path in map(Path, told["files"].values()):
            home = next((home for home in roots if path.is_relative_to(home) and "site-packages" not in path.relative_to(home).parts), None)
            if home is not None and path.suffix == ".py":
                files[str(path.relative_to(home))] = path
        return cls(module, tuple(told["callbacks"]), files)
