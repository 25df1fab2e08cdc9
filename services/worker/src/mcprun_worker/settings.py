"""Settings of the worker."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from mcprun.runtime.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """Runs models: pulls batches from the batcher and answers them."""

    service: ClassVar[str] = "worker"

    grpc_address: str = Field(default="127.0.0.1:9101", description="Where its health is served: unix:PATH or HOST:PORT")
    batcher_address: str = Field(default="127.0.0.1:9001", description="The batcher: unix:PATH or HOST:PORT")
    kvcache_address: str = Field(default="", description="The host's kvcache: unix:PATH or HOST:PORT; empty: none is used")
    models: Path = Field(default=Path("models"), description="The model repository: a folder with a folder for each model")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="What models run on; auto takes CUDA where there is a device and a build of ONNX Runtime for it",
    )
    cpu_threads: int = Field(default=0, ge=0, le=1024, description="Cores that the instances of one model share; 0: all")
