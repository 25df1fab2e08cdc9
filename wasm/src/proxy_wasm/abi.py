"""The numbers of the proxy-wasm ABI 0.2.1, by the names that its specification gives them."""

from enum import IntEnum


class Action(IntEnum):
    """What a stream does after a callback."""

    CONTINUE = 0
    PAUSE = 1


class LogLevel(IntEnum):
    """How grave a log line is."""

    TRACE = 0
    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    CRITICAL = 5


class Status(IntEnum):
    """What a hostcall answers."""

    OK = 0
    NOT_FOUND = 1
    BAD_ARGUMENT = 2
    SERIALIZATION_FAILURE = 3
    PARSE_FAILURE = 4
    BAD_EXPRESSION = 5
    INVALID_MEMORY_ACCESS = 6
    EMPTY = 7
    CAS_MISMATCH = 8
    RESULT_MISMATCH = 9
    INTERNAL_FAILURE = 10
    BROKEN_CONNECTION = 11
    UNIMPLEMENTED = 12


class MapType(IntEnum):
    """Which headers, trailers or metadata."""

    REQUEST_HEADERS = 0
    REQUEST_TRAILERS = 1
    RESPONSE_HEADERS = 2
    RESPONSE_TRAILERS = 3
    GRPC_CALL_INITIAL_METADATA = 4
    GRPC_CALL_TRAILING_METADATA = 5
    HTTP_CALL_RESPONSE_HEADERS = 6
    HTTP_CALL_RESPONSE_TRAILERS = 7


class BufferType(IntEnum):
    """Which bytes."""

    REQUEST_BODY = 0
    RESPONSE_BODY = 1
    DOWNSTREAM_DATA = 2
    UPSTREAM_DATA = 3
    HTTP_CALL_RESPONSE_BODY = 4
    GRPC_CALL_MESSAGE = 5
    VM_CONFIGURATION = 6
    PLUGIN_CONFIGURATION = 7
    CALL_DATA = 8


class StreamType(IntEnum):
    """Which direction of a stream."""

    REQUEST = 0
    RESPONSE = 1
    DOWNSTREAM = 2
    UPSTREAM = 3


class MetricType(IntEnum):
    """How a metric changes."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class GrpcStatus(IntEnum):
    """Status codes of gRPC; NONE stands for an answer without one."""

    NONE = -1
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
