"""REST: the Open Inference Protocol v2 with Triton's extensions, and the two v1 endpoints of mcprun itself.

One rule decodes paths: the raw path is split at its slashes, then each segment is percent-decoded as UTF-8. So a `%2F` is part
of a name and never a separator.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from prometheus_client.exposition import generate_latest

from mcprun.errors import HTTP_STATUS, InvalidInput, Loading, MeshError, NotFound, ResourceExhausted, Unimplemented
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.runtime.metrics import REGISTRY
from mcprun_router import validation
from mcprun_router.asgi import Body, Send
from mcprun_router.bridge import LOADING, caller
from mcprun_router.dataplane import Caller, Dataplane
from mcprun_router.health import Overview
from mcprun_router.operation import Operations
from mcprun_router.rest_codec import HEADER_LENGTH, OutputForm, decode_request, encode_response, inflate, parse_json, split

ResultT = TypeVar("ResultT")

JSON = "application/json"
_BINARY = "application/octet-stream"
_LARGE_BYTES = 256 * 1024
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One REST request whose body has been read and inflated."""

    method: str
    headers: Mapping[bytes, bytes]
    body: bytes
    parameters: Mapping[str, str]
    """What the path names: `model`, `version`, `region`."""

    def header(self, name: str) -> str | None:
        """A header by its lower-case name."""
        value = self.headers.get(name.encode())
        return value.decode("latin-1") if value is not None else None


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    parts: list[bytes]
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[Request, Caller], Awaitable[Response]]


class MethodNotAllowed(MeshError):
    """The path exists, but only for the HTTP methods `allowed`."""

    code = Unimplemented.code

    def __init__(self, message: str, allowed: list[str]) -> None:
        super().__init__(message)
        self.allowed = allowed


class UnsupportedMediaType(InvalidInput):
    """The body is not of a type that the endpoint reads."""


