"""Write proxy-wasm filters in Python.

Derive from `RootContext` and `HttpContext`, `register` the first, test with `proxy_wasm.testing`, build with `proxy-wasm build`.
"""

from proxy_wasm import log, properties, shared_data
from proxy_wasm.abi import Action, GrpcStatus, LogLevel, Status
from proxy_wasm.body import Body
from proxy_wasm.calls import GrpcCall, GrpcStream, HttpCall, HttpResponse
from proxy_wasm.clock import now, now_nanoseconds
from proxy_wasm.contexts import ErrorPolicy, HttpContext, RootContext
from proxy_wasm.errors import CallFailed, CasMismatch, Contended, GrpcCallFailed, HostcallFailed, NoHost, ProxyWasmError
from proxy_wasm.foreign import call_foreign_function
from proxy_wasm.futures import Future
from proxy_wasm.headers import HeaderList, HeaderMap, Headers
from proxy_wasm.metrics import Counter, Gauge, Histogram
from proxy_wasm.queues import SharedQueue
from proxy_wasm.registry import register, registered
from proxy_wasm.timers import Sleep, Timer

__all__ = [
    "Action",
    "Body",
    "CallFailed",
    "CasMismatch",
    "Contended",
    "Counter",
    "ErrorPolicy",
    "Future",
    "Gauge",
    "GrpcCall",
    "GrpcCallFailed",
    "GrpcStatus",
    "GrpcStream",
    "HeaderList",
    "HeaderMap",
    "Headers",
    "Histogram",
    "HostcallFailed",
    "HttpCall",
    "HttpContext",
    "HttpResponse",
    "LogLevel",
    "NoHost",
    "ProxyWasmError",
    "RootContext",
    "SharedQueue",
    "Sleep",
    "Status",
    "Timer",
    "call_foreign_function",
    "log",
    "now",
    "now_nanoseconds",
    "properties",
    "register",
    "registered",
    "shared_data",
]
