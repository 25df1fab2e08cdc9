"""uvicorn in an event loop that is not its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from mcprun.errors import MessageTooLarge
from mcprun.runtime.rpc import split_host_port
from mcprun_router.asgi import Application
from mcprun_router.bridge import Bridge
from mcprun_router.bridge_protocol import BridgeProtocol

KEEP_ALIVE_SECONDS = 75
"""Longer than the edge keeps an idle connection, so that it is the edge that closes one and no request meets a closed one."""


class HttpServer(uvicorn.Server):
    """Serves the application at `unix:PATH` or HOST:PORT. The process, not uvicorn, handles signals."""

    def __init__(self, application: Application, address: str, *, bridge: Bridge, too_large: MessageTooLarge, drain_seconds: float) -> None:
        where: dict[str, object]
        if address.startswith("unix:"):
            where = {"uds": address.removeprefix("unix:")}
        else:
            host, port = split_host_port(address)
            where = {"host": host, "port": port}
        super().__init__(
            uvicorn.Config(
                application,
                http=partial(BridgeProtocol, bridge=bridge, too_large=too_large),  # type: ignore[arg-type]
                loop="none",
                ws="none",
                lifespan="off",
                interface="asgi3",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, int(drain_seconds)),
                backlog=2048,
                **where,  # type: ignore[arg-type]
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing."""
        yield
