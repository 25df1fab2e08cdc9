"""ONNX files on ONNX Runtime."""

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from mcprun.datatypes import BY_ONNX
from mcprun.errors import FailedPrecondition, InvalidInput
from mcprun_worker.backends.base import Array, TensorSpec

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_WHICH_FILE = re.compile(r"^Load model from .*? failed:\s*")
_FAULTS_OF_INPUT = ("InvalidArgument",)
_LOCATION = b"\x0a\x08location\x12"
"""An entry of a tensor's external_data (a protobuf map of texts) up to the length of the file's name."""


class OnnxRuntime:
    """The backend `onnxruntime`."""

    platform = "onnxruntime_onnx"

    def load(self, path: Path, *, threads: int, device: str) -> "OnnxSession":
        """Loads an ONNX file, with its external data when it has such."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Between the steps of a run the threads spin, for to wake them would cost more; after it they would only take the cores from the
        # services beside this one.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        providers = _providers(device)
        try:
            size = path.stat().st_size
            if not path.is_file():
                raise InvalidInput(f"{path.name} is no file")
            if size == 0:
                raise InvalidInput(f"{path.name} is empty")
            # Left to itself, ONNX Runtime maps these files for as long as the session lives: a user who writes a new one over them
            # would change, or kill, what is being served. From memory it copies.
            external = _external_data(path)
            if external:
                options.add_external_initializers_from_files_in_memory(
                    list(external), list(external.values()), [len(content) for content in external.values()]
                )
            session = ort.InferenceSession(str(path), options, providers=providers)
        except OSError as error:
            raise InvalidInput(f"{Path(error.filename or path).name} cannot be read: {error.strerror}") from error
        except InvalidInput:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
            raise InvalidInput(f"{path.name} cannot be loaded: {_WHICH_FILE.sub('', reason(error))}") from error
        if device == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
            raise FailedPrecondition("device cuda: ONNX Runtime found no CUDA device that it can use")
        return OnnxSession(session)


class OnnxSession:
    """A loaded ONNX file."""

    def __init__(self, session: "ort.InferenceSession") -> None:
        self._session = session
        self.inputs = tuple(_spec(value) for value in session.get_inputs())
        self.outputs = tuple(_spec(value) for value in session.get_outputs())
        self._typed = any(spec.datatype == "BF16" for spec in (*self.inputs, *self.outputs))
        self._input_types = {spec.name: spec.datatype for spec in self.inputs}

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Runs the graph."""
        try:
            if self._typed:
                return self._run_typed(inputs, outputs)
            return [np.asarray(array) for array in self._session.run(outputs, inputs)]
        except Exception as error:
            if type(error).__name__ in _FAULTS_OF_INPUT:
                raise InvalidInput(f"the model refuses the input: {reason(error)}") from error
            raise

    def _run_typed(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """As `run`, for graphs with datatypes that numpy does not have."""
        values = {}
        for name, array in inputs.items():
            contiguous = np.ascontiguousarray(array)
            values[name] = (
                ort.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, _BFLOAT16)
                if self._input_types[name] == "BF16"
                else ort.OrtValue.ortvalue_from_numpy(contiguous)
            )
        return [_array(value) for value in self._session.run_with_ort_values(outputs, values)]

    def close(self) -> None:
        """Frees the model."""
        del self._session


def reason(error: BaseException) -> str:
    """What ONNX Runtime says, on one line and without its decoration."""
    return " ".join(_PREFIX.sub("", str(error)).split())[:500]


def _external_data(path: Path) -> dict[str, bytes]:
    """The files beside a model file that hold its tensors, by the name that the model calls them. Raises OSError."""
    model = path.read_bytes()
    names: set[str] = set()
    at = model.find(_LOCATION)
    while at >= 0:
        begin = at + len(_LOCATION) + 1
        # A name of 128 bytes or more has a longer length, and is left to ONNX Runtime.
        if begin <= len(model) and model[begin - 1] < 0x80:
            names.add(model[begin : begin + model[begin - 1]].decode(errors="replace"))
        at = model.find(_LOCATION, at + 1)
    # A name that leads out of the folder, or to nothing, is left to ONNX Runtime too, which refuses it.
    inside = (name for name in sorted(names) if not Path(name).is_absolute() and ".." not in Path(name).parts)
    return {name: (path.parent / name).read_bytes() for name in inside if (path.parent / name).is_file()}


def _providers(device: str) -> list[str]:
    available = ort.get_available_providers()
    if device != "cpu" and "CUDAExecutionProvider" in available:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
    if device == "cuda":
        raise FailedPrecondition("device cuda: no CUDA build of ONNX Runtime is installed (pip install 'mcprun-worker[cuda]')")
    return ["CPUExecutionProvider"]


def _spec(value: Any) -> TensorSpec:
    datatype = BY_ONNX.get(value.type)
    if datatype is None:
        raise InvalidInput(f"tensor {value.name!r} has the type {value.type}, which the protocol does not have")
    shape = tuple(extent if isinstance(extent, int) and extent >= 0 else -1 for extent in value.shape)
    symbols = tuple(extent if isinstance(extent, str) else "" for extent in value.shape)
    return TensorSpec(value.name, datatype.name, shape, symbols)


def _array(value: "ort.OrtValue") -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    count = int(np.prod(shape))
    if count == 0:
        return np.zeros(shape, np.uint16)
    # numpy has no bfloat16, and ONNX Runtime offers no other way to the bytes than their address.
    return np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * count), np.uint16).reshape(shape)
