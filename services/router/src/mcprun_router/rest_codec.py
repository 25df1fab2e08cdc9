"""REST bodies to messages and back: JSON, and Triton's binary tensor data behind it.

JSON has no NaN and no infinities. They travel as the strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON
mapping, in both directions; in binary they are exact.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import orjson

from mcprun.datatypes import DATATYPES, Datatype, decode_bytes, element_count, encode_bytes
from mcprun.errors import InvalidInput, MessageTooLarge
from mcprun.protocol.inference import grpc_service_pb2 as oip

HEADER_LENGTH = "inference-header-content-length"

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MAX_SHAPE = 64
_MAX_DIGITS = 18
_BINARY_SIZE = "binary_data_size"
_INT64 = range(-(2**63), 2**63)

Expect = Callable[[str, str, tuple[int, ...]], object]


def inflate(body: bytes, encoding: str, too_large: MessageTooLarge) -> bytes:
    """The body without its content-encoding. Raises InvalidInput when it is broken or of another encoding than gzip and
    deflate, ResourceExhausted when it grows over the message limit.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise InvalidInput(f"content-encoding: gzip, deflate or identity expected, got {encoding!r}")
    parts: list[bytes] = []
    room = too_large.limit_bytes + 1
    rest = body
    while rest or not parts:  # gzip allows several members behind one another
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells gzip and zlib apart by their headers
        try:
            parts.append(inflater.decompress(rest, room))
        except zlib.error as error:
            raise InvalidInput(f"the body is not valid {encoding}: {error}") from None
        room -= len(parts[-1])
        if room <= 0:
            raise too_large.error("the inflated request", None)
        if not inflater.eof:
            raise InvalidInput(f"the body is not valid {encoding}: it ends too early")
        rest = inflater.unused_data
    return b"".join(parts)


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidInput that says where the text is broken."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {_kind(document)}")
    return document


def split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON of an inference request, and the binary tensors behind it.

    `header_length` is the Inference-Header-Content-Length header: the JSON's length when binary tensors follow it.
    Raises InvalidInput.
    """
    if header_length is None:
        return parse_json(body), memoryview(b"")
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) <= _MAX_DIGITS
    if not digits or int(header_length) > len(body):
        raise InvalidInput(
            f"Inference-Header-Content-Length: a number up to the body's {len(body)} bytes expected, got {header_length[:100]!r}"
        )
    return parse_json(body[: int(header_length)]), memoryview(body)[int(header_length) :]


def decode_request(document: dict[str, Any], binary: memoryview, expect: Expect) -> tuple[oip.ModelInferRequest, "OutputForm"]:
    """An inference request, and how its outputs are wanted. Raises InvalidInput.

    `expect` is called with the name, datatype and shape of each input before its data is read, and raises InvalidInput when the
    model does not take that.
    """
    request = oip.ModelInferRequest(id=_text(document, "id", ""))
    parameters = _object(document, "parameters", "parameters")
    all_binary = parameters.pop("binary_data_output", False)
    if not isinstance(all_binary, bool):
        raise InvalidInput(f"parameters.binary_data_output: true or false expected, got {all_binary!r}")
    _set_parameters(request.parameters, parameters, "parameters")
    position = 0
    for index, entry in enumerate(_list(document, "inputs", required=True)):
        position = _decode_input(request, entry, f"inputs[{index}]", binary, position, expect)
    if position != len(binary):
        raise InvalidInput(f"{len(binary)} bytes of binary tensor data came, but the inputs declare {position}")
    form = OutputForm(all_binary)
    for index, entry in enumerate(_list(document, "outputs", required=False)):
        _decode_output(request, entry, f"outputs[{index}]", form)
    return request, form


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


def _decode_input(request: oip.ModelInferRequest, entry: Any, where: str, binary: memoryview, position: int, expect: Expect) -> int:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where}: an object expected, got {_kind(entry)}")
    name = _text(entry, "name", None, where)
    datatype_name = _text(entry, "datatype", None, where)
    datatype = DATATYPES.get(datatype_name)
    if datatype is None:
        raise InvalidInput(f"input {name!r}: datatype {datatype_name!r} is unknown")
    shape = _shape(entry, name)
    expect(name, datatype_name, tuple(shape))
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
        if "data" in entry:
            raise InvalidInput(f"input {name!r}: either data or shared_memory_region expected, got both")
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
    if datatype.name == "BF16":
        raise InvalidInput(f"input {name!r}: BF16 elements must come as binary data")
    elements, kinds = _flat(data, name)
    count = element_count(shape)
    if len(elements) != count:
        raise InvalidInput(f"input {name!r}: {count} elements expected by its shape, got {len(elements)}")
    target = np.dtype(datatype.numpy)
    # The kinds are looked at before numpy is: it makes text of numbers as soon as there is one text among them.
    if target.kind == "f":
        return _floats(elements, kinds, target, datatype, name)
    kind, wanted = {"O": (str, "a string"), "b": (bool, "true or false")}.get(target.kind, (int, "a whole number of at most 64 bits"))
    if not kinds <= {kind}:
        position = next(position for position, element in enumerate(elements) if type(element) is not kind)
        raise InvalidInput(f"input {name!r}: element {position} must be {wanted}, got {_shown(elements[position])}")
    if target.kind == "O":
        return encode_bytes(element.encode("utf-8", "surrogatepass") for element in elements)
    try:
        return np.array(elements, dtype=target).tobytes()
    except OverflowError:
        bounds = np.iinfo(target)
        bad = next(element for element in elements if not bounds.min <= element <= bounds.max)
        raise InvalidInput(f"input {name!r}: {datatype.name} holds {bounds.min} to {bounds.max}, got {bad}") from None


def _floats(elements: list[Any], kinds: set[type], target: "np.dtype[Any]", datatype: Datatype, name: str) -> bytes:
    if str in kinds:
        elements = [_NON_FINITE.get(element, element) if type(element) is str else element for element in elements]
        kinds = set(map(type, elements))
    if not kinds <= {int, float}:
        position = next(position for position, element in enumerate(elements) if type(element) not in (int, float))
        raise InvalidInput(
            f'input {name!r}: element {position} must be a number, "NaN", "Infinity" or "-Infinity", got {_shown(elements[position])}'
        )
    wide = np.array(elements, dtype=np.float64)
    with np.errstate(over="ignore"):
        array = wide.astype(target)
    overflown = np.isinf(array) & ~np.isinf(wide)
    if overflown.any():
        raise InvalidInput(f"input {name!r}: {wide[int(np.argmax(overflown))]} does not fit {datatype.name}")
    return array.tobytes()


def _flat(data: Any, name: str) -> tuple[list[Any], set[type]]:
    """The elements of flat or nested JSON lists, row by row, and the types that are among them."""
    elements = data if isinstance(data, list) else [data]
    for _ in range(_MAX_SHAPE):
        kinds = set(map(type, elements))
        if list not in kinds:
            return elements, kinds
        if len(kinds) > 1:
            raise InvalidInput(f"input {name!r}: data has lists beside elements")
        elements = list(chain.from_iterable(elements))
    raise InvalidInput(f"input {name!r}: data is nested deeper than {_MAX_SHAPE} lists")


def _shape(entry: dict[str, Any], name: str) -> list[int]:
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise InvalidInput(f"input {name!r}: shape must be a list of numbers, got {_kind(shape)}")
    if len(shape) > _MAX_SHAPE:
        raise InvalidInput(f"input {name!r}: shape must have at most {_MAX_SHAPE} numbers, got {len(shape)}")
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
