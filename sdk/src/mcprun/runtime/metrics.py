"""Prometheus metrics. Names end in their base unit (`_seconds`, `_bytes`) or in `_total`, as Prometheus asks."""

from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector, start_http_server

from mcprun.runtime.rpc import split_host_port

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds, for everything that a caller waits for."""

REGISTRY = CollectorRegistry()
"""Holds every metric of this process."""

tasks = Gauge("mcprun_asyncio_tasks", "Tasks of the event loop that are not done", registry=REGISTRY)

ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


def serve(address: str) -> int | None:
    """Serves `/metrics` at HOST:PORT from a thread of its own and returns the port; None when `address` is empty."""
    if not address:
        return None
    host, port = split_host_port(address)
    server, _ = start_http_server(port, addr=host, registry=REGISTRY)
    return int(server.server_port)
