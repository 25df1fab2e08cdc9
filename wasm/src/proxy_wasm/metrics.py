"""Counters, gauges and histograms in the host's statistics. Define them at module level, once.

Envoy puts `wasmcustom.` before the name. Its statistics have no labels of their own: it takes tags out of names by rules of its
bootstrap (`stats_config.stats_tags`). Labels are written into the name as Istio does it, `label=.=value;.;` before the name, and
`stats_tag` gives the rule for each. What a label may say is for the filter to bound: the host never forgets a metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from proxy_wasm.abi import MetricType, Status
from proxy_wasm.binding import bound
from proxy_wasm.errors import HostcallFailed, check

if TYPE_CHECKING:
    from proxy_wasm.hostcalls import Host


def stats_tag(label: str) -> dict[str, str]:
    """The entry of Envoy's `stats_config.stats_tags` that turns this label into a tag, and so into a label for Prometheus."""
    return {"tag_name": label, "regex": f"({label}=\\.=(.*?);\\.;)"}


class Metric:
    """One series of the host, or with `labels` one for each combination of their values."""

    _type: int

    def __init__(self, name: str, labels: tuple[str, ...] = ()) -> None:
        if not name:
            raise ValueError("a metric needs a name")
        self.name = name
        self.label_names = labels
        self._children: dict[tuple[str, ...], Self] = {}
        self._host: Host | None = None
        self._id = 0

    def labels(self, *values: str) -> Self:
        """The series with these values of the labels, in the order of their names. Kept: ask as often as needed."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(values)}")
            marks = "".join(f"{label}=.={value};.;" for label, value in zip(self.label_names, values, strict=True))
            child = self._children[values] = type(self)(marks + self.name)
        return child

    @property
    def value(self) -> int:
        """What the host has; 0 where it cannot tell, as for histograms."""
        return bound.host.get_metric(self._identity()) or 0

    def _identity(self) -> int:
        host = bound.host
        if self._host is not host:
            if self.label_names:
                raise ValueError(f"{self.name} has labels: say which with labels(...)")
            metric_id = host.define_metric(self._type, self.name.encode())
            if metric_id is None:
                raise HostcallFailed("define_metric", Status.BAD_ARGUMENT)
            self._id = metric_id
            self._host = host
        return self._id


class Counter(Metric):
    """Only grows."""

    _type = int(MetricType.COUNTER)

    def increment(self, by: int = 1) -> None:
        """Adds."""
        # Envoy refuses to add nothing to a counter.
        if by:
            check("increment_metric", bound.host.increment_metric(self._identity(), by))


class Gauge(Metric):
    """Goes up and down. All workers share it."""

    _type = int(MetricType.GAUGE)

    def set(self, value: int) -> None:
        """Becomes `value`, which cannot be negative."""
        check("record_metric", bound.host.record_metric(self._identity(), value))

    def add(self, by: int) -> None:
        """Adds, or takes away when `by` is negative."""
        check("increment_metric", bound.host.increment_metric(self._identity(), by))


class Histogram(Metric):
    """Counts how often values fall into which range. Envoy's unit for it is what the name says."""

    _type = int(MetricType.HISTOGRAM)

    def record(self, value: int) -> None:
        """One more value, which cannot be negative."""
        check("record_metric", bound.host.record_metric(self._identity(), value))
