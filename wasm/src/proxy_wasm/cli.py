"""The command `proxy-wasm`.

Exit codes: 0 done; 1 the build cannot go on; 2 wrong usage; 3 the filter's own code fails; 4 a tool is missing or fails; 5 a file is
not the WebAssembly that it should be; 6 a module cut by --profile fails its holdout.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy_wasm.build import tools
from proxy_wasm.build.errors import BuildError, FormatError
from proxy_wasm.build.interface import ABI_MARKER
from proxy_wasm.build.pipeline import Options, build, facts
from proxy_wasm.build.recording import WARNING
from proxy_wasm.build.wasm import Module


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Ends the process with an exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
        sys.stdout.flush()
    except BuildError as error:
        print(f"proxy-wasm: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("proxy-wasm: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader has seen enough, as `head` has; what is left must not be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        print(f"proxy-wasm: {named}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(1) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="proxy-wasm",
        description="Builds filters in Python for Envoy.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("build", help="make one module of a filter")
    one.add_argument("source", type=Path, metavar="APP.py", help="the module that registers the filter; it may be part of a package")
    one.add_argument("-o", "--output", type=Path, required=True, metavar="FILTER.wasm", help="where the module is put")
    one.add_argument("-p", "--python-path", type=Path, action="append", default=[], metavar="DIR", help="more folders to import from")
    one.add_argument("--include", action="append", default=[], metavar="MODULE", help="a module that is imported only at run time")
    one.add_argument("--keep-compiler", action="store_true", help="keep what compile, eval and exec of text need")
    one.add_argument("--no-trim", action="store_true", help="keep all of the interpreter, which takes Envoy twice as long to load")
    one.add_argument(
        "--profile",
        type=Path,
        metavar="EXERCISE.py",
        help="cut all that its train functions do not run, if its hold functions then pass: smaller, and unsafe against clients",
    )
    one.add_argument("--no-cache", action="store_true", help="build even if the same inputs were built before")
    one.add_argument("--cache", type=Path, metavar="DIR", help="where modules and tools are kept; by default ~/.cache/proxy-wasm")
    one.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    one.set_defaults(run=_build)
    one = commands.add_parser("inspect", help="what a module needs, gives and weighs")
    one.add_argument("module", type=Path, metavar="FILTER.wasm")
    one.add_argument("--json", action="store_true", help="print JSON, for scripts")
    one.set_defaults(run=_inspect)
    one = commands.add_parser("tools", help="install what a build needs, ahead of the first build")
    one.add_argument("--cache", type=Path, metavar="DIR", help="where modules and tools are kept; by default ~/.cache/proxy-wasm")
    one.set_defaults(run=_tools)
    return parser


def _build(parsed: argparse.Namespace) -> None:
    options = Options(
        search=tuple(parsed.python_path),
        include=tuple(parsed.include),
        trimmed=not parsed.no_trim,
        compiler=parsed.keep_compiler,
        profile=parsed.profile,
        cached=not parsed.no_cache,
        cache=parsed.cache,
    )
    tell = _silent if parsed.quiet else _print
    made = build(parsed.source, parsed.output, options, tell)
    tell(f"{parsed.output} is {'made' if made else 'as it was built before'}")
    if parsed.profile:
        print(WARNING, file=sys.stderr)


def _inspect(parsed: argparse.Namespace) -> None:
    content = parsed.module.read_bytes()
    try:
        module = Module.parse(content)
        told = _told(module, content)
    except FormatError as error:
        raise FormatError(f"{parsed.module}: {error}") from None
    if told["abi"] is None:
        raise FormatError(f"{parsed.module} is no filter: it exports no {ABI_MARKER}")
    if parsed.json:
        print(json.dumps(told, indent=2))
        return
    for key, value in told.items():
        if isinstance(value, dict):
            print(f"{key}:", *(f"  {name}: {one}" for name, one in value.items()), sep="\n")
        elif isinstance(value, list):
            print(f"{key}:", *(f"  {one}" for one in value), sep="\n")
        else:
            print(f"{key}: {value}")


def _told(module: Module, content: bytes) -> dict[str, object]:
    names = {item.name for item in module.exports}
    return {
        "abi": "0.2.1" if ABI_MARKER in names else None,
        "bytes": len(content),
        "gzip_bytes": len(gzip.compress(content, 6)),
        "functions": len(module.function_types),
        "sections_bytes": module.sizes(),
        "imports": [f"{item.module}.{item.name}" for item in module.imports],
        "exports": sorted(names),
        "build": facts(module),
    }


def _tools(parsed: argparse.Namespace) -> None:
    tools.componentize_py()
    found = tools.binaryen(folder=(parsed.cache or tools.cache_folder()) / "tools", tell=_print)
    print(f"componentize-py {tools.COMPONENTIZE_PY}, binaryen {found.version} in {found.folder}")


def _print(line: str) -> None:
    print(line, flush=True)


def _silent(line: str) -> None:
    pass
