"""Settings of the batcher."""

from typing import ClassVar

from pydantic import Field

from mcprun.runtime.settings import ServiceSettings


class BatcherSettings(ServiceSettings):
    """Joins inference requests into batches and hands them to workers."""

    service: ClassVar[str] = "batcher"

    grpc_address: str = Field(default="127.0.0.1:9001", description="Where routers and workers reach it: unix:PATH or HOST:PORT")
    worker_grace_seconds: float = Field(
        default=15, ge=0, le=600, description="How long requests wait for a model whose last worker went away, in seconds"
    )
    command_seconds: float = Field(default=300, gt=0, description="How long loading or unloading a model may take, in seconds")
