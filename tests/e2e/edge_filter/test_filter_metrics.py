"""What Prometheus gets of the edge."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.parser import text_string_to_metric_families as of_text

from mcprun.supervisor.ports import free_port

from .guarded_edge import GuardedEdge
from .replica import Behaviour, Replica

FORMATS: dict[str, Callable[[str], Iterable[Metric]]] = {"text/plain": of_text, "application/openmetrics-text": of_openmetrics}


@pytest.fixture(scope="module")
def scraped() -> Iterator[str]:
    """Where to scrape an edge whose only node failed six times, and was asked a seventh time."""
    folder, replica = Path(tempfile.mkdtemp(prefix="mcprun-metrics-")), Replica("router-1")
    port = free_port()
    edge = GuardedEdge(folder, [replica], arguments=("--metrics-address", f"127.0.0.1:{port}"))
    replica.behaviour = Behaviour(http_status=500)
    assert [edge.infer("m").status_code for _ in range(7)] == [500] * 6 + [503]
    yield f"http://127.0.0.1:{port}/metrics"
    edge.close()
    replica.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize("content_type", FORMATS)
def test_breakers_are_among_the_metrics_of_the_edge(scraped: str, content_type: str) -> None:
    """Prometheus asks for OpenMetrics, which takes no counter without `_total`; Envoy has both `upstream_rq` and `upstream_rq_total`."""
    answer = httpx.get(scraped, headers={"accept": content_type})
    assert answer.headers["content-type"].startswith(content_type)
    families = list(FORMATS[content_type](answer.text))
    values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for one in families for sample in one.samples}
    circuit = (("model", "m"), ("node", "router"), ("side", ""), ("tenant", "default"))
    assert values["mcprun_edge_breaker_state", circuit] == 2
    moved = tuple(sorted((*circuit, ("reason", "consecutive-failures"), ("to", "open"))))
    assert values["mcprun_edge_breaker_transitions_total", moved] == 1
    assert values["mcprun_edge_refusals_total", tuple(one for one in circuit if one[0] != "node")] == 1
    kinds = {family.name: family.type for family in families}
    assert kinds["mcprun_edge_breaker_state"] == "gauge"
    assert kinds["mcprun_edge_breaker_transitions"] == "counter"
    assert values["envoy_cluster_upstream_rq", (("envoy_cluster_name", "router_http"), ("envoy_response_code", "500"))] == 6
    assert values["envoy_cluster_upstream_rq_total", (("envoy_cluster_name", "router_http"),)] == 6
    assert "process_resident_memory_bytes" in kinds


def test_an_envoy_that_does_not_answer_leaves_the_other_metrics() -> None:
    """A scrape must not fail, or nobody sees the edge's process, either."""
    from mcprun_edge.statistics import EnvoyStatistics

    assert list(EnvoyStatistics("unix:/nowhere/admin.sock").collect()) == []
    assert list(EnvoyStatistics(f"127.0.0.1:{free_port()}").collect()) == []
