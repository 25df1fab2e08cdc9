"""What the router does, for Prometheus."""

from functools import lru_cache

from prometheus_client import Gauge, Histogram

from mcprun.runtime.metrics import LATENCY_BUCKETS, REGISTRY

_seconds = Histogram(
    "mcprun_router_request_seconds",
    "Time from a whole request to its whole answer, by protocol (grpc, rest), operation and gRPC code",
    ["protocol", "operation", "code"],
    buckets=LATENCY_BUCKETS,
    registry=REGISTRY,
)
open_requests = Gauge("mcprun_router_open_requests", "Inference requests that have no answer yet", registry=REGISTRY)


@lru_cache(maxsize=1024)
def request_seconds(protocol: str, operation: str, code: str) -> Histogram:
    """The histogram of one kind of request. `operation` must come from a closed set: the name of a method or a route."""
    return _seconds.labels(protocol, operation, code)
