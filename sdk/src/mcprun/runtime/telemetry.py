"""OpenTelemetry traces. Off unless a collector is named; W3C context is passed on either way."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_W3C = TraceContextTextMapPropagator()
_HEADER = "traceparent"


class Telemetry:
    """The tracer of one service. `enabled` is False when traces are off; then no span is ever made."""

    def __init__(self, service_name: str, *, exporter: SpanExporter | None, sample_ratio: float) -> None:
        self.enabled = exporter is not None
        self._provider: TracerProvider | None = None
        if exporter is None:
            self._tracer: trace.Tracer = trace.NoOpTracer()
            return
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service_name, "service.namespace": "mcprun"}),
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
        self._tracer = self._provider.get_tracer("mcprun")

    @property
    def provider(self) -> TracerProvider | None:
        """For instrumentation libraries. None when traces are off."""
        return self._provider

    @contextmanager
    def span(self, name: str, traceparent: str, *, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None) -> Iterator[Span]:
        """A span below the one that `traceparent` names, current within the block.

        `start_ns` is its start as nanoseconds since the epoch, when it began before now.
        """
        with self._tracer.start_as_current_span(name, context=parse(traceparent), kind=kind, start_time=start_ns) as span:
            yield span

    def start_span(self, name: str, traceparent: str, *, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None) -> Span:
        """A span that the caller ends itself and that is never current."""
        return self._tracer.start_span(name, context=parse(traceparent), kind=kind, start_time=start_ns)

    def shutdown(self) -> None:
        """Sends what is left, within the exporter's own time-out."""
        if self._provider is not None:
            self._provider.shutdown()


def make(service_name: str, *, otlp_endpoint: str, sample_ratio: float) -> Telemetry:
    """The telemetry that the settings ask for."""
    if not otlp_endpoint:
        return Telemetry(service_name, exporter=None, sample_ratio=sample_ratio)
    # Imported only when used: it is an optional dependency, and loading it costs start-up time.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(endpoint=otlp_endpoint, insecure=otlp_endpoint.startswith("http://"))
    return Telemetry(service_name, exporter=exporter, sample_ratio=sample_ratio)


def parse(traceparent: str) -> Context:
    """The context that a W3C traceparent header names; an empty one when it is empty or malformed."""
    if not traceparent:
        return Context()
    return _W3C.extract({_HEADER: traceparent}, context=Context())


def traceparent_of(span: Span) -> str:
    """The W3C traceparent header of a span, empty when it is not valid."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get(_HEADER, "")


def current_traceparent() -> str:
    """The W3C traceparent header of the current span, empty when there is none."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context=otel_context.get_current())
    return carrier.get(_HEADER, "")
