"""mcprun models list | load | unload."""

from pathlib import Path
from typing import Any

from rich.text import Text

from mcprun.cli.mesh_client import MeshClient, find_url
from mcprun.cli.output import console, print_json, print_table

_COLOURS = {"READY": "green", "LOADING": "yellow", "UNAVAILABLE": "red"}


def list_models(url: str | None, *, as_json: bool) -> None:
    """Prints each model version and its state."""
    with MeshClient(find_url(url, Path())) as mesh:
        models = mesh.index()
    if as_json:
        print_json(models)
    elif models:
        print_models(models)
    else:
        console().print("No models.")


def print_models(models: list[dict[str, Any]]) -> None:
    """A table of model versions, as the repository index tells them."""
    print_table(("model", "version", "state", "reason"), [_row(model) for model in models])


def load(model: str, url: str | None, *, as_json: bool) -> None:
    """Loads a model."""
    with MeshClient(find_url(url, Path()), seconds=600) as mesh:
        mesh.load(model)
    _done(model, "loaded", as_json=as_json)


def unload(model: str, url: str | None, *, as_json: bool) -> None:
    """Unloads a model."""
    with MeshClient(find_url(url, Path()), seconds=600) as mesh:
        mesh.unload(model)
    _done(model, "unloaded", as_json=as_json)


def _done(model: str, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"model": model, "done": what})
    else:
        console().print(f"{model} is {what}.")


def _row(model: dict[str, Any]) -> tuple[str | Text, ...]:
    state = str(model.get("state", ""))
    return (
        str(model.get("name", "")),
        str(model.get("version", "")),
        Text(state or "UNKNOWN", style=_COLOURS.get(state, "")),
        str(model.get("reason", "")),
    )
