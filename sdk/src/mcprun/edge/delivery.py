"""How a policy or a module reaches a running edge, and what came of it: three files in a folder of the edge."""

import json
import shutil
import time
import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

FILTER_FOLDER = "filter"
"""Where they are, in the edge's runtime folder."""
STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """What the edge made of what it was last given."""

    request: str = ""
    """Which request it answers; empty: it was a file that changed, or the start."""
    policy: str = ""
    """Digest of the policy that was wanted."""
    module: str = ""
    """Digest of the module that was wanted."""
    version: str = ""
    """What Envoy knows both as."""
    outcome: str = ""
    """`applied` or `rejected`."""
    reason: str = ""
    """Why it was rejected."""
    at_seconds: float = 0.0
    """When, in seconds since the epoch."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What stands in the folder; None before anything was delivered, and when an edge of another version says what is no state."""
        try:
            values = json.loads((folder / STATE_FILE).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(values, dict):
            return None
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        if any(not isinstance(value, (int, float) if name == "at_seconds" else str) for name, value in known.items()):
            return None
        return cls(**known)


class Wanted:
    """The files by which an operator says what the edge filter shall be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = folder / "wanted-policy.yaml"
        self.module = folder / "wanted-module.wasm"
        self._request = folder / "wanted"

    def request(self) -> str:
        """Names what was asked for last; empty when nothing was."""
        try:
            return self._request.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def ask(self, *, policy: Path | None, module: Path | None) -> str:
        """Asks the edge to run this policy or this module; returns the name of the request. Raises OSError."""
        name = uuid.uuid4().hex
        for source, target in ((policy, self.policy), (module, self.module)):
            if source is not None:
                copy = target.with_name(f".{target.name}.{name}")
                shutil.copyfile(source, copy)
                copy.replace(target)
        return self._named(name)

    def take_back(self) -> str:
        """Asks the edge to run what it was started with; returns the name of the request. Raises OSError."""
        self.policy.unlink(missing_ok=True)
        self.module.unlink(missing_ok=True)
        return self._named(uuid.uuid4().hex)

    def keep(self) -> None:
        """What is wanted now works: it is what `go_back` goes back to."""
        for path in (self.policy, self.module):
            _link(path, _kept(path))

    def go_back(self) -> None:
        """Wants what worked last."""
        for path in (self.policy, self.module):
            _link(_kept(path), path)

    def _named(self, name: str) -> str:
        temporary = self._request.with_name(f".{self._request.name}.{name}")
        temporary.write_text(name, encoding="utf-8")
        temporary.replace(self._request)
        return name


def outcome(folder: Path, request: str, *, timeout: float) -> DeliveryState:
    """What came of a request. Raises TimeoutError when the edge says nothing within `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        state = DeliveryState.read(folder)
        if state is not None and state.request == request:
            return state
        time.sleep(0.05)
    raise TimeoutError(f"the edge said nothing for {timeout:g} s")


def _kept(path: Path) -> Path:
    return path.with_name(f"applied-{path.name.removeprefix('wanted-')}")


def _link(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or takes it away when there is none."""
    temporary = target.with_name(f".{target.name}.link")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(source)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
        return
    temporary.replace(target)
    # Two names of one file: renaming one to the other does nothing, and leaves it.
    temporary.unlink(missing_ok=True)
