"""What the supervisor tells, on a terminal, in a log or as JSON lines."""

import json
import sys
import time
from dataclasses import asdict
from typing import Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text

from mcprun.supervisor.events import Died, Draining, Event, Logged, Ready, Started, Stopped, Stopping, Waiting

_STYLES = {"warning": "yellow", "error": "red"}


class ServeReporter(Protocol):
    """Where `mcprun serve` tells what it does."""

    def step(self, text: str) -> None:
        """A step began that may take a while."""

    def note(self, text: str, *, style: str = "") -> None:
        """Something to know."""

    def tell(self, event: Event) -> None:
        """What the supervisor tells."""

    def close(self) -> None:
        """Nothing more comes."""


class ConsoleReporter:
    """For people. On a terminal the running step has a spinner; elsewhere each step is a line."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._status: Status | None = None
        self._started: list[str] = []

    def step(self, text: str) -> None:
        """A step began."""
        if not self._out.is_terminal:
            self._out.print(text)
        elif self._status is None:
            self._status = self._out.status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def note(self, text: str, *, style: str = "") -> None:
        """A line above the running step."""
        self._out.print(Text(text, style=style))

    def tell(self, event: Event) -> None:
        """One line or none for an event."""
        match event:
            case Started(name=name, restarts=0):
                self._started.append(name)
                self.step(f"Starting {', '.join(self._started)}")
            case Started():
                self.note(f"{event.name} runs again, pid {event.pid}", style="green")
            case Died():
                self._died(event)
            case Logged():
                self._logged(event)
            case Waiting():
                self.step(f"Waiting for the mesh: {event.reason}")
            case Ready():
                self._finish_step()
                self.note(f"Ready after {event.seconds:.1f} s.", style="bold green")
            case Draining():
                self.step("Stopping: accepted requests are finished. Ctrl-C again ends it at once.")
            case Stopping():
                self.step(f"Stopping {event.name}")
            case Stopped(killed=True):
                self.note(f"{event.name} did not stop in time and was killed", style="yellow")
            case Stopped():
                pass

    def close(self) -> None:
        """Ends the spinner."""
        self._finish_step()

    def _finish_step(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _died(self, event: Died) -> None:
        self.note(f"{event.name} (pid {event.pid}) {event.how}; it is started again in {event.wait_seconds:.1f} s", style="red")
        if event.last_line:
            self.note(f"  its last log line: {event.last_line}", style="dim")

    def _logged(self, event: Logged) -> None:
        line = Text(f"{time.strftime('%H:%M:%S')} {event.name:<8} ", style="dim")
        line.append(f"{event.line.level}: ", style=_STYLES.get(event.line.level, ""))
        line.append(event.line.text, style="none")
        self._out.print(line)


class JsonReporter:
    """For scripts: one JSON object a line on standard output, with the kind of event under `event`."""

    def step(self, text: str) -> None:
        """A step began."""
        self._write({"event": "step", "text": text})

    def note(self, text: str, *, style: str = "") -> None:
        """Something to know."""
        self._write({"event": "note", "text": text})

    def tell(self, event: Event) -> None:
        """The event with its fields."""
        self._write({"event": type(event).__name__.lower(), **asdict(event)})

    def close(self) -> None:
        """Nothing is left to do."""

    def _write(self, value: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()
