"""Starts the mesh's processes, restarts what dies, and drains all of them on stop."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mcprun.supervisor.backoff import Backoff
from mcprun.supervisor.child import Child, how_it_ended
from mcprun.supervisor.events import Died, Draining, Logged, Ready, Reporter, Started, Stopped, Stopping, Waiting
from mcprun.supervisor.folders import RunFolders
from mcprun.supervisor.logfile import LogFile, LogLine
from mcprun.supervisor.plan import ProcessPlan
from mcprun.supervisor.ports import listening_port
from mcprun.supervisor.readiness import WaitForMesh
from mcprun.supervisor.state import ProcessStatus, RunState

USAGE_EXIT_CODE = 2
"""What a service ends with when its settings are wrong, which a restart does not mend."""
MOST_DEATHS_BEFORE_READY = 5

_SCOUT_SECONDS = 0.2
_TERMINATE_SECONDS = 3.0
_KILL_SECONDS = 5.0


class StartFailed(Exception):
    """The mesh cannot be brought up; the message says which process failed and how."""


class Supervisor:
    """Runs one mesh. `run` returns once everything has stopped after `stop`; a second `stop` kills what is left."""

    def __init__(
        self,
        plans: Sequence[ProcessPlan],
        *,
        folders: RunFolders,
        state: RunState,
        ready: WaitForMesh,
        reporter: Reporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self.ready = asyncio.Event()
        """Set once the mesh was ready."""
        self._plans = list(plans)
        self._folders = folders
        self._wait_for_mesh = ready
        self._reporter = reporter
        self._clock = clock
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._kept = [_Kept(plan, self) for plan in self._plans]
        state.processes = [kept.status for kept in self._kept]

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    @property
    def stopped_at_once(self) -> bool:
        """Whether it was told to end without finishing what was accepted."""
        return self._kill.is_set()

    def stop(self) -> None:
        """Asks for a graceful stop; the second time, for an end at once."""
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to a process of the mesh. Raises KeyError when there is none of that name that runs."""
        for kept in self._kept:
            if kept.plan.name == name and kept.child is not None:
                kept.child.signal(number)
                return
        raise KeyError(name)

    async def run(self) -> None:
        """Runs the mesh until it is told to stop. Raises StartFailed when it cannot be brought up."""
        began = self._clock()
        logs = {plan.name: LogFile(self._folders.log(plan.name)) for plan in self._plans}
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers = [tasks.create_task(kept.keep(logs[kept.plan.name])) for kept in self._kept]
                waiting = tasks.create_task(self._wait_until_ready(began))
                await self._stop.wait()
                waiting.cancel()
                await self._drain()
                for keeper in keepers:
                    keeper.cancel()
        except* StartFailed as failures:
            raise failures.exceptions[0] from None
        finally:
            await asyncio.gather(*(kept.terminate() for kept in self._kept))
            for log in logs.values():
                log.close()
            self._folders.state.unlink(missing_ok=True)

    def changed(self) -> None:
        """Writes the state file anew."""
        self.state.write(self._folders.state)

    async def _wait_until_ready(self, began: float) -> None:
        await self._wait_for_mesh(lambda reason: self._reporter.tell(Waiting(reason)))
        self.state.ready = True
        self.changed()
        self.ready.set()
        self._reporter.tell(Ready(self._clock() - began))

    async def _drain(self) -> None:
        self._reporter.tell(Draining())
        killer = asyncio.create_task(self._kill_on_demand())
        try:
            for stage in sorted({plan.stage for plan in self._plans}, reverse=True):
                await asyncio.gather(*(kept.end(self._kill) for kept in self._kept if kept.plan.stage == stage))
        finally:
            killer.cancel()

    async def _kill_on_demand(self) -> None:
        await self._kill.wait()
        for kept in self._kept:
            if kept.child is not None:
                kept.child.signal(signal.SIGKILL)

    # What the processes below need of their supervisor.

    @property
    def folder(self) -> Path:
        """The working folder of the processes."""
        return self._folders.data

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic, in seconds."""
        return self._clock

    @property
    def reporter(self) -> Reporter:
        """Where events go."""
        return self._reporter


class _Kept:
    """A process that is started again whenever it dies."""

    def __init__(self, plan: ProcessPlan, supervisor: Supervisor) -> None:
        self.plan = plan
        self.child: Child | None = None
        self.status = ProcessStatus(plan.name, address=plan.address)
        self._supervisor = supervisor
        self._backoff = Backoff(supervisor.clock)
        self._stopping = False
        self._ended = asyncio.Event()
        self._ended.set()

    async def keep(self, log: LogFile) -> None:
        self.status.log = str(log.path)
        while not self._stopping:
            child = await self._start(log)
            scout = asyncio.create_task(self._find_metrics(child.pid))
            try:
                code = await child.wait()
            finally:
                scout.cancel()
            self.child = None
            self.status.pid = None
            self.status.metrics_address = ""
            self._ended.set()
            if not self._stopping:
                await self._mourn(child, code)

    async def _start(self, log: LogFile) -> Child:
        def on_line(line: LogLine) -> None:
            self._supervisor.reporter.tell(Logged(self.plan.name, line))

        self._ended.clear()
        try:
            child = await Child.start(self.plan.command, log=log, on_line=on_line, cwd=self._supervisor.folder)
        except OSError as error:
            self._ended.set()
            raise StartFailed(f"{self.plan.name} cannot be started: {error}") from error
        self.child = child
        self._backoff.started()
        self.status.state, self.status.pid, self.status.started_at = "running", child.pid, time.time()
        self._supervisor.changed()
        self._supervisor.reporter.tell(Started(self.plan.name, child.pid, self.status.restarts))
        if self._stopping:
            child.signal(signal.SIGTERM)
        return child

    async def _find_metrics(self, pid: int) -> None:
        """The port of its metrics, which it picks itself."""
        while (port := listening_port(pid)) is None:  # noqa: ASYNC110  the kernel knows, and does not call back
            await asyncio.sleep(_SCOUT_SECONDS)
        self.status.metrics_address = f"127.0.0.1:{port}"
        self._supervisor.changed()

    async def _mourn(self, child: Child, code: int) -> None:
        how = how_it_ended(code)
        self.status.state, self.status.last_death = "waiting", how
        wait = self._backoff.died()
        last = f"; its last words: {child.last_line}" if child.last_line else ""
        if not self._supervisor.ready.is_set():
            if code == USAGE_EXIT_CODE:
                raise StartFailed(f"{self.plan.name} refuses its settings: {child.last_line or how}")
            if self._backoff.deaths_in_a_row >= MOST_DEATHS_BEFORE_READY:
                raise StartFailed(f"{self.plan.name} {how} {MOST_DEATHS_BEFORE_READY} times before the mesh was ready{last}")
        self._supervisor.changed()
        self._supervisor.reporter.tell(Died(self.plan.name, child.pid, how, child.last_line, wait))
        await asyncio.sleep(wait)
        self.status.restarts += 1

    async def end(self, kill: asyncio.Event) -> None:
        """Tells it to stop, and kills it when its time is over."""
        self._stopping = True
        reporter = self._supervisor.reporter
        self.status.state = "stopping"
        self._supervisor.changed()
        reporter.tell(Stopping(self.plan.name))
        killed = kill.is_set()
        if not self._ended.is_set() and not killed:
            killed = not await self._told_to_end(signal.SIGTERM, self.plan.stop_seconds)
        if not self._ended.is_set():
            await self._told_to_end(signal.SIGKILL, _KILL_SECONDS)
        self.status.state = "stopped"
        self._supervisor.changed()
        reporter.tell(Stopped(self.plan.name, killed or kill.is_set()))

    async def terminate(self) -> None:
        """Ends it when it still runs, because the run itself failed."""
        child = self.child
        if child is None:
            return
        child.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_TERMINATE_SECONDS):
                await child.wait()
        except TimeoutError:
            child.signal(signal.SIGKILL)
            await child.wait()

    async def _told_to_end(self, number: int, bound_seconds: float) -> bool:
        """Whether it ends within the bound after the signal."""
        if self.child is not None:
            self.child.signal(number)
        try:
            async with asyncio.timeout(bound_seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True
