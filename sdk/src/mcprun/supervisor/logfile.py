"""Bounded log files, and what is worth showing of them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

MAX_BYTES = 16 * 1024 * 1024
KEPT = 1
"""Older files that are kept beside the one that is written, NAME.log.1 and so on."""

Level = Literal["debug", "info", "warning", "error"]

_LEVELS: dict[str, Level] = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "error",
    "exception": "error",
}
# [2026-01-01 00:00:00.000][pid][level][component] [file:line] text
_ENVOY = re.compile(r"^\[[^\]]+\]\[\d+\]\[(?P<level>\w+)\]\[[^\]]+\]\s*(?:\[[^\]]+\]\s*)?(?P<text>.*)$")
_BORING = frozenset({"timestamp", "level", "event", "logger", "service_name", "trace_id", "span_id", "exception", "stack_info"})


class LogFile:
    """A file that is moved aside once it holds `max_bytes`, so that a process's logs take at most `KEPT` + 1 times that."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = path.open("ab")
        self._size = path.stat().st_size

    def write(self, line: bytes) -> None:
        """Appends one line, which ends in a newline. A full disk loses lines rather than the process that wrote them."""
        try:
            if self._file is None or (self._size and self._size + len(line) > self._max_bytes):
                self._rotate()
            if self._file is not None:
                self._file.write(line)
                self._file.flush()
                self._size += len(line)
        except OSError:
            self._size = 0

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT, 0, -1):
            older = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number}"))
        self._file = self.path.open("ab")
        self._size = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a process, understood as far as it goes."""

    level: Level
    text: str
    """In short form, for a person."""


def understand(line: str) -> LogLine:
    """A line of a service (JSON), of Envoy, or of anything else, which counts as info."""
    line = line.rstrip()
    if line.startswith("{"):
        try:
            event = json.loads(line)
        except ValueError:
            return LogLine("info", line)
        if isinstance(event, dict):
            return LogLine(_LEVELS.get(str(event.get("level", "")).lower(), "info"), _short(event))
    match = _ENVOY.match(line)
    if match:
        return LogLine(_LEVELS.get(match["level"].lower(), "info"), match["text"])
    return LogLine("info", line)


def _short(event: dict[str, Any]) -> str:
    text = str(event.get("event", ""))
    details = ", ".join(f"{key}={value}" for key, value in event.items() if key not in _BORING)
    last = str(event.get("exception", "")).strip().rpartition("\n")[2]
    if last and last not in details:
        details = f"{details}, {last}" if details else last
    text = f"{text} ({details})" if details else text
    return text if len(text) <= 500 else text[:497] + "..."
