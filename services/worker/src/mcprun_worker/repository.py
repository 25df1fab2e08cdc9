"""The model folders, and when they changed."""

from dataclasses import dataclass
from pathlib import Path

from mcprun.errors import InvalidInput, NotFound
from mcprun.model.config import FILENAME, ModelConfig, ModelConfigError, load_model_config
from mcprun.model.repository import model_folders


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Tells whether the files of a folder changed: their names, sizes and times of change."""

    files: tuple[tuple[str, int, int], ...]


class Repository:
    """A folder with a folder for each model."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The models' names. Raises NotFound when the folder cannot be read."""
        try:
            return [folder.name for folder in model_folders(self.path)]
        except OSError as error:
            raise NotFound(f"the model repository {self.path} cannot be read: {error.strerror}") from error

    def folder(self, name: str) -> Path:
        """A model's folder. Raises NotFound, also for a name that is none."""
        folder = self.path / name
        try:
            found = "/" not in name and name not in ("", ".", "..") and (folder / FILENAME).is_file()
        except (OSError, ValueError):  # no name of a file at all, such as one that is too long
            found = False
        if not found:
            raise NotFound(f"the model repository has no model {name[:200]!r}")
        return folder

    def config(self, name: str) -> ModelConfig:
        """A model's configuration. Raises NotFound, and InvalidInput with every mistake in it."""
        try:
            return load_model_config(self.folder(name) / FILENAME)
        except ModelConfigError as error:
            raise InvalidInput("; ".join(map(str, error.problems))) from None

    def fingerprint(self, name: str) -> Fingerprint:
        """The state of a model's files. Raises NotFound, and InvalidInput when a file is being taken away."""
        folder = self.folder(name)
        files = []
        try:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    stat = path.stat()
                    files.append((str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns))
        except OSError as error:
            raise InvalidInput(f"the folder of model {name!r} cannot be read: {error.filename}: {error.strerror}") from error
        return Fingerprint(tuple(files))