class Rest:
    """Answers REST requests."""

    def __init__(self, dataplane: Dataplane, overview: Overview, operations: Operations) -> None:
        self._dataplane = dataplane
        self._overview = overview
        self._operations = operations
        model = ("v2", "models", ":model")
        version = (*model, "versions", ":version")
        repository = ("v2", "repository")
        self._routes: dict[tuple[int, str], list[tuple[tuple[str, ...], str, str, Handler]]] = {}
        for method, pattern, name, handler in (
            ("GET", ("v2",), "server_metadata", self._server_metadata),
            ("GET", ("v2", "health", "live"), "live", self._live),
            ("GET", ("v2", "health", "ready"), "ready", self._ready),
            *((verb, ("v2", "models", "stats"), "statistics", self._statistics) for verb in ("GET",)),
            *(
                (verb, (*prefix, *suffix), name, handler)
                for prefix in (model, version)
                for verb, suffix, name, handler in (
                    ("GET", (), "model_metadata", self._model_metadata),
                    ("GET", ("ready",), "model_ready", self._model_ready),
                    ("GET", ("config",), "model_config", self._model_config),
                    ("GET", ("stats",), "statistics", self._statistics),
                    ("POST", ("infer",), "infer", self._infer),
                )
            ),
            ("POST", (*repository, "index"), "repository_index", self._index),
            ("POST", (*repository, "models", ":model", "load"), "load", self._load),
            ("POST", (*repository, "models", ":model", "unload"), "unload", self._unload),
            ("GET", ("v2", "systemsharedmemory", "status"), "shared_memory_status", self._region_status),
            ("GET", ("v2", "systemsharedmemory", "region", ":region", "status"), "shared_memory_status", self._region_status),
            ("POST", ("v2", "systemsharedmemory", "region", ":region", "register"), "shared_memory_register", self._register),
            (
                "POST",
                ("v2", "systemsharedmemory", "region", ":region", "unregister"),
                "shared_memory_unregister",
                self._unregister,
            ),
            ("POST", ("v2", "systemsharedmemory", "unregister"), "shared_memory_unregister", self._unregister),
            ("GET", ("v2", "cudasharedmemory", "status"), "cuda_shared_memory", self._no_cuda_regions),
            ("POST", ("v2", "cudasharedmemory", "unregister"), "cuda_shared_memory", self._no_cuda_regions),
            ("POST", ("v2", "cudasharedmemory", "region", ":region", "register"), "cuda_shared_memory", self._no_cuda),
            ("GET", ("v1", "health"), "health", self._health),
            ("POST", ("v1", "infer"), "infer", self._infer_v1),
            ("GET", ("metrics",), "metrics", self._metrics),
        ):
            self._routes.setdefault((len(pattern), pattern[0]), []).append((pattern, method, name, handler))

    async def __call__(self, method: str, raw_path: bytes, query: bytes, headers: dict[bytes, bytes], body: Body, send: Send) -> None:
        """Answers one request."""
        try:
            name, handler, parameters = self._match("GET" if method == "HEAD" else method, raw_path)
            plain = inflate(await body.read(), headers.get(b"content-encoding", b"").decode("latin-1").lower(), self._dataplane.too_large)
            request = Request(method, headers, plain, parameters)
            response = await self._operations.run("rest", name, handler, request, caller(headers))
        except MeshError as error:
            response = refusal(error)
        start = {
            "type": "http.response.start",
            "status": response.status,
            "headers": [
                (b"content-type", response.content_type.encode()),
                (b"content-length", b"%d" % sum(map(len, response.parts))),
                *response.headers,
            ],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else b"".join(response.parts)})

    def _match(self, method: str, raw_path: bytes) -> tuple[str, Handler, dict[str, str]]:
        segments = _segments(raw_path)
        allowed: list[str] = []
        for pattern, verb, name, handler in self._routes.get((len(segments), segments[0] if segments else ""), ()):
            if all(part[0] == ":" or part == segment for part, segment in zip(pattern, segments, strict=True)):
                if verb == method:
                    return (
                        name,
                        handler,
                        {part[1:]: segment for part, segment in zip(pattern, segments, strict=True) if part[0] == ":"},
                    )
                allowed.append(verb)
        path = raw_path.decode("latin-1")
        if allowed:
            raise MethodNotAllowed(f"{path} takes {' or '.join(allowed)}, got {method}", allowed)
        raise NotFound(f"nothing is at {path}")

    # Health and metadata

    async def _live(self, request: Request, caller: Caller) -> Response:
        return _json({"live": self._dataplane.live()})

    async def _ready(self, request: Request, caller: Caller) -> Response:
        ready = self._dataplane.ready()
        return _json({"ready": ready}, status=200 if ready else 503)

    async def _server_metadata(self, request: Request, caller: Caller) -> Response:
        return _message(self._dataplane.server_metadata())

    async def _model_ready(self, request: Request, caller: Caller) -> Response:
        name, version = _model_of(request)
        ready = self._dataplane.model_ready(name, version)
        return _json({"name": name, "ready": ready}, status=200 if ready else 503)

    async def _model_metadata(self, request: Request, caller: Caller) -> Response:
        metadata = self._dataplane.model_metadata(*_model_of(request))
        return _json(
            {
                "name": metadata.name,
                "versions": list(metadata.versions),
                "platform": metadata.platform,
                "inputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in metadata.inputs],
                "outputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in metadata.outputs],
            }
        )

    async def _model_config(self, request: Request, caller: Caller) -> Response:
        return _message(self._dataplane.model_config(*_model_of(request)).config)

    async def _statistics(self, request: Request, caller: Caller) -> Response:
        name, version = _model_of(request)
        return _message(await self._dataplane.statistics(name, version))

    async def _health(self, request: Request, caller: Caller) -> Response:
        document = self._overview.document()
        return _json(document, status=503 if document["status"] == "unhealthy" else 200)

    async def _metrics(self, request: Request, caller: Caller) -> Response:
        return Response([generate_latest(REGISTRY)], content_type=_METRICS)

    # Inference

    async def _infer(self, request: Request, caller: Caller) -> Response:
        name, version = _model_of(request)
        return await self._run(request, caller, name, version)

    async def _infer_v1(self, request: Request, caller: Caller) -> Response:
        return await self._run(request, caller, "", "")

    async def _run(self, request: Request, caller: Caller, name: str, version: str) -> Response:
        content_type = (request.header("content-type") or JSON).partition(";")[0].strip().lower()
        if content_type not in (JSON, _BINARY):
            raise UnsupportedMediaType(f"content-type: {JSON} or {_BINARY} expected, got {content_type}")

        def decode() -> tuple[oip.ModelInferRequest, OutputForm]:
            document, binary = split(request.body, request.header(HEADER_LENGTH))
            model = self._dataplane.model(*((name, version) if name else self._named(document)), caller)
            message, form = decode_request(document, binary, partial(validation.expect, model))
            message.model_name, message.model_version = model.name, model.version
            return message, form

        message, form = await _aside(len(request.body), decode)
        answer = await self._dataplane.infer(message, caller)
        parts, length = await _aside(answer.ByteSize(), lambda: encode_response(answer, form))
        if sum(map(len, parts)) > self._dataplane.too_large.limit_bytes:
            raise self._dataplane.too_large.error("the answer", sum(map(len, parts)))
        if length is None:
            return Response(parts)
        return Response(parts, content_type=_BINARY, headers=((HEADER_LENGTH.encode(), b"%d" % length),))

    def _named(self, document: dict[str, Any]) -> tuple[str, str]:
        for key in ("model", "model_name", "version", "model_version"):
            if not isinstance(document.get(key, ""), str):
                raise InvalidInput(f"{key}: a string expected, got {document[key]!r}")
        name = document.get("model") or document.get("model_name") or self._dataplane.default_model()
        return name, document.get("version") or document.get("model_version") or ""

    # Repository

    async def _index(self, request: Request, caller: Caller) -> Response:
        options = parse_json(request.body) if request.body.strip() else {}
        index = self._dataplane.repository_index(ready_only=options.get("ready") is True)
        return _json([{"name": m.name, "version": m.version, "state": m.state, "reason": m.reason} for m in index.models])

    async def _load(self, request: Request, caller: Caller) -> Response:
        options = parse_json(request.body) if request.body.strip() else {}
        parameters = options.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InvalidInput(f"parameters: an object expected, got {parameters!r}")
        await self._dataplane.load(request.parameters["model"], sorted(parameters))
        return _json({})

    async def _unload(self, request: Request, caller: Caller) -> Response:
        await self._dataplane.unload(request.parameters["model"])
        return _json({})

    # Shared memory

    async def _region_status(self, request: Request, caller: Caller) -> Response:
        regions = self._dataplane.shared_memory.status(request.parameters.get("region", ""))
        return _json([{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions])

    async def _register(self, request: Request, caller: Caller) -> Response:
        options = parse_json(request.body)
        key = options.get("key")
        if not isinstance(key, str):
            raise InvalidInput(f"key: a string expected, got {key!r}")
        self._dataplane.shared_memory.register(
            request.parameters["region"], key, _bytes_of(options, "offset"), _bytes_of(options, "byte_size")
        )
        return _json({})

    async def _unregister(self, request: Request, caller: Caller) -> Response:
        self._dataplane.shared_memory.unregister(request.parameters.get("region", ""))
        return _json({})

    async def _no_cuda_regions(self, request: Request, caller: Caller) -> Response:
        return _json([] if request.method == "GET" else {})

    async def _no_cuda(self, request: Request, caller: Caller) -> Response:
        raise Unimplemented("CUDA shared memory is not supported")


async def _aside(size: int, work: Callable[[], ResultT]) -> ResultT:
    """Does `work` on `size` bytes, in another thread when it would keep everybody else waiting."""
    return await asyncio.to_thread(work) if size > _LARGE_BYTES else work()


def refusal(error: MeshError) -> Response:
    """An error as REST tells it."""
    status = HTTP_STATUS[error.code]
    if isinstance(error, MethodNotAllowed):
        status = 405
    elif isinstance(error, UnsupportedMediaType):
        status = 415
    elif isinstance(error, ResourceExhausted) and error.retry_after is None:
        # Nothing to wait for: the message is too large, now and later.
        status = 413
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, MethodNotAllowed):
        headers = ((b"allow", ", ".join(error.allowed).encode()),)
    elif error.retry_after is not None:
        headers = ((b"retry-after", b"%d" % max(1, round(error.retry_after))),)
    if isinstance(error, Loading):
        headers = (*headers, LOADING)
    return Response([orjson.dumps({"error": error.brief})], status=status, headers=headers)


