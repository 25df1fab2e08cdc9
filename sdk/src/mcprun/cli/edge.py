"""mcprun edge: the edge filter's policy, module and state."""

import os
import time
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.cli.mesh_client import running
from mcprun.cli.output import console, duration, print_json, print_table
from mcprun.document import ConfigError
from mcprun.edge.breakers import EdgeStatus, NodeBreaker, NoStatus, NothingAnswers, ask
from mcprun.edge.delivery import FILTER_FOLDER, DeliveryState, Wanted, outcome
from mcprun.edge.policy import load_policy
from mcprun.supervisor.folders import FolderError, RunFolders, run_folders
from mcprun.workspace import DATA_FOLDER

_COLOURS = {"closed": "green", "open": "red", "half-open": "yellow"}
_MAGIC = b"\0asm\x01\0\0\0"


def check(policy: Path | None, *, module: Path | None, as_json: bool) -> None:
    """Says whether the edge would take a policy or a module, without giving it to one. Raises CommandFailed when it would not."""
    if policy is None and module is None:
        raise CommandFailed(ExitCode.USAGE, "nothing to check: name a policy, or a module with --module")
    _check(policy, module)
    if as_json:
        print_json({"ok": True})
        return
    for path in filter(None, (policy, module)):
        console().print(f"{path} is good.")


def apply(folder: Path, policy: Path | None, *, module: Path | None, reset: bool, filter_folder: Path | None, as_json: bool) -> None:
    """Gives a policy or a module to a running edge, and waits for what comes of it. Raises CommandFailed when it is refused."""
    if reset == (policy is not None or module is not None):
        raise CommandFailed(ExitCode.USAGE, "name a policy, a module with --module, or --reset alone")
    _check(policy, module)
    target = filter_folder or _folders(folder).edge_runtime / FILTER_FOLDER
    if DeliveryState.read(target) is None:
        raise CommandFailed(ExitCode.FAILED, f"no edge filter runs out of {target}: was the mesh started with --no-wasm?")
    wanted = Wanted(target)
    try:
        request = wanted.take_back() if reset else wanted.ask(policy=policy, module=module)
        state = outcome(target, request, timeout=90)
    except TimeoutError as error:
        raise CommandFailed(ExitCode.UNREACHABLE, f"{error}; what is wanted stays in {target}") from error
    except OSError as error:
        raise CommandFailed(ExitCode.FAILED, f"{error.filename or target}: {error.strerror or error}") from error
    if as_json:
        print_json(asdict(state))
    if state.outcome != "applied":
        raise CommandFailed(ExitCode.FAILED, f"the edge keeps what it had: {state.reason}")
    if not as_json:
        kept = "" if reset else " It holds until the mesh stops; to keep a policy, name it in mcprun.yaml as edge.policy."
        console().print(f"Applied: policy {state.policy}, module {state.module}.{kept}")


def status(folder: Path, *, address: str | None, as_json: bool) -> None:
    """Prints the state of every breaker."""
    run = None if address else _folders(folder)
    try:
        told = ask(address or _folders(folder).socket("edge-status"))
    except NoStatus as error:
        why = ("Was the mesh started with --no-wasm?",) if run and isinstance(error, NothingAnswers) else ()
        raise CommandFailed(ExitCode.UNREACHABLE, str(error), *why) from error
    delivered = DeliveryState.read(run.edge_runtime / FILTER_FOLDER) if run else None
    if as_json:
        print_json({**told.model_dump(), "delivery": asdict(delivered) if delivered else None})
        return
    _print(told, delivered)


def _check(policy: Path | None, module: Path | None) -> None:
    try:
        if policy is not None:
            load_policy(policy)
    except ConfigError as error:
        raise CommandFailed(ExitCode.USAGE, f"{policy} has mistakes:", *map(str, error.problems)) from error
    if module is None:
        return
    try:
        with module.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise CommandFailed(ExitCode.USAGE, f"{module}: {(error.strerror or '').lower()}") from error
    if start != _MAGIC:
        raise CommandFailed(ExitCode.USAGE, f"{module}: expected a WebAssembly core module, got a file that begins with {start!r}")


def _folders(folder: Path) -> RunFolders:
    if running(folder) is None:
        raise CommandFailed(ExitCode.UNREACHABLE, f"no mesh runs in {folder.resolve()}")
    try:
        return run_folders((folder / DATA_FOLDER).resolve(), os.environ)
    except FolderError as error:
        raise CommandFailed(ExitCode.FAILED, str(error)) from error


def _print(told: EdgeStatus, delivered: DeliveryState | None) -> None:
    out = console()
    out.print(f"environment {told.environment}" + (f", policy {delivered.policy}, module {delivered.module}" if delivered else ""))
    if delivered is not None and delivered.outcome == "rejected":
        out.print(Text(f"what was asked for last is not what runs: {delivered.reason}", "red"))
    if not told.fleets:
        out.print("No requests yet.")
        return
    now = time.time()
    out.print()
    print_table(
        ("tenant", "model", "side", "node", "state", "for", "again in", "failed", "in a row", "probes", "reason"),
        [(fleet.tenant, fleet.model or "-", fleet.side or "-", *_row(node, now)) for fleet in told.fleets for node in fleet.nodes],
        right=("for", "again in", "failed", "in a row", "probes"),
    )


def _row(node: NodeBreaker, now: float) -> tuple[str | Text, ...]:
    return (
        node.node,
        Text(node.state, style=_COLOURS[node.state]),
        duration(max(0.0, now - node.since_seconds)) if node.since_seconds else "",
        duration(max(0.0, node.until_seconds - now)) if node.until_seconds is not None else "",
        f"{node.failures} of {node.requests}",
        str(node.consecutive_failures),
        str(node.probes),
        node.reason,
    )
