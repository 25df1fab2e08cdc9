"""Which requests the breakers are about: those that run models, and whatever else is behind the edge.

Questions about the mesh itself (health, metadata, the repository) are neither counted nor refused: a mesh that says it is not
ready is doing what it should, and who operates it must reach it when its models fail.
"""

from __future__ import annotations

from mcprun_filter.model_name import SERVICE
from mcprun_filter.routing import split_query

_RUNNING = (b"/infer", b"/generate", b"/generate_stream")
_RUNNING_CALLS = frozenset({SERVICE + b"ModelInfer", SERVICE + b"ModelStreamInfer"})
_ASKING = (b"/grpc.health.v1.Health/", b"/grpc.reflection.", SERVICE)
_ASKING_PATHS = frozenset({b"/v1/health", b"/v1/models", b"/metrics", b"/v2"})


def is_guarded(path: bytes, *, grpc: bool) -> bool:
    """Whether a request to that path, with or without its query, is one that breakers are about."""
    if grpc:
        return path in _RUNNING_CALLS or not path.startswith(_ASKING)
    if b"?" in path or b"#" in path:
        path = split_query(path)[0]
    if path.startswith(b"/v2/"):
        return path.endswith(_RUNNING)
    return path not in _ASKING_PATHS
