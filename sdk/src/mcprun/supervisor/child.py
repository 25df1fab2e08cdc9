"""One process: its command, its output, its end."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mcprun.supervisor import shim
from mcprun.supervisor.logfile import LogFile, LogLine, understand

_LINE_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_PIPE_SECONDS = 0.5


class Child:
    """A running process. Make it with `start`, then `wait` for its end."""

    def __init__(self, process: asyncio.subprocess.Process, pump: "asyncio.Task[None]", output: "_Output") -> None:
        self._process = process
        self._pump = pump
        self._output = output

    @classmethod
    async def start(cls, command: tuple[str, ...], *, log: LogFile, on_line: Callable[[LogLine], None], cwd: Path) -> "Child":
        """Starts a process in a session of its own, so that the terminal's Ctrl-C reaches only the supervisor.

        Its output goes to `log`; `on_line` gets the warnings and errors among it. Raises OSError.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", shim.__file__, str(os.getpid())),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
        )
        output = _Output(log, on_line)
        if process.stdout is None:
            raise OSError("the process has no output pipe")
        return cls(process, asyncio.create_task(output.pump(process.stdout)), output)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def last_line(self) -> str:
        """The last thing it said, in short form; empty when it said nothing."""
        return self._output.last

    async def wait(self) -> int:
        """Its end. Returns the exit code, or minus the number of the signal that killed it."""
        code = await self._process.wait()
        try:
            # A grandchild may keep the pipe open.
            async with asyncio.timeout(_PIPE_SECONDS):
                await self._pump
        except TimeoutError:
            pass
        return code

    def signal(self, number: int) -> None:
        """Sends a signal; nothing happens when the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def how_it_ended(code: int) -> str:
    """An exit code for a person; negative ones are signals."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}"


class _Output:
    """Splits what a process writes into lines, however long they are."""

    def __init__(self, log: LogFile, on_line: Callable[[LogLine], None]) -> None:
        self.last = ""
        self._log = log
        self._on_line = on_line

    async def pump(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stream.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._line(line)
            while len(rest) > _LINE_BYTES:
                self._line(rest[:_LINE_BYTES])
                rest = rest[_LINE_BYTES:]
        if rest:
            self._line(rest)

    def _line(self, line: bytes) -> None:
        self._log.write(line + b"\n")
        if not line.strip():
            return
        understood = understand(line.decode(errors="replace"))
        self.last = understood.text
        if understood.level in ("warning", "error"):
            self._on_line(understood)
