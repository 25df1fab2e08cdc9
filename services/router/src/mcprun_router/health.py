"""The state of the mesh as the router sees it."""

from typing import Any

from mcprun import __version__
from mcprun.protocol.v1 import model_pb2
from mcprun_router.dataplane import Dataplane

_STATES = {
    model_pb2.MODEL_STATE_LOADING: "loading",
    model_pb2.MODEL_STATE_READY: "ready",
    model_pb2.MODEL_STATE_UNAVAILABLE: "unavailable",
}


class Overview:
    """What `GET /v1/health` says.

    healthy: everything works. degraded: requests are served, but a part is away. unhealthy: requests cannot be served.
    """

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane

    def document(self) -> dict[str, Any]:
        """The state, for JSON."""
        dataplane = self._dataplane
        catalog, link = dataplane.catalog, dataplane.link
        workers = [
            {
                "id": worker.id,
                "host": worker.host,
                "pid": worker.pid,
                "device": worker.device,
                "status": "draining" if worker.draining else "ok",
            }
            for worker in catalog.workers
        ]
        seen = {worker.kvcache for worker in catalog.workers}
        kvcache = "ok" if "ok" in seen else ("off" if seen == {"off"} else "unreachable")
        parts: dict[str, Any] = {
            "router": {"status": "ok", "open_requests": link.open_requests},
            "batcher": {"status": "ok" if link.connected else "unreachable", "breaker": link.breaker_state},
            "workers": {"status": "ok" if workers else "unreachable", "attached": workers},
            "kvcache": {"status": kvcache},
        }
        models = [
            {
                "name": model.name,
                "version": model.version,
                "state": _STATES.get(model.description.state, "unknown"),
                **({"reason": model.description.reason} if model.description.reason and not model.ready else {}),
            }
            for model in catalog.all()
        ]
        if not dataplane.ready() or not workers:
            status = "unhealthy"
        elif kvcache == "unreachable" or any(model["state"] != "ready" and model.get("reason") != "unloaded" for model in models):
            status = "degraded"
        else:
            status = "healthy"
        return {"status": status, "version": __version__, "parts": parts, "models": models}
