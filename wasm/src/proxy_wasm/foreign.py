"""Functions of the host that are not of the ABI, such as Envoy's `compress` or `set_envoy_filter_state`."""

from proxy_wasm.binding import bound
from proxy_wasm.errors import check


def call_foreign_function(name: str, arguments: bytes = b"") -> bytes:
    """What the function answered. Raises `HostcallFailed` when the host has none of that name, or it failed."""
    status, answer = bound.host.call_foreign_function(name.encode(), arguments)
    check("call_foreign_function", status)
    return answer
