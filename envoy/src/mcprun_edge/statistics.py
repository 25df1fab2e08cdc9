"""Envoy's statistics, the edge filter's among them, beside the metrics of the edge's own process.

Prometheus cannot scrape a unix socket, and Envoy's admin interface is nothing to let others reach.
"""

import re
from collections.abc import Iterator

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from mcprun.runtime import logs

_SECONDS = 5.0
_ENVOYS_OWN_COUNTERS = re.compile(r"^(# TYPE (?!mcprun_)\S+) counter$", re.MULTILINE)
_log = logs.get_logger(__name__)


class EnvoyStatistics(Collector):
    """Asks Envoy at each scrape. `admin_address` is unix:PATH or IP:PORT. While Envoy does not answer there is nothing."""

    def __init__(self, admin_address: str) -> None:
        path = admin_address.removeprefix("unix:") if admin_address.startswith("unix:") else None
        self._url = f"http://{'envoy' if path else admin_address}/stats/prometheus"
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """Every metric that has been used, by Envoy's names. Its own counters are untyped: not all end in `_total`, as OpenMetrics asks."""
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=self._path), timeout=_SECONDS, trust_env=False) as client:
                answer = client.get(self._url, params={"usedonly": ""})
                answer.raise_for_status()
        except httpx.HTTPError as error:
            _log.warning("envoy's statistics cannot be had", reason=str(error))
            return
        yield from text_string_to_metric_families(_ENVOYS_OWN_COUNTERS.sub(r"\1 untyped", answer.text))
