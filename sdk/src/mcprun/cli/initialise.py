"""mcprun init: a workspace with a sample model."""

import re
from importlib.resources import as_file, files
from pathlib import Path

from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.cli.output import console, print_json
from mcprun.workspace import DATA_FOLDER, FILENAME

SAMPLE = "colors"
_VERSION = re.compile(r"^\d{4}\.\d+\.\d+$")


def initialise(folder: Path, *, version: str, as_json: bool) -> None:
    """Makes the workspace. Raises CommandFailed when there is one already, or when it cannot be written."""
    if not _VERSION.match(version):
        raise CommandFailed(ExitCode.USAGE, f"--version: a version such as 2026.3.1 is expected, got {version!r}")
    if (folder / FILENAME).exists():
        raise CommandFailed(ExitCode.FAILED, f"{folder / FILENAME} exists already; nothing was changed")
    try:
        made = _write(folder, version)
    except OSError as error:
        raise CommandFailed(ExitCode.FAILED, f"cannot write {error.filename}: {error.strerror}") from error
    if as_json:
        print_json({"folder": str(folder.resolve()), "files": [str(path) for path in made]})
        return
    out = console()
    out.print(f"Made a workspace in {folder.resolve()}:")
    for path in made:
        out.print(f"  {path}")
    out.print()
    out.print("Serve it, then ask it in another terminal:")
    if folder.resolve() != Path.cwd():
        out.print(f"  cd {folder}")
    out.print("  mcprun serve")
    out.print(f"  mcprun infer {SAMPLE} --input '[[250, 30, 20]]'")


def _write(folder: Path, version: str) -> list[Path]:
    """Writes what is not there yet; returns the paths, relative to the folder."""
    made: list[Path] = []
    with as_file(files("mcprun.sample")) as sample:
        wanted = {
            Path("models", path.relative_to(sample)): path.read_bytes() for path in sorted((sample / SAMPLE).rglob("*")) if path.is_file()
        }
        # The file that makes a folder a workspace comes last, so that a run that was cut off can be made again.
        settings = (sample / FILENAME).read_text(encoding="utf-8").replace("@VERSION@", version)
    wanted[Path(".gitignore")] = f"/{DATA_FOLDER}/\n".encode()
    wanted[Path(FILENAME)] = settings.encode()
    for path, content in wanted.items():
        target = folder / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            made.append(path)
    return made
