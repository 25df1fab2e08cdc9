"""When the mesh is ready."""

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
        if answer.status_code == httpx.codes.OK:
            return ""
        health = (await client.get("/v1/health")).json()
        models = health.get("models", []) if isinstance(health, dict) else []
        loading = [str(model.get("name")) for model in models if model.get("state") == "loading"]
    except httpx.TransportError:
        return "nothing listens yet"
    except (ValueError, AttributeError):
        loading = []
    return f"loading {', '.join(loading)}" if loading else "models are loading"
