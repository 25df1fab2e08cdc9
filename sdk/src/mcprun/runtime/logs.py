"""Structured logs: one JSON object a line on stderr, always with service_name, trace_id and span_id."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, cast

import orjson
import structlog
from opentelemetry import trace

_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16


def configure(service_name: str, *, level: str, log_format: str = "json") -> None:
    """Sends structlog's and the standard library's log lines through one chain.

    `level` is debug, info, warning or error; `log_format` is json or console.
    """

    def identify(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service_name"] = service_name
        if "trace_id" not in event:
            context = trace.get_current_span().get_span_context()
            event["trace_id"] = format(context.trace_id, "032x") if context.is_valid else _NO_TRACE
            event["span_id"] = format(context.span_id, "016x") if context.is_valid else _NO_SPAN
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        identify,
    ]
    final: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These speak for every event loop turn or HTTP request; nobody who debugs a mesh wants that.
    for noisy in ("asyncio", "httpcore", "grpc", "hpack", "uvicorn.access", "PIL"):
        logging.getLogger(noisy).setLevel(max(logging.INFO, root.level))
    logging.getLogger("httpx").setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of one module. Events are short sentences; everything that varies goes into keyword arguments."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(name))


def trace_fields(traceparent: str) -> dict[str, str]:
    """trace_id and span_id out of a W3C traceparent header, for a log line about a request that no span is current for."""
    parts = traceparent.split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return {}
    return {"trace_id": parts[1], "span_id": parts[2]}


def _dumps(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
