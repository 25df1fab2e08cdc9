"""What the batcher does, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

from mcprun.runtime.metrics import LATENCY_BUCKETS, REGISTRY

_MODEL = ["model", "version"]

queue_seconds = Histogram(
    "mcprun_batcher_queue_seconds", "Time that a request waited for its batch", _MODEL, buckets=LATENCY_BUCKETS, registry=REGISTRY
)
batch_rows = Histogram(
    "mcprun_batcher_batch_rows", "Rows of the batches sent", _MODEL, buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=REGISTRY
)
requests = Counter(
    "mcprun_batcher_requests_total",
    "Requests by how they ended: ok, failed, expired, cancelled, refused",
    [*_MODEL, "outcome"],
    registry=REGISTRY,
)
requeued = Counter(
    "mcprun_batcher_requeued_total", "Requests that went back to their queue because a worker died", _MODEL, registry=REGISTRY
)
queue_requests = Gauge("mcprun_batcher_queue_requests", "Requests that wait", _MODEL, registry=REGISTRY)
queue_bytes = Gauge("mcprun_batcher_queue_bytes", "Bytes of the requests that wait", _MODEL, registry=REGISTRY)
running_requests = Gauge("mcprun_batcher_running_requests", "Requests that workers have", registry=REGISTRY)
workers = Gauge("mcprun_batcher_workers", "Attached workers", registry=REGISTRY)


class ModelMetrics:
    """The metrics of one model version with their labels already looked up, for the hot path."""

    def __init__(self, name: str, version: str) -> None:
        self.queue_seconds = queue_seconds.labels(name, version)
        self.batch_rows = batch_rows.labels(name, version)
        self.ok = requests.labels(name, version, "ok")
        self.failed = requests.labels(name, version, "failed")
        self.expired = requests.labels(name, version, "expired")
        self.cancelled = requests.labels(name, version, "cancelled")
        self.refused = requests.labels(name, version, "refused")
        self.requeued = requeued.labels(name, version)
