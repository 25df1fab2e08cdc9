"""How a service process starts, is told to stop, and ends."""

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
import uvloop

from mcprun.runtime import logs, metrics, telemetry
from mcprun.runtime.settings import ServiceSettings


class Stop:
    """Set once by SIGTERM or SIGINT. A second signal ends the process at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def requested(self) -> bool:
        """Whether the process was told to stop."""
        return self._event.is_set()

    def request(self) -> None:
        """Asks for a graceful stop."""
        if self._event.is_set():
            raise SystemExit(1)
        self._event.set()

    async def wait(self) -> None:
        """Returns once a stop is asked for."""
        await self._event.wait()


S = TypeVar("S", bound=ServiceSettings)

_GC_THRESHOLD = (20_000, 20, 50)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 64 * 1024 * 1024

_OVERTIME_SECONDS = 5.0
"""How much longer than `drain_seconds` a stop may take before the process is ended, whatever it is doing."""


async def _arm(stop: Stop, seconds: float, log: structlog.stdlib.BoundLogger, finished: threading.Event) -> None:
    """Makes the bound on a stop hold even if the event loop does not run any more: a thread keeps the time.

    It goes on when `main` has returned (`finished`), because the interpreter then waits for what still runs in other threads.
    """

    def give_up() -> None:
        log.error("the stop took too long", after_seconds=seconds)
        os._exit(0 if finished.is_set() else 1)

    await stop.wait()
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


def _keep_memory() -> None:
    """Lets the C library keep what a large tensor used for the next one: to give memory back and to get it again, page by page,
    costs more than to copy it. Other systems than Linux with glibc stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def run(settings_type: type[S], main: Callable[[S, telemetry.Telemetry, Stop], Awaitable[None]]) -> None:
    """The body of a console script: reads settings from the command line, sets up what all services share, runs `main`.

    `main` must return once `Stop` is requested and accepted work is finished. The process then exits 0; it exits 1 when
    `main` raises, after a log line that says why.
    """
    settings = settings_type.load(sys.argv[1:])
    logs.configure(f"mcprun-{settings.service}", level=settings.effective_log_level, log_format=settings.log_format)
    log = logs.get_logger("mcprun.process")
    # The usual limit, 1024 open files, is less than the connections that a service may have open.
    with contextlib.suppress(ValueError, OSError):
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

    _keep_memory()

    async def supervised() -> None:
        stop = Stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.request)
        traces = telemetry.make(
            f"mcprun-{settings.service}",
            otlp_endpoint=settings.otlp_endpoint,
            sample_ratio=settings.effective_sample_ratio,
        )
        metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        port = metrics.serve(settings.metrics_address)
        if port is not None:
            log.info("serving metrics", port=port)
        # What was imported lives as long as the process; keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        # A request makes some hundred objects and no cycles: the usual threshold would have the collector run for each few.
        gc.set_threshold(*_GC_THRESHOLD)
        finished = threading.Event()
        watchdog = asyncio.create_task(_arm(stop, settings.drain_seconds + _OVERTIME_SECONDS, log, finished))
        try:
            await main(settings, traces, stop)
            finished.set()
        finally:
            watchdog.cancel()
            traces.shutdown()

    try:
        uvloop.run(supervised())
    except Exception as error:
        log.error("stopped by an error", error=str(error), exc_info=True)
        raise SystemExit(1) from error
    log.info("stopped")
