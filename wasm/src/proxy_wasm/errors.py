"""What the SDK raises. Every error that it makes itself is a `ProxyWasmError`."""

from proxy_wasm.abi import GrpcStatus, Status


class ProxyWasmError(Exception):
    """The root of the tree."""


class NoHost(ProxyWasmError):
    """A hostcall was made where there is no host: at import, or outside of a callback of a simulation."""


class HostcallFailed(ProxyWasmError):
    """The host refused a hostcall."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} failed: {_status_name(status)}")
        self.call = call
        """The hostcall, by its name in `proxy_wasm.hostcalls`."""
        self.status = status
        """One of `Status`, as a plain number: a later host may answer others."""


class CasMismatch(HostcallFailed):
    """Shared data has changed since its CAS number was read."""


class Contended(ProxyWasmError):
    """An update of shared data lost the race against other workers as often as it was allowed to try."""

    def __init__(self, key: bytes, tries: int) -> None:
        super().__init__(f"shared data {key!r}: other workers changed it during each of {tries} tries")
        self.key = key
        self.tries = tries


class CallFailed(ProxyWasmError):
    """A call from the filter got no answer: no such cluster, no connection, a reset, or the timeout passed."""


class GrpcCallFailed(CallFailed):
    """A gRPC call ended with a status other than OK."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"gRPC status {_grpc_status_name(status)}: {message}")
        self.status = status
        """One of `GrpcStatus`, as a plain number."""
        self.message = message


def check(call: str, status: int) -> None:
    """Raises `HostcallFailed` unless `status` is OK."""
    if status != 0:
        raise HostcallFailed(call, status)


def _status_name(status: int) -> str:
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"


def _grpc_status_name(status: int) -> str:
    try:
        return GrpcStatus(status).name
    except ValueError:
        return str(status)
