"""Settings of the kvcache."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mcprun.runtime.settings import MEBIBYTE, ServiceSettings


class KVCacheSettings(ServiceSettings):
    """Owns the host's arena of keys and values."""

    service: ClassVar[str] = "kvcache"

    grpc_address: str = Field(default="127.0.0.1:9201", description="Where workers reach it: unix:PATH or HOST:PORT")
    arena_path: Path | None = Field(
        default=None, description="The arena's file, in memory; by default one in /dev/shm that is removed at a graceful stop"
    )
    arena_bytes: int = Field(
        default=4096 * MEBIBYTE, ge=4 * MEBIBYTE, le=2**46, description="The arena's extent; memory is used only where tokens are"
    )
    max_ttl_seconds: float = Field(default=3600, gt=0, description="The longest time that a lease may ask for")
