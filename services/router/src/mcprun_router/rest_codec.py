"""REST bodies to messages and back: JSON, and Triton's binary tensor data behind it.

JSON has no NaN and no infinities. They travel as the strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON
mapping, in both directions; in binary they are exact.
"""

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from mcprun.datatypes import DATATYPES, Datatype, decode_bytes, element_count, encode_bytes
from mcprun.errors import InvalidInput, MessageTooLarge
from mcprun.protocol.inference import grpc_service_pb2 as oip

HEADER_LENGTH = "inference-header-content-length"

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MAX_SHAPE = 64
_BINARY_SIZE = "binary_data_size"
_INT64 = range(-(2**63), 2**63)


def inflate(body: bytes, encoding: str, too_large: MessageTooLarge) -> bytes:
    """The body without its content-encoding. Raises InvalidInput when it is broken or of another encoding than gzip and
    deflate, ResourceExhausted when it grows over the message limit.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise InvalidInput(f"content-encoding: gzip, deflate or identity expected, got {encoding!r}")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells gzip and zlib apart by their headers
    try:
        plain = inflater.decompress(body, too_large.limit_bytes + 1)
    except zlib.error as error:
        raise InvalidInput(f"the body is not valid {encoding}: {error}") from None
    if len(plain) > too_large.limit_bytes:
        raise too_large.error("the inflated request", None)
    if not inflater.eof:
        raise InvalidInput(f"the body is not valid {encoding}: it ends too early")
    return plain


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidInput that says where the text is broken."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {_kind(document)}")
    return document


def decode_request(body: bytes, header_length: str | None) -> tuple[oip.ModelInferRequest, dict[str, Any], "OutputForm"]:
    """An inference request, the JSON that it came in, and how its outputs are wanted.

    `header_length` is the Inference-Header-Content-Length header: the JSON's length when binary tensors follow it.
    Raises InvalidInput.
    """
    binary = memoryview(b"")
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
            raise InvalidInput(
                f"Inference-Header-Content-Length: a number up to the body's {len(body)} bytes expected, got {header_length!r}"
            )
        binary = memoryview(body)[int(header_length) :]
        body = body[: int(header_length)]
    document = parse_json(body)
    request = oip.ModelInferRequest(id=_text(document, "id", ""))
    parameters = _object(document, "parameters", "parameters")
    all_binary = parameters.pop("binary_data_output", False)
    if not isinstance(all_binary, bool):
        raise InvalidInput(f"parameters.binary_data_output: true or false expected, got {all_binary!r}")
    _set_parameters(request.parameters, parameters, "parameters")
    position = 0
    for index, entry in enumerate(_list(document, "inputs", required=True)):
        position = _decode_input(request, entry, f"inputs[{index}]", binary, position)
    if position != len(binary):
        raise InvalidInput(f"{len(binary)} bytes of binary tensor data came, but the inputs declare {position}")
    form = OutputForm(all_binary)
    for index, entry in enumerate(_list(document, "outputs", required=False)):
        _decode_output(request, entry, f"outputs[{index}]", form)
    return request, document, form


class OutputForm:
    """Which outputs are wanted as binary data."""

    def __init__(self, all_binary: bool) -> None:
        self._all = all_binary
        self._single: dict[str, bool] = {}

    def set(self, name: str, binary: bool) -> None:
        """The request says so of one output."""
        self._single[name] = binary

    def binary(self, name: str) -> bool:
        """Whether an output is wanted as binary data."""
        return self._single.get(name, self._all)


def encode_response(response: oip.ModelInferResponse, form: OutputForm) -> tuple[list[bytes], int | None]:
    """The parts of a response body, and the length of its JSON part when binary tensors follow it.

    Raises InvalidInput when an output cannot be written as JSON.
    """
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        parameters = _parameters(tensor.parameters)
        if "shared_memory_region" in parameters:
            pass
        elif form.binary(tensor.name):
            parameters[_BINARY_SIZE] = len(raw)
            tail.append(raw)
        else:
            entry["data"] = _json_data(tensor, raw)
        if parameters:
            entry["parameters"] = parameters
        outputs.append(entry)
    document: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = _parameters(response.parameters)
    document["outputs"] = outputs
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return [head, *tail], (len(head) if tail else None)


def _decode_input(request: oip.ModelInferRequest, entry: Any, where: str, binary: memoryview, position: int) -> int:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where}: an object expected, got {_kind(entry)}")
    name = _text(entry, "name", None, where)
    datatype_name = _text(entry, "datatype", None, where)
    datatype = DATATYPES.get(datatype_name)
    if datatype is None:
        raise InvalidInput(f"input {name!r}: datatype {datatype_name!r} is unknown")
    shape = _shape(entry, name)
    tensor = request.inputs.add(name=name, datatype=datatype_name, shape=shape)
    parameters = _object(entry, "parameters", f"{where}.parameters")
    size = parameters.pop(_BINARY_SIZE, None)
    _set_parameters(tensor.parameters, parameters, f"{where}.parameters")
    if size is not None:
        if "data" in entry:
            raise InvalidInput(f"input {name!r}: either data or {_BINARY_SIZE} expected, got both")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidInput(f"input {name!r}: {_BINARY_SIZE} must be a number of bytes, got {size!r}")
        if position + size > len(binary):
            raise InvalidInput(f"input {name!r}: {size} bytes of binary data expected, got {len(binary) - position}")
        request.raw_input_contents.append(bytes(binary[position : position + size]))
        return position + size
    if "shared_memory_region" in parameters:
        return position
    if "data" not in entry:
        raise InvalidInput(f"input {name!r} has no data")
    request.raw_input_contents.append(_raw(entry["data"], datatype, shape, name))
    return position


def _decode_output(request: oip.ModelInferRequest, entry: Any, where: str, form: OutputForm) -> None:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where}: an object expected, got {_kind(entry)}")
    name = _text(entry, "name", None, where)
    parameters = _object(entry, "parameters", f"{where}.parameters")
    binary = parameters.pop("binary_data", None)
    if binary is not None:
        if not isinstance(binary, bool):
            raise InvalidInput(f"output {name!r}: binary_data must be true or false, got {binary!r}")
        form.set(name, binary)
    output = request.outputs.add(name=name)
    _set_parameters(output.parameters, parameters, f"{where}.parameters")


def _raw(data: Any, datatype: Datatype, shape: list[int], name: str) -> bytes:
    """The raw form of JSON data, flat or nested."""
    count = element_count(shape) if all(extent >= 0 for extent in shape) else -1
    if datatype.name == "BYTES":
        elements = _flat(data, name)
        encoded: list[bytes] = []
        for position, element in enumerate(elements):
            if not isinstance(element, str):
                raise InvalidInput(f"input {name!r}: element {position} of a BYTES tensor must be a string, got {_kind(element)}")
            encoded.append(element.encode("utf-8", "surrogatepass"))
        _check_count(len(encoded), count, name)
        return encode_bytes(encoded)
    if datatype.name == "BF16":
        raise InvalidInput(f"input {name!r}: BF16 elements must come as binary data")
    target = np.dtype(datatype.numpy)
    array = _array(data, target, name)
    _check_count(array.size, count, name)
    if target.kind == "f":
        with np.errstate(over="ignore"):
            converted = array.astype(target)
        if np.isinf(converted).any() and not np.isinf(array.astype(np.float64)).all():
            _check_overflow(array, converted, datatype, name)
        return converted.tobytes()
    if target.kind == "b":
        return array.astype(target).tobytes()
    if array.size:
        bounds = np.iinfo(target)
        low, high = array.min(), array.max()
        if low < bounds.min or high > bounds.max:
            bad = low if low < bounds.min else high
            raise InvalidInput(f"input {name!r}: {datatype.name} holds {bounds.min} to {bounds.max}, got {bad}")
    return array.astype(target).tobytes()


def _array(data: Any, target: "np.dtype[Any]", name: str) -> "np.ndarray[Any, Any]":
    """A flat array of JSON data, whose elements are of the kind that `target` needs."""
    if not isinstance(data, list):
        data = [data]
    try:
        array = np.array(data)
    except (ValueError, OverflowError):
        array = np.array(_flat(data, name), dtype=object)
    kind = array.dtype.kind
    if kind in {"U", "O"} and target.kind == "f":
        # Either "NaN" and its like among the numbers, or whole numbers over 64 bits.
        return np.array([_number(element, position, name) for position, element in enumerate(_flat(data, name))], dtype=np.float64)
    if not array.size:
        return np.zeros(0, target)
    expected = {"f": "iuf", "b": "b"}.get(target.kind, "iu")
    if kind not in expected:
        for position, element in enumerate(_flat(data, name)):
            good = isinstance(element, bool) if target.kind == "b" else isinstance(element, int) and not isinstance(element, bool)
            if not good:
                wanted = "true or false" if target.kind == "b" else ("a number" if target.kind == "f" else "a whole number")
                if target.kind == "f" and isinstance(element, float):
                    continue
                raise InvalidInput(f"input {name!r}: element {position} must be {wanted}, got {_shown(element)}")
        if target.kind == "u" and kind == "f":
            # Whole numbers above the signed range make numpy choose floats.
            return np.array(_flat(data, name), dtype=object)
        return np.array(_flat(data, name), dtype=object)
    if kind in "iuf" and target.kind in "iuf" and _has_bool(data):
        raise InvalidInput(f"input {name!r}: numbers expected, got true or false among them")
    return array.ravel()


def _has_bool(data: Any) -> bool:
    return any(_has_bool(part) if isinstance(part, list) else isinstance(part, bool) for part in data)


def _number(element: Any, position: int, name: str) -> float:
    if isinstance(element, str) and element in _NON_FINITE:
        return _NON_FINITE[element]
    if isinstance(element, int | float) and not isinstance(element, bool):
        return float(element)
    raise InvalidInput(f'input {name!r}: element {position} must be a number, "NaN", "Infinity" or "-Infinity", got {_shown(element)}')


def _check_overflow(array: "np.ndarray[Any, Any]", converted: "np.ndarray[Any, Any]", datatype: Datatype, name: str) -> None:
    wide = array.astype(np.float64)
    bad = np.isinf(converted) & ~np.isinf(wide)
    if bad.any():
        raise InvalidInput(f"input {name!r}: {wide[int(np.argmax(bad))]} does not fit {datatype.name}")


def _flat(data: Any, name: str) -> list[Any]:
    """The elements of flat or nested JSON lists, row by row. Not recursive: a client chooses how deep they nest."""
    if not isinstance(data, list):
        return [data]
    flat: list[Any] = []
    stack: list[Any] = [iter(data)]
    while stack:
        for element in stack[-1]:
            if isinstance(element, list):
                if len(stack) >= _MAX_SHAPE:
                    raise InvalidInput(f"input {name!r}: data is nested deeper than {_MAX_SHAPE} lists")
                stack.append(iter(element))
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


def _check_count(got: int, expected: int, name: str) -> None:
    # A negative extent is refused later, with the shape that the model expects.
    if expected >= 0 and got != expected:
        raise InvalidInput(f"input {name!r}: {expected} elements expected by its shape, got {got}")


def _shape(entry: dict[str, Any], name: str) -> list[int]:
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) > _MAX_SHAPE:
        raise InvalidInput(f"input {name!r}: shape must be a list of at most {_MAX_SHAPE} numbers, got {_kind(shape)}")
    for extent in shape:
        if isinstance(extent, bool) or not isinstance(extent, int) or extent not in _INT64:
            raise InvalidInput(f"input {name!r}: shape must hold whole numbers, got {_shown(extent)}")
    return shape


def _json_data(tensor: oip.ModelInferResponse.InferOutputTensor, raw: bytes) -> Any:
    if tensor.datatype == "BYTES":
        elements = decode_bytes(raw, count=element_count(tensor.shape), tensor=tensor.name)
        try:
            return [element.decode() for element in elements]
        except UnicodeDecodeError:
            raise InvalidInput(f"output {tensor.name!r} holds bytes that are no UTF-8 text: ask for it with binary_data true") from None
    if tensor.datatype == "BF16":
        wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
        array = wide.view("<f4")
    else:
        array = np.frombuffer(raw, DATATYPES[tensor.datatype].numpy)
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    return [_finite(value) for value in array.tolist()]


def _finite(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _set_parameters(target: Any, parameters: dict[str, Any], where: str) -> None:
    for key, value in parameters.items():
        if isinstance(value, bool):
            target[key].bool_param = value
        elif isinstance(value, int) and value in _INT64:
            target[key].int64_param = value
        elif isinstance(value, float):
            target[key].double_param = value
        elif isinstance(value, str):
            target[key].string_param = value
        else:
            raise InvalidInput(f"{where}.{key}: true, false, a number or a string expected, got {_shown(value)}")


def _parameters(parameters: Mapping[str, oip.InferParameter]) -> dict[str, Any]:
    return {key: getattr(value, chosen) for key, value in parameters.items() if (chosen := value.WhichOneof("parameter_choice"))}


def _text(document: dict[str, Any], key: str, default: str | None, where: str = "the request") -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {key} must be a string, got {_kind(value)}")
    return value


def _object(document: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: an object expected, got {_kind(value)}")
    return dict(value)


def _list(document: dict[str, Any], key: str, *, required: bool) -> list[Any]:
    value = document.get(key)
    if value is None and not required:
        return []
    if not isinstance(value, list):
        raise InvalidInput(f"{key}: a list expected, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}[type(value)]


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode()[:80]
