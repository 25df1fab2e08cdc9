"""Renders Envoy's configuration."""

import ipaddress
import json
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from mcprun.errors import HTTP_STATUS, DeadlineExceeded, MeshError, ResourceExhausted, Unavailable
from mcprun.runtime.rpc import split_host_port
from mcprun_edge.settings import EdgeSettings


@dataclass(frozen=True, slots=True)
class Refusal:
    """What Envoy answers by itself, without the router."""

    flags: tuple[str, ...]
    """Envoy's response flags that lead to it."""
    error: type[MeshError]
    message: str
    retry_after: int | None = None
    """Seconds after which a new try makes sense."""

    @property
    def grpc_status(self) -> int:
        """The number of the gRPC code."""
        return int(self.error.code.value[0])

    @property
    def http_status(self) -> int:
        """The HTTP status for callers without gRPC."""
        return HTTP_STATUS[self.error.code]


def refusals(settings: EdgeSettings) -> tuple[Refusal, ...]:
    """Every refusal. The first whose flag is set counts: a try that failed after others leaves the flags of all of them."""
    return (
        Refusal(("UF", "UH", "LH", "NC"), Unavailable, "the router cannot be reached", retry_after=1),
        Refusal(("UC", "UR", "LR", "UPE"), Unavailable, "the connection to the router broke before its answer came", retry_after=1),
        Refusal(
            ("UO",),
            ResourceExhausted,
            f"too many requests are open: at most {settings.max_requests} (max_requests of the edge) are allowed",
            retry_after=1,
        ),
        Refusal(
            ("SI", "UT", "UMSDR", "DT"),
            DeadlineExceeded,
            f"no byte moved for {settings.stream_idle_seconds:g} s (stream_idle_seconds of the edge)",
        ),
    )


def render(settings: EdgeSettings) -> str:
    """The configuration as YAML, byte for byte the same for the same settings. Raises ValueError for an address that is none."""
    for address in (settings.listen_host, _host(settings.admin_address)):
        if address:
            ipaddress.ip_address(address)
    environment = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701  not HTML
    environment.filters["quoted"] = json.dumps
    template = environment.from_string(files("mcprun_edge").joinpath("edge.yaml.j2").read_text(encoding="utf-8"))
    return template.render(
        settings=settings,
        refusals=refusals(settings),
        bridge_failures=(
            ("own-status", ".*", 3, "the call ended before its message was whole"),
            ("http-status", "429|502|503|504", 14, "the router answered with HTTP status %DYNAMIC_METADATA(mcprun:http-status)%"),
            ("http-status", "[^2]..", 13, "the router answered with HTTP status %DYNAMIC_METADATA(mcprun:http-status)%"),
            ("http-status", "2..", 13, "%LOCAL_REPLY_BODY%"),
        ),
        split_host_port=split_host_port,
        needs_name_service=needs_name_service,
    )


def needs_name_service(address: str) -> bool:
    """Whether the host of `unix:PATH` or HOST:PORT is a name."""
    host = _host(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(host)
    return False


def _host(address: str) -> str:
    """The host of HOST:PORT; empty for `unix:PATH` and for no address."""
    return "" if not address or address.startswith("unix:") else split_host_port(address)[0]
