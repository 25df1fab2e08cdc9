"""What the kvcache holds, for Prometheus."""

from prometheus_client import Counter, Gauge

from mcprun.runtime.metrics import REGISTRY

capacity_bytes = Gauge("mcprun_kvcache_capacity_bytes", "The arena's extent", registry=REGISTRY)
reserved_bytes = Gauge("mcprun_kvcache_reserved_bytes", "Bytes that pools have reserved", registry=REGISTRY)
committed_bytes = Gauge("mcprun_kvcache_committed_bytes", "Bytes of memory that the arena uses", registry=REGISTRY)
leased_slots = Gauge("mcprun_kvcache_leased_slots", "Slots that are leased", registry=REGISTRY)
lapsed = Counter("mcprun_kvcache_lapsed_leases_total", "Leases that were not renewed in time", registry=REGISTRY)
