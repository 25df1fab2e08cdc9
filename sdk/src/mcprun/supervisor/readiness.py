"""When the mesh is ready, and when the edge has nothing left to do."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import httpx

WaitForMesh = Callable[[Callable[[str], None]], Awaitable[None]]
"""Returns once the mesh is ready. What it is given takes each new reason, in a few words, why it is not."""

_POLL_SECONDS = 0.05
# Everything here is plain HTTP on this machine; loading certificate authorities for it would take longer than the call.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def mesh_ready(url: str) -> WaitForMesh:
    """Asks the mesh whether it is ready, as any client can."""

    async def wait(on_reason: Callable[[str], None]) -> None:
        told = ""
        async with httpx.AsyncClient(base_url=url, timeout=2.0, trust_env=False, verify=_NO_TLS) as client:
            while reason := await _why_not(client):
                if reason != told:
                    told = reason
                    on_reason(reason)
                await asyncio.sleep(_POLL_SECONDS)

    return wait


async def _why_not(client: httpx.AsyncClient) -> str:
    try:
        answer = await client.get("/v2/health/ready")
    except httpx.TransportError:
        return "nothing listens yet"
    return "" if answer.status_code == httpx.codes.OK else "models are loading"


def admin_client(address: str, *, seconds: float = 2.0) -> httpx.AsyncClient:
    """A client of the edge's admin interface at `unix:PATH` or HOST:PORT."""
    if address.startswith("unix:"):
        transport = httpx.AsyncHTTPTransport(uds=address.removeprefix("unix:"), verify=_NO_TLS)
        return httpx.AsyncClient(transport=transport, base_url="http://edge", timeout=seconds)
    return httpx.AsyncClient(base_url=f"http://{address}", timeout=seconds, trust_env=False, verify=_NO_TLS)


async def quiesce_edge(address: str, *, bound_seconds: float) -> None:
    """Lets the edge accept nothing new, and waits until what it has accepted is answered, at most `bound_seconds`.

    Envoy itself drops what is open when it is told to stop.
    """
    try:
        async with asyncio.timeout(bound_seconds), admin_client(address) as admin:
            # Answers then carry "connection: close" or GOAWAY, so that clients with open connections turn away too.
            await admin.post("/healthcheck/fail")
            await admin.post("/drain_listeners?graceful&skip_exit")
            await admin.post("/drain_listeners")
            while await _open_requests(admin):  # noqa: ASYNC110  another process knows
                await asyncio.sleep(_POLL_SECONDS)
    except (TimeoutError, httpx.HTTPError):
        return


async def _open_requests(admin: httpx.AsyncClient) -> int:
    answer = await admin.get("/stats", params={"filter": r"^http\..*\.downstream_rq_active$"})
    counts = (line.rpartition(":")[2].strip() for line in answer.text.splitlines())
    # The admin interface counts this very request.
    return max(0, sum(int(count) for count in counts if count.isdigit()) - (1 if "http.admin." in answer.text else 0))
