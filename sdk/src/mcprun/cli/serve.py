"""mcprun serve: the mesh in the foreground."""

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from mcprun.cli.console import ConsoleReporter, JsonReporter, ServeReporter
from mcprun.cli.examples import commands, demo_commands
from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.cli.mesh_client import MeshClient
from mcprun.cli.output import console
from mcprun.document import ConfigError
from mcprun.supervisor.folders import FolderError, run_folders
from mcprun.supervisor.launch import AddressTaken, Launch
from mcprun.supervisor.plan import Listening, MissingService
from mcprun.supervisor.state import AlreadyRunning, RunLock
from mcprun.supervisor.supervisor import StartFailed, Supervisor
from mcprun.workspace import DATA_FOLDER, FILENAME, Workspace, load_workspace


@dataclass(frozen=True, slots=True)
class Served:
    """What is served out of a folder."""

    workspace: Workspace
    models: Path
    demo: bool


def serve(folder: Path, *, port: int | None, workers: int | None, demo: bool, wasm: bool, as_json: bool) -> None:
    """Runs the mesh until it is told to stop. Raises CommandFailed when it cannot be brought up."""
    reporter: ServeReporter = JsonReporter() if as_json else ConsoleReporter(console(stderr=False))
    if not folder.is_dir():
        raise CommandFailed(ExitCode.USAGE, f"{folder} is no folder; `mcprun init {folder}` makes a workspace there")
    lock = RunLock(folder / DATA_FOLDER / "run.lock")
    try:
        served = _served(folder, demo=demo)
        lock.acquire()
        listening = Listening(served.workspace.edge.host, port or served.workspace.edge.port)
        launch = Launch(
            served.workspace,
            served.models,
            run_folders((folder / DATA_FOLDER).resolve(), os.environ),
            listening,
            workers or served.workspace.workers,
            wasm=wasm,
        )
        launch.check()
        if served.demo:
            _prepare_demo(served.models, reporter)
        told = _tell_model_mistakes(served.models, reporter)
        asyncio.run(_run(launch, reporter, demo=served.demo, told=told))
    except ConfigError as error:
        raise CommandFailed(ExitCode.USAGE, "mistakes in the configuration:", *map(str, error.problems)) from error
    except AlreadyRunning as error:
        raise CommandFailed(ExitCode.ALREADY_RUNNING, str(error)) from error
    except MissingService as error:
        hint = 'Install them with: pip install "mcprun[local]". `mcprun doctor` says what else this machine lacks.'
        raise CommandFailed(ExitCode.FAILED, str(error), hint) from error
    except AddressTaken as error:
        raise CommandFailed(ExitCode.PORT_TAKEN, str(error), f"Choose another with --port N, or with edge.port in {FILENAME}.") from error
    except StartFailed as error:
        raise CommandFailed(ExitCode.FAILED, str(error), f"Its log is in {folder / DATA_FOLDER / 'logs'}.") from error
    except FolderError as error:
        raise CommandFailed(ExitCode.FAILED, str(error)) from error
    except OSError as error:
        raise CommandFailed(ExitCode.FAILED, f"{error.filename or folder}: {error.strerror or error}") from error
    finally:
        reporter.close()
        lock.release()


def _served(folder: Path, *, demo: bool) -> Served:
    file = folder / FILENAME
    if demo or not file.exists():
        workspace = Workspace(log_level="info", default_model="filetype")
        return Served(workspace, (folder / DATA_FOLDER / "demo" / "models").resolve(), True)
    workspace = load_workspace(file)
    return Served(workspace, (folder / workspace.models).resolve(), False)


def _prepare_demo(models: Path, reporter: ServeReporter) -> None:
    from mcprun.demo.models import DemoError, prepare

    try:
        prepare(models, reporter.step)
    except DemoError as error:
        raise CommandFailed(ExitCode.FAILED, str(error), *error.remedies) from error


def _tell_model_mistakes(models: Path, reporter: ServeReporter) -> set[str]:
    """Tells what is wrong with each model.yaml; returns the names of those models. The others are served all the same."""
    from mcprun.model.config import FILENAME as MODEL_FILENAME
    from mcprun.model.config import load_model_config
    from mcprun.model.repository import model_folders

    folders = model_folders(models)
    if not folders:
        reporter.note(f"{models} holds no models: each has a folder with a {MODEL_FILENAME}", style="yellow")
    told: set[str] = set()
    for model in folders:
        try:
            load_model_config(model / MODEL_FILENAME)
        except ConfigError as error:
            told.add(model.name)
            reporter.note(f"{model.name} is not served:", style="red")
            for problem in error.problems:
                reporter.note(f"  {problem}")
    return told


async def _run(launch: Launch, reporter: ServeReporter, *, demo: bool, told: set[str]) -> None:
    supervisor = launch.supervisor(reporter)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    greeting = asyncio.create_task(_greet(supervisor, launch, reporter, demo=demo, told=told))
    try:
        await supervisor.run()
    finally:
        greeting.cancel()
        await asyncio.gather(greeting, return_exceptions=True)
        launch.folders.remove_sockets()
    if supervisor.stopped_at_once:
        raise CommandFailed(ExitCode.INTERRUPTED, "ended at once; accepted requests may be unanswered")
    reporter.note("Stopped.")


async def _greet(supervisor: Supervisor, launch: Launch, reporter: ServeReporter, *, demo: bool, told: set[str]) -> None:
    """Says what listens, and what to try, once the mesh is ready."""
    await supervisor.ready.wait()
    for line in await asyncio.to_thread(_greeting, launch, demo=demo, told=told):
        reporter.note(line)


def _greeting(launch: Launch, *, demo: bool, told: set[str]) -> list[str]:
    url, target = launch.listening.url, launch.listening.target
    with MeshClient(url, seconds=5) as mesh:
        try:
            index = mesh.index()
        except CommandFailed:
            index = []
        ready = sorted({str(model["name"]) for model in index if model.get("state") == "READY"})
        failed = [model for model in index if model.get("state") != "READY" and model["name"] not in told]
        tries = demo_commands(url, target) if demo else commands(mesh, ready, target)
    return [
        "",
        f"HTTP and gRPC   {target}",
        f"models          {', '.join(ready) or 'none'}, out of {launch.models}",
        *(f"not served      {model['name']} {model.get('version', '')}: {model.get('reason', '')}" for model in failed),
        f"logs            {launch.folders.logs}",
        "",
        "Try, in another terminal:",
        *(f"  {command}" for command in tries),
        "",
        "Ctrl-C stops it, after accepted requests are answered.",
    ]
