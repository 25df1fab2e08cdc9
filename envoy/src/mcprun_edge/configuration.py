"""Renders Envoy's configuration."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from mcprun.errors import HTTP_STATUS, DeadlineExceeded, Internal, InvalidInput, MeshError, ResourceExhausted, Unavailable
from mcprun.runtime.rpc import split_host_port
from mcprun_edge.settings import EdgeSettings, needs_name_service


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Envoy answers by itself. `message` may hold Envoy's command operators."""

    error: type[MeshError]
    message: str
    retry_after: int | None = None
    """Seconds after which a new try makes sense."""
    flags: tuple[str, ...] = ()
    """The response flags of Envoy that lead to it."""
    kept: tuple[str, str] = ("", "")
    """What was kept aside of an answer that leads to it: a key and the regular expression that its value matches."""

    @property
    def grpc_status(self) -> int:
        """The number of the gRPC code."""
        return int(self.error.code.value[0])

    @property
    def http_status(self) -> int:
        """The status for callers without gRPC."""
        return HTTP_STATUS[self.error.code]


def refusals(settings: EdgeSettings) -> tuple[Refusal, ...]:
    """Refusals of requests that the router did not answer. The first whose flag is set counts."""
    return (
        Refusal(Unavailable, "the router cannot be reached", retry_after=1, flags=("UF", "UH", "LH", "NC")),
        Refusal(Unavailable, "the connection to the router broke before its answer came", retry_after=1, flags=("UC", "UR", "LR", "UPE")),
        Refusal(
            ResourceExhausted,
            f"too many requests are open: at most {settings.max_requests} (max_requests of the edge) are allowed",
            retry_after=1,
            flags=("UO",),
        ),
        Refusal(
            DeadlineExceeded,
            f"no byte moved for {settings.stream_idle_seconds:g} s (stream_idle_seconds of the edge)",
            flags=("SI",),
        ),
    )


_HTTP_ERROR = "the router answered with HTTP status %DYNAMIC_METADATA(mcprun:http-status)%"

BRIDGE_FAILURES = (
    Refusal(InvalidInput, "the call ended before its message was whole", kept=("own-status", ".*")),
    Refusal(Unavailable, _HTTP_ERROR, retry_after=1, kept=("http-status", "429|502|503|504")),
    Refusal(Internal, _HTTP_ERROR, kept=("http-status", "...")),
)
"""Refusals of bridged calls whose message or whose answer the bridge did not understand. The first that matches counts."""


NODE_HEADER = "x-mcprun-node"
"""The header by which the edge filter names the nodes that may answer. It never leaves Envoy and cannot come from outside."""

FILTER_FILES = {"edge": "filter.json", "edge-status": "status-filter.json"}
"""The files in the folder of the edge filter that hold its configuration for each listener."""

FILTER_TAGS = ("tenant", "model", "side", "node", "to", "reason", "rule", "tag")
"""Labels of the edge filter's metrics. In the name of a metric each stands as `TAG=.=VALUE;.;`."""

FILTER_DETAILS = "mcprun_breaker_open"
"""The response code details of what the edge filter answers itself."""


def render(settings: EdgeSettings, *, filter_folder: Path = Path("edge-filter")) -> str:
    """The configuration as YAML, byte for byte the same for the same arguments. `filter_folder` holds FILTER_FILES."""
    environment = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701  not HTML
    environment.filters["quoted"] = json.dumps
    template = environment.from_string(files("mcprun_edge").joinpath("edge.yaml.j2").read_text(encoding="utf-8"))
    text = template.render(
        settings=settings,
        refusals=refusals(settings),
        bridge_failures=BRIDGE_FAILURES,
        split_host_port=split_host_port,
        needs_name_service=needs_name_service,
        node_header=NODE_HEADER,
        filter_folder=str(filter_folder),
        filter_files=FILTER_FILES,
        filter_tags=FILTER_TAGS,
        filter_details=FILTER_DETAILS,
    )
    return "".join(line for line in text.splitlines(keepends=True) if line.strip())
