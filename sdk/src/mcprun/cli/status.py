"""mcprun status: each process and each model of a running mesh."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.text import Text

from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.cli.mesh_client import MeshClient, find_url, running
from mcprun.cli.models import print_models
from mcprun.cli.output import console, duration, print_json, print_table, size
from mcprun.supervisor.state import ProcessStatus

_COLOURS = {"running": "green", "starting": "yellow", "waiting": "red", "stopping": "yellow"}


def status(folder: Path, *, url: str | None, as_json: bool) -> None:
    """Prints the processes of the mesh that runs in this folder, if one does, and the models of the mesh that is reached."""
    run = None if url else running(folder)
    with MeshClient(run.url if run else find_url(url, folder), seconds=5) as mesh:
        try:
            ready = mesh.ready()
            models = mesh.index() if ready or run is None else _models(mesh)
        except CommandFailed as failure:
            # The processes are worth showing even when the edge does not answer.
            if run is None or failure.code != ExitCode.UNREACHABLE:
                raise
            ready, models = False, []
        answer: dict[str, Any] = {"url": mesh.url, "ready": ready, "models": models}
    now = time.time()
    if run is not None:
        answer["supervisor_pid"] = run.pid
        answer["uptime_seconds"] = round(now - run.started_at, 1)
        answer["processes"] = [_process(process, now) for process in run.processes]
    if as_json:
        print_json(answer)
        return
    _print(answer)


def _models(mesh: MeshClient) -> list[dict[str, Any]]:
    try:
        return mesh.index()
    except CommandFailed:
        return []


def _process(process: ProcessStatus, now: float) -> dict[str, Any]:
    values = asdict(process)
    values["uptime_seconds"] = round(now - process.started_at, 1) if process.started_at and process.pid else None
    values["memory_bytes"] = None
    if process.pid:
        values["memory_bytes"] = _resident_bytes(process.pid)
    return values


def _resident_bytes(pid: int) -> int | None:
    """Resident memory of a process with its children, such as the edge's Envoy; None when it is gone."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return None


def _print(answer: dict[str, Any]) -> None:
    line = Text(f"{answer['url']} is ")
    line.append("ready", "green") if answer["ready"] else line.append("not ready", "red")
    if "supervisor_pid" in answer:
        line.append(f", up {duration(answer['uptime_seconds'])}, supervisor pid {answer['supervisor_pid']}")
    console().print(line)
    processes = answer.get("processes", [])
    if processes:
        console().print()
        print_table(
            ("process", "state", "pid", "uptime", "restarts", "memory", "address", "metrics"),
            [
                (
                    process["name"],
                    Text(process["state"], style=_COLOURS.get(process["state"], "")),
                    str(process["pid"] or ""),
                    duration(process["uptime_seconds"]) if process["uptime_seconds"] is not None else "",
                    str(process["restarts"]),
                    size(process["memory_bytes"]) if process["memory_bytes"] is not None else "",
                    process["address"],
                    process["metrics_address"],
                )
                for process in processes
            ],
            right=("pid", "uptime", "restarts", "memory"),
        )
    if answer["models"]:
        console().print()
        print_models(answer["models"])
