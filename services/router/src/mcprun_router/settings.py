"""Settings of the router."""

from typing import ClassVar

from pydantic import Field

from mcprun.runtime.settings import MEBIBYTE, ServiceSettings


class RouterSettings(ServiceSettings):
    """Validates inference requests, finds their model version and passes them to the batcher."""

    service: ClassVar[str] = "router"

    http_address: str = Field(default="127.0.0.1:8000", description="Where HTTP is served: unix:PATH or HOST:PORT")
    grpc_address: str = Field(default="127.0.0.1:8001", description="Where gRPC is served: unix:PATH or HOST:PORT")
    batcher_address: str = Field(default="127.0.0.1:9001", description="The batcher: unix:PATH or HOST:PORT")
    default_model: str = Field(default="", description="The model of /v1/infer requests that name none; empty: the only one there is")
    routing_labels: dict[str, str] = Field(
        default={"v2-canary": "canary"}, description="Which version label each value of the x-routing header selects"
    )
    max_open_requests: int = Field(default=8192, ge=1, description="The most requests that may be open at the same time")
    max_open_bytes: int = Field(
        default=1024 * MEBIBYTE, ge=MEBIBYTE, description="The most bytes of requests that may be open at the same time"
    )
    connect_seconds: float = Field(
        default=1.0, ge=0, description="How long a request waits for a batcher that is away before it is refused, in seconds"
    )
