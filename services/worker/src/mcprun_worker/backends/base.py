"""The contract of a backend, and how backends are found.

A backend is a class that an entry point of the group `mcprun.backends` names. Any installed distribution can bring one:

    [project.entry-points."mcprun.backends"]
    myformat = "my_package.backend:MyBackend"
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from mcprun.errors import InvalidInput

Array = npt.NDArray[Any]
GROUP = "mcprun.backends"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a graph."""

    name: str
    datatype: str
    """In the vocabulary of the Open Inference Protocol."""
    shape: tuple[int, ...]
    """-1 where an extent is free."""
    symbols: tuple[str, ...] = ()
    """The names of free extents where the file has them, "" elsewhere; as long as `shape`, or empty."""


class Session(Protocol):
    """A loaded model file. `run` is called from several threads at the same time when the model has several instances."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Runs the graph. BYTES tensors are object arrays of str; BF16 ones are uint16 arrays of the same bits.

        Raises InvalidInput when the inputs do not fit the graph, any other exception when the run fails.
        """

    def close(self) -> None:
        """Frees what it holds. Not called while `run` is."""


class Backend(Protocol):
    """A kind of model file. Made once a process, without arguments."""

    platform: str
    """Its name in the vocabulary of the Open Inference Protocol, such as `onnxruntime_onnx`."""

    def load(self, path: Path, *, threads: int, device: str) -> Session:
        """Loads a model file.

        `threads` is how many threads one run may use; `device` is auto, cpu or cuda. Raises InvalidInput that says what is
        wrong with the file, FailedPrecondition when this machine cannot run it.
        """


def find(name: str) -> Backend:
    """The backend of a name. Raises InvalidInput when none is installed under it."""
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(point.name for point in entry_points(group=GROUP)))
        raise InvalidInput(f"backend: one of {known} expected, got {name!r}")
    try:
        backend: Backend = next(iter(found)).load()()
    except Exception as error:
        # A plug-in is a stranger's code: whatever it raises is told as a fault of that model alone.
        raise InvalidInput(f"backend {name!r} cannot be used: {type(error).__name__}: {error}") from error
    return backend
