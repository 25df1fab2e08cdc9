"""What the supervisor tells, on a terminal, in a log or as JSON lines."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text

from mcprun.supervisor.events import Died, Draining, Event, Logged, Ready, Started, Stopped, Stopping, Waiting

_LONG_SECONDS = 0.5
"""A step that took as long leaves a line."""
_REPEAT_SECONDS = 10.0
"""The same warning is shown at most so often; the log has all of them."""
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
    """For people. On a terminal the running step has a spinner and leaves a line when it took long; elsewhere each is a line."""

    def __init__(self, out: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._status: Status | None = None
        self._text = ""
        self._began = 0.0
        self._started: list[str] = []
        self._draining = False
        self._shown: dict[str, float] = {}

    def step(self, text: str) -> None:
        """A step began; the one before is over."""
        if not self._out.is_terminal:
            self._out.print(text)
            return
        self._leave()
        self._text, self._began = text, self._clock()
        if self._status is None:
            self._status = self._out.status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def note(self, text: str, *, style: str = "") -> None:
        """A line above the running step. It is not wrapped, so that what is copied is whole."""
        self._out.print(Text(text, style=style), soft_wrap=True)

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
                self._draining = True
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

    def _leave(self) -> None:
        seconds = self._clock() - self._began
        if self._text and seconds >= _LONG_SECONDS:
            self.note(f"{self._text} ({seconds:.1f} s)", style="dim")
        self._text = ""

    def _finish_step(self) -> None:
        self._leave()
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _died(self, event: Died) -> None:
        self.note(f"{event.name} (pid {event.pid}) {event.how}; it is started again in {event.wait_seconds:.1f} s", style="red")
        if event.last_line:
            self.note(f"  its last log line: {event.last_line}", style="dim")

    def _logged(self, event: Logged) -> None:
        # Parts that lose each other while all of them stop are no news.
        if (self._draining and event.line.level != "error") or self._said_lately(f"{event.name} {event.line.text}"):
            return
        line = Text(f"{time.strftime('%H:%M:%S')} {event.name:<8} ", style="dim")
        line.append(f"{event.line.level}: ", style=_STYLES.get(event.line.level, ""))
        line.append(event.line.text, style="none")
        self._out.print(line, soft_wrap=True)

    def _said_lately(self, text: str) -> bool:
        now = self._clock()
        self._shown = {said: when for said, when in self._shown.items() if now - when < _REPEAT_SECONDS}
        if text in self._shown:
            return True
        self._shown[text] = now
        return False


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
