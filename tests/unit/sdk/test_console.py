"""What `mcprun serve` shows of what the supervisor tells."""

import io
import json

import pytest
from rich.console import Console

from mcprun.cli.console import ConsoleReporter, JsonReporter
from mcprun.supervisor.events import Died, Draining, Logged, Ready, Started, Stopped, Stopping, Waiting
from mcprun.supervisor.logfile import LogLine


class Shown:
    """A reporter on a made-up terminal, with a clock that is moved by hand."""

    def __init__(self, *, terminal: bool) -> None:
        self.now = 0.0
        self._file = io.StringIO()
        out = Console(file=self._file, force_terminal=terminal, markup=False, highlight=False, width=40, no_color=True)
        self.reporter = ConsoleReporter(out, clock=lambda: self.now)

    @property
    def text(self) -> str:
        return self._file.getvalue()


def test_each_step_is_a_line_where_there_is_no_terminal() -> None:
    shown = Shown(terminal=False)
    shown.reporter.tell(Started("kvcache", 1, 0))
    shown.reporter.tell(Waiting("loading m"))
    shown.reporter.tell(Ready(1.234))
    shown.reporter.tell(Draining())
    shown.reporter.tell(Stopping("kvcache"))
    shown.reporter.tell(Stopped("kvcache", killed=False))
    assert [line.split(":")[0] for line in shown.text.splitlines() if not line.startswith(" ")][:3] == [
        "Starting kvcache",
        "Waiting for the mesh",
        "Ready after 1.2 s.",
    ]


def test_a_long_step_leaves_a_line_on_a_terminal() -> None:
    shown = Shown(terminal=True)
    shown.reporter.step("Making the first")
    shown.now = 0.1
    shown.reporter.step("Making the second")
    shown.now = 2.1
    shown.reporter.step("Making the third")
    shown.reporter.close()
    assert "Making the second (2.0 s)" in shown.text
    assert "Making the first (" not in shown.text


def test_commands_are_not_wrapped() -> None:
    shown = Shown(terminal=True)
    shown.reporter.note("word " * 30)
    assert ("word " * 30).strip() in shown.text


def test_a_death_is_told_with_the_last_log_line() -> None:
    shown = Shown(terminal=False)
    shown.reporter.tell(Died("worker", 7, "killed by SIGKILL", "[bold]running", 0.1))
    assert "worker (pid 7) killed by SIGKILL; it is started again in 0.1 s" in shown.text
    assert "its last log line: [bold]running" in shown.text
    shown.reporter.tell(Started("worker", 8, 1))
    assert "worker runs again, pid 8" in shown.text


def test_the_same_warning_is_shown_once_in_a_while() -> None:
    shown = Shown(terminal=False)
    warning = Logged("worker", LogLine("warning", "the kvcache is away"))
    for shown.now in (0.0, 1.0, 9.0, 11.0):
        shown.reporter.tell(warning)
    assert shown.text.count("the kvcache is away") == 2


def test_only_errors_are_shown_while_it_stops() -> None:
    shown = Shown(terminal=False)
    shown.reporter.tell(Draining())
    shown.reporter.tell(Logged("batcher", LogLine("warning", "worker detached")))
    shown.reporter.tell(Logged("batcher", LogLine("error", "it broke")))
    shown.reporter.tell(Stopped("batcher", killed=True))
    assert "worker detached" not in shown.text
    assert "it broke" in shown.text
    assert "batcher did not stop in time and was killed" in shown.text


def test_events_as_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = JsonReporter()
    reporter.step("a")
    reporter.note("b")
    reporter.tell(Ready(1.5))
    reporter.tell(Logged("edge", LogLine("error", "c")))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "step", "text": "a"},
        {"event": "note", "text": "b"},
        {"event": "ready", "seconds": 1.5},
        {"event": "logged", "name": "edge", "line": {"level": "error", "text": "c"}},
    ]
