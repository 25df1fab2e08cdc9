"""What the worker does, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

from mcprun.runtime.metrics import LATENCY_BUCKETS, REGISTRY

_MODEL = ["model", "version"]

run_seconds = Histogram(
    "mcprun_worker_run_seconds", "Time that the backend took for a batch", _MODEL, buckets=LATENCY_BUCKETS, registry=REGISTRY
)
rows = Counter("mcprun_worker_rows_total", "Rows that ran", _MODEL, registry=REGISTRY)
dropped = Counter(
    "mcprun_worker_dropped_total",
    "Requests that were dropped before they ran: expired (their deadline passed) or cancelled (their caller left)",
    [*_MODEL, "reason"],
    registry=REGISTRY,
)
load_seconds = Histogram(
    "mcprun_worker_load_seconds",
    "Time from the start of a load to a warm model",
    ["model"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
loaded = Gauge("mcprun_worker_model_ready", "1 while a model version is warm", _MODEL, registry=REGISTRY)
