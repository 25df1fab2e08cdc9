"""Where sockets, logs and the state of a run are."""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOCKET_PATH_BYTES = 107
"""The longest path of a unix socket (sun_path of Linux, without its final zero byte)."""
_LONGEST_NAME = len("worker-999.sock")


class FolderError(Exception):
    """A folder cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The folders of one run."""

    data: Path
    """`.mcprun` of a workspace: logs and state; outlives the run."""
    sockets: Path
    """Short, private to the user, gone after the run."""

    @property
    def logs(self) -> Path:
        """One file a process, NAME.log."""
        return self.data / "logs"

    @property
    def state(self) -> Path:
        """What runs now, as JSON."""
        return self.data / "run.json"

    @property
    def lock(self) -> Path:
        """Held for as long as the mesh of this workspace runs."""
        return self.data / "run.lock"

    @property
    def services_config(self) -> Path:
        """The settings that all services are given."""
        return self.data / "services.yaml"

    @property
    def edge_runtime(self) -> Path:
        """Where the edge puts what it renders."""
        return self.data / "edge"

    def socket(self, name: str) -> str:
        """The gRPC target of a socket."""
        return f"unix:{self.sockets / f'{name}.sock'}"

    def log(self, name: str) -> Path:
        """A process's log."""
        return self.logs / f"{name}.log"

    def prepare(self) -> None:
        """Makes the folders, and removes sockets that an earlier run left. Call it with the lock held. Raises FolderError."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            # What an edge of an earlier run was given does not outlive that run.
            shutil.rmtree(self.edge_runtime, ignore_errors=True)
            self.edge_runtime.mkdir(parents=True)
            shutil.rmtree(self.sockets, ignore_errors=True)
            self.sockets.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise FolderError(f"cannot make {error.filename}: {error.strerror}") from error

    def remove_sockets(self) -> None:
        """Removes the folder of sockets."""
        shutil.rmtree(self.sockets, ignore_errors=True)


def run_folders(data: Path, environ: Mapping[str, str]) -> RunFolders:
    """The folders for a workspace's data folder.

    The sockets go under $XDG_RUNTIME_DIR, or under a folder of the user's own in the temporary folder, since a socket's path
    must be short. Raises FolderError when neither will do.
    """
    key = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:10]
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir() and os.access(runtime, os.W_OK) and _fits(Path(runtime) / "mcprun" / key):
        return RunFolders(data, Path(runtime) / "mcprun" / key)
    sockets = private_folder() / key
    if not _fits(sockets):
        raise FolderError(f"the temporary folder's path is too long for sockets: at most {SOCKET_PATH_BYTES} bytes, got {sockets}")
    return RunFolders(data, sockets)


def private_folder() -> Path:
    """`mcprun-UID` in the temporary folder, which nobody else may enter. Raises FolderError when another user has made it."""
    folder = Path(tempfile.gettempdir()) / f"mcprun-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise FolderError(f"cannot make {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise FolderError(f"{folder} must be a folder that only its owner can enter; remove it or set XDG_RUNTIME_DIR")
    return folder


def _fits(sockets: Path) -> bool:
    return len(os.fsencode(sockets)) + 1 + _LONGEST_NAME <= SOCKET_PATH_BYTES
