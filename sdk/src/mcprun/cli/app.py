"""The commands and their options."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mcprun.cli.failure import EXIT_CODES, CommandFailed, ExitCode

app = typer.Typer(
    name="mcprun",
    help="A self-hosted inference mesh: one command serves your ONNX models over HTTP and gRPC.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(name="models", help="What is loaded; load and unload models.", no_args_is_help=True)
app.add_typer(models_app)
edge_app = typer.Typer(name="edge", help="The edge filter: canary tags, circuit breakers, tenants.", no_args_is_help=True)
app.add_typer(edge_app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="MCPRUN_URL", help="The mesh. By default the one that runs in this folder, else http://127.0.0.1:8080."),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The workspace's folder.", show_default="this folder")]


def _version(wanted: bool) -> None:
    if wanted:
        from mcprun import __version__

        typer.echo(f"mcprun {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def init(
    folder: Folder = Path(),
    version: Annotated[str, typer.Option("--version", help="The version of mcprun that the workspace is for.")] = "2026.3.1",
    json: Json = False,
) -> None:
    """Make a workspace: mcprun.yaml and a sample model."""
    from mcprun.cli.initialise import initialise

    initialise(folder, version=version, as_json=json)


@app.command()
def serve(
    folder: Folder = Path(),
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="In place of the port in mcprun.yaml.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="In place of the number of workers in mcprun.yaml.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the demo models, whatever the folder holds.")] = False,
    wasm: Annotated[bool, typer.Option("--wasm/--no-wasm", help="With or without the edge filter: canary tags, circuit breaking.")] = True,
    json: Json = False,
) -> None:
    """Run the mesh. In a folder without mcprun.yaml it serves the demo models. Ctrl-C drains and stops it."""
    from mcprun.cli.serve import serve as run

    run(folder, port=port, workers=workers, demo=demo, wasm=wasm, as_json=json)


@app.command()
def infer(
    model: Model,
    value: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE|JSON|TEXT",
            help="A .json file, any other file for a model that takes files (an image, say), JSON, plain text for a model "
            "that takes text, or - for standard input.",
        ),
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="A version of the model, by number.")] = None,
    routing: Annotated[str | None, typer.Option("--routing", help="The x-routing header, such as v2-canary.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Run one inference."""
    from mcprun.cli.infer import infer as run

    run(model, value, version=version, routing=routing, url=url, as_json=json)


@models_app.command("list")
def models_list(url: Url = None, json: Json = False) -> None:
    """Each model version and its state."""
    from mcprun.cli.models import list_models

    list_models(url, as_json=json)


@models_app.command("load")
def models_load(model: Model, url: Url = None, json: Json = False) -> None:
    """Load a model, or load it anew when its files changed. Returns once it is warm."""
    from mcprun.cli.models import load

    load(model, url, as_json=json)


@models_app.command("unload")
def models_unload(model: Model, url: Url = None, json: Json = False) -> None:
    """Unload a model, after its accepted requests are answered."""
    from mcprun.cli.models import unload

    unload(model, url, as_json=json)


Policy = Annotated[Path | None, typer.Argument(metavar="[POLICY.yaml]", help="The edge filter's policy.", show_default=False)]
Module = Annotated[Path | None, typer.Option("--module", metavar="FILTER.wasm", help="The edge filter's module.")]
Workspace = Annotated[Path, typer.Option("--folder", help="The folder in which the mesh runs.", show_default="this folder")]


@edge_app.command("check")
def edge_check(policy: Policy = None, module: Module = None, json: Json = False) -> None:
    """Say what is wrong with a policy or a module, before an edge is given it."""
    from mcprun.cli.edge import check

    check(policy, module=module, as_json=json)


@edge_app.command("apply")
def edge_apply(
    policy: Policy = None,
    module: Module = None,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to what the mesh was started with.")] = False,
    folder: Workspace = Path(),
    filter_folder: Annotated[
        Path | None, typer.Option("--filter-folder", help="The folder `filter` in the runtime folder of an edge that runs by itself.")
    ] = None,
    json: Json = False,
) -> None:
    """Give the running edge a policy or a module. No request fails; what cannot be loaded changes nothing."""
    from mcprun.cli.edge import apply

    apply(folder, policy, module=module, reset=reset, filter_folder=filter_folder, as_json=json)


@edge_app.command("status")
def edge_status(
    folder: Workspace = Path(),
    address: Annotated[
        str | None, typer.Option("--address", metavar="unix:PATH|HOST:PORT", help="The status_address of an edge that runs by itself.")
    ] = None,
    json: Json = False,
) -> None:
    """Each breaker: its state, since when, and why."""
    from mcprun.cli.edge import status as show

    show(folder, address=address, as_json=json)


@app.command()
def status(folder: Folder = Path(), url: Url = None, json: Json = False) -> None:
    """Each process and each model of the mesh that runs here."""
    from mcprun.cli.status import status as show

    show(folder, url=url, as_json=json)


@app.command()
def doctor(
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="The port that the mesh shall have. By default the workspace's, else 8080.")
    ] = None,
    json: Json = False,
) -> None:
    """What this machine lacks, and how to get it. Exit code 1 when the mesh cannot run here."""
    from mcprun.cli.doctor import doctor as examine

    examine(port=port, as_json=json)


def main() -> None:
    """The console script `mcprun`."""
    try:
        app()
    except CommandFailed as failure:
        for index, line in enumerate(failure.lines):
            print(f"mcprun: {line}" if index == 0 else line, file=sys.stderr)
        raise SystemExit(int(failure.code)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(ExitCode.INTERRUPTED)) from None
    except BrokenPipeError:
        # The reader of a pipe has left; keep the interpreter from saying so when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(ExitCode.FAILED)) from None
