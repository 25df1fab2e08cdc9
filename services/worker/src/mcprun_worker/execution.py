"""A batch from its bytes to its answers. Runs in a thread of its model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import DecodeError

from mcprun.datatypes import DATATYPES, decode_bytes, element_count, encode_bytes
from mcprun.errors import Cancelled, DeadlineExceeded, Internal, InvalidInput, MeshError, MessageTooLarge
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.runtime import logs
from mcprun_worker.backends.base import Array
from mcprun_worker.backends.onnxruntime import reason
from mcprun_worker.chain.pipeline import Arrays
from mcprun_worker.version import LoadedVersion

_log = logs.get_logger(__name__)

_RAW_OUTPUT = bytes([oip.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number << 3 | 2])
_MAX_HEADS = 1024
_DTYPES = {datatype.name: np.dtype(datatype.numpy) for datatype in DATATYPES.values()}


@dataclass(slots=True)
class Item:
    """One request of a batch."""

    id: int
    request: bytes
    rows: int
    deadline: float
    """When its caller stops waiting, in seconds of the monotonic clock; infinity without a bound."""
    traceparent: str = ""


@dataclass(slots=True)
class Outcome:
    """The end of a batch. Times in nanoseconds."""

    answers: dict[int, bytes | MeshError] = field(default_factory=dict)
    """Serialized responses or refusals by item id."""
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    expired: int = 0
    cancelled: int = 0
    rows: int = 0


@dataclass(slots=True)
class _Request:
    item: Item
    message: oip.ModelInferRequest
    rows: int = 0
    prepared: "Array | list[str] | None" = None
    inputs: Arrays = field(default_factory=dict)


class Executor:
    """Runs batches of one model version. Its methods may be called from several threads at the same time."""

    def __init__(self, version: LoadedVersion, *, too_large: MessageTooLarge, clock: Callable[[], float] = time.monotonic) -> None:
        self._version = version
        self._too_large = too_large
        self._clock = clock
        self._inputs = {spec.name: spec.datatype for spec in version.pipeline.signature.inputs}
        self._outputs = {spec.name: spec.datatype for spec in version.pipeline.signature.outputs}
        self._heads: dict[object, bytes] = {}
        self._seen: set[object] = set()
        """Names, datatypes and shapes of inputs that were found to fit."""

    def run(self, items: Sequence[Item], is_cancelled: Callable[[int], bool]) -> Outcome:
        """Answers every item. Never raises: a fault is the answer of the items that it concerns."""
        outcome = Outcome()
        started = time.perf_counter_ns()
        requests = self._admit(items, is_cancelled, outcome)
        for group in _by_shape(requests) if self._version.pipeline.preprocess.source is not None else [requests]:
            if group:
                self._run_group(group, outcome, started)
            started = time.perf_counter_ns()
        return outcome

    def _admit(self, items: Sequence[Item], is_cancelled: Callable[[int], bool], outcome: Outcome) -> list[_Request]:
        """Parses and prepares what is still wanted; refuses the rest."""
        requests: list[_Request] = []
        for item in items:
            try:
                if is_cancelled(item.id):
                    outcome.cancelled += 1
                    raise Cancelled("the caller left before the request ran")
                # Asked anew for each: what comes before it may have taken long to decode.
                if item.deadline <= self._clock():
                    outcome.expired += 1
                    raise DeadlineExceeded("the deadline passed before the request ran")
                requests.append(self._prepare(item))
            except MeshError as error:
                outcome.answers[item.id] = error
            except Exception:
                _log.error("a request could not be prepared", model=self._version.name, exc_info=True)
                outcome.answers[item.id] = Internal("the worker failed to prepare the request; its log says how")
        return requests

    def _prepare(self, item: Item) -> _Request:
        try:
            message = oip.ModelInferRequest.FromString(item.request)
        except DecodeError:
            raise InvalidInput("the request is no inference.ModelInferRequest message") from None
        request = _Request(item, message)
        self._check(message)
        preprocess = self._version.pipeline.preprocess
        if preprocess.source is not None:
            tensor = message.inputs[0]
            self._check_tensor(tensor.name, tensor.datatype, tuple(tensor.shape))
            elements = decode_bytes(message.raw_input_contents[0], count=element_count(tensor.shape), tensor=tensor.name)
            try:
                request.prepared = preprocess.prepare(elements)
            except InvalidInput as error:
                raise InvalidInput(f"input {tensor.name!r}: {error.message}") from None
            request.rows = len(elements)
            return request
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
            name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
            if (name, datatype, shape) not in self._seen:
                self._check_tensor(name, datatype, shape)
            request.inputs[name] = _array(name, datatype, shape, raw)
            request.rows = shape[0] if self._version.batching is not None else 1
        if len(self._inputs) > 1:
            self._check_rows(request)
        return request

    def _check(self, message: oip.ModelInferRequest) -> None:
        """Raises InvalidInput when the request does not fit the model at all.

        The router has said so before, with more words; but a model may have been replaced while the request was queued.
        """
        expected, tensors, contents = len(self._inputs), len(message.inputs), len(message.raw_input_contents)
        if tensors != expected or contents != expected:
            raise InvalidInput(
                f"inputs: {', '.join(self._inputs)} with as many raw_input_contents expected, got {tensors} inputs and {contents} contents"
            )
        for output in message.outputs:
            if output.name not in self._outputs:
                raise InvalidInput(f"output {output.name!r} is unknown: the model gives {', '.join(self._outputs)}")

    def _check_tensor(self, name: str, datatype: str, shape: tuple[int, ...]) -> None:
        wanted = self._inputs.get(name)
        if wanted is None:
            raise InvalidInput(f"input {name!r} is unknown: the model takes {', '.join(self._inputs)}")
        if datatype != wanted:
            raise InvalidInput(f"input {name!r}: datatype {wanted} expected, got {datatype!r}")
        if any(extent < 0 for extent in shape) or (self._version.batching is not None and not shape):
            raise InvalidInput(f"input {name!r}: a shape without negative extents expected, got {list(shape)}")
        if len(self._seen) >= _MAX_HEADS:
            self._seen.clear()
        self._seen.add((name, datatype, shape))

    def _check_rows(self, request: _Request) -> None:
        if len(request.inputs) != len(self._inputs):
            raise InvalidInput(f"inputs: each of {', '.join(self._inputs)} once expected, got {', '.join(request.inputs)} only")
        if self._version.batching is not None and len({len(array) for array in request.inputs.values()}) > 1:
            shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in request.inputs.items())
            raise InvalidInput(f"inputs: as many rows in each expected, got {shapes}")

    def _run_group(self, requests: list[_Request], outcome: Outcome, started: int) -> None:
        """Runs requests together; when the model fails at it, each alone, so that only the guilty ones fail."""
        try:
            if self._version.batching is None and len(requests) > 1:
                raise _OneByOne
            with np.errstate(all="ignore"):  # NaN and infinities are answers like others
                inputs = self._stack(requests)
                ready = time.perf_counter_ns()
                outputs = self._version.pipeline.run(inputs)
                ran = time.perf_counter_ns()
            self._split(requests, outputs, outcome)
        except Exception as error:
            if len(requests) > 1:
                for request in requests:
                    self._run_group([request], outcome, time.perf_counter_ns())
            else:
                outcome.answers[requests[0].item.id] = self._fault(error)
            return
        outcome.compute_input_ns += ready - started
        outcome.compute_infer_ns += ran - ready
        outcome.compute_output_ns += time.perf_counter_ns() - ran
        outcome.rows += sum(request.rows for request in requests)

    def _fault(self, error: Exception) -> MeshError:
        if isinstance(error, MeshError):
            return error
        _log.warning("a model failed", model=self._version.name, version=self._version.version, error=reason(error))
        return Internal(f"model {self._version.name!r} failed: {reason(error)}")

    def _stack(self, requests: list[_Request]) -> Arrays:
        preprocess = self._version.pipeline.preprocess
        if preprocess.source is not None:
            return preprocess.finish([request.prepared for request in requests if request.prepared is not None])
        if len(requests) == 1:
            arrays = requests[0].inputs
        else:
            arrays = {
                spec.name: np.concatenate([request.inputs[spec.name] for request in requests])
                for spec in self._version.pipeline.signature.inputs
            }
        return arrays if preprocess.empty else {name: preprocess.transform(array) for name, array in arrays.items()}

    def _split(self, requests: list[_Request], outputs: Arrays, outcome: Outcome) -> None:
        datatypes = self._outputs
        batched = self._version.batching is not None
        total = sum(request.rows for request in requests)
        if batched:
            for name, array in outputs.items():
                if array.shape[:1] != (total,):
                    raise Internal(f"output {name!r}: {total} rows expected, the model gave the shape {list(array.shape)}")
        # Bytes of a whole output once, not of each slice: a row's bytes are then a slice of bytes.
        raw = {name: np.ascontiguousarray(array).tobytes() for name, array in outputs.items() if datatypes[name] != "BYTES"}
        begin = 0
        for request in requests:
            end = begin + request.rows
            wanted = [output.name for output in request.message.outputs] or list(outputs)
            parts: list[bytes] = []
            shapes: list[tuple[str, str, tuple[int, ...]]] = []
            for name in wanted:
                array = outputs[name]
                shape = (request.rows, *array.shape[1:]) if batched else array.shape
                shapes.append((name, datatypes[name], shape))
                if datatypes[name] == "BYTES":
                    parts.append(_text(array[begin:end] if batched else array))
                elif len(requests) == 1:
                    parts.append(raw[name])
                else:
                    size = len(raw[name]) // total if total else 0
                    parts.append(raw[name][begin * size : end * size])
            outcome.answers[request.item.id] = self._response(request.message.id, tuple(shapes), parts)
            begin = end

    def _response(self, request_id: str, shapes: tuple[tuple[str, str, tuple[int, ...]], ...], parts: list[bytes]) -> "bytes | MeshError":
        """A serialized ModelInferResponse.

        Serialized messages may be joined: parsing the whole gives their merger (protobuf's encoding guide). So the part that
        depends on names and shapes alone is made once, and the tensors follow as fields of their own, without a copy into a
        message and out of it again.
        """
        head = self._heads.get(shapes)
        if head is None:
            message = oip.ModelInferResponse(model_name=self._version.name, model_version=self._version.version)
            for name, datatype, shape in shapes:
                message.outputs.add(name=name, datatype=datatype, shape=shape)
            head = message.SerializeToString()
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[shapes] = head
        pieces = [head]
        if request_id:
            pieces.append(oip.ModelInferResponse(id=request_id).SerializeToString())
        for part in parts:
            pieces += (_RAW_OUTPUT, _varint(len(part)), part)
        response = b"".join(pieces)
        if len(response) > self._too_large.limit_bytes:
            return self._too_large.error("the answer", len(response))
        return response


class _OneByOne(Exception):
    """Requests of a model that does not batch came together."""


def _by_shape(requests: list[_Request]) -> list[list[_Request]]:
    """Requests whose prepared arrays have the same shape, apart from the rows, in order."""
    groups: dict[object, list[_Request]] = {}
    for request in requests:
        key = request.prepared.shape[1:] if isinstance(request.prepared, np.ndarray) else None
        groups.setdefault(key, []).append(request)
    return list(groups.values())


def _array(name: str, datatype: str, shape: tuple[int, ...], raw: bytes) -> Array:
    if datatype == "BYTES":
        elements = decode_bytes(raw, count=element_count(shape), tensor=name)
        texts = np.empty(len(elements), object)
        for index, element in enumerate(elements):
            try:
                texts[index] = element.decode()
            except UnicodeDecodeError:
                raise InvalidInput(f"input {name!r}: element {index} must be UTF-8 text for this model") from None
        return texts.reshape(shape)
    try:
        return np.frombuffer(raw, _DTYPES[datatype]).reshape(shape)
    except ValueError:
        raise InvalidInput(f"input {name!r}: {len(raw)} bytes do not make {datatype} {list(shape)}") from None


def _text(array: Array) -> bytes:
    return encode_bytes(element.encode() if isinstance(element, str) else bytes(element) for element in array.ravel())


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