def _segments(raw_path: bytes) -> list[str]:
    try:
        return [unquote_to_bytes(segment).decode() for segment in raw_path.strip(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise NotFound(f"nothing is at {raw_path.decode('latin-1')}: its percent-encoding is not UTF-8") from None


def _model_of(request: Request) -> tuple[str, str]:
    return request.parameters.get("model", ""), request.parameters.get("version", "")


def _bytes_of(options: dict[str, Any], key: str) -> int:
    value = options.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{key}: a number of bytes expected, got {value!r}")
    return value


def _json(document: Any, *, status: int = 200) -> Response:
    return Response([orjson.dumps(document)], status=status)


def _message(message: Message) -> Response:
    return _json(_numbers(MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True), message))


def _numbers(document: dict[str, Any], message: Message) -> dict[str, Any]:
    """Turns the strings that protobuf's JSON mapping makes of 64-bit integers into numbers, as clients of REST expect them."""
    for field in message.DESCRIPTOR.fields:
        value = document.get(field.name)
        if value is None:
            continue
        content = getattr(message, field.name)
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            document[field.name] = [int(number) for number in value] if isinstance(value, list) else int(value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            if isinstance(value, list):
                for part, below in zip(value, content, strict=True):
                    _numbers(part, below)
            else:
                _numbers(value, content)
    return document
