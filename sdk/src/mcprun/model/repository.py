"""A model repository: a folder with a folder for each model."""

from pathlib import Path

from mcprun.model.config import FILENAME


def model_folders(repository: Path) -> list[Path]:
    """The folders of the repository that hold a model.yaml, by name. Hidden folders are passed over.

    Raises OSError when the repository cannot be read.
    """
    return sorted(path for path in repository.iterdir() if not path.name.startswith(".") and (path / FILENAME).is_file())
