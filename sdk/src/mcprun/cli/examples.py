"""Commands to try against a mesh that has just become ready: one of the CLI, one of curl, one of another's client.

Each is one line, fit to be copied.
"""

import json
import sys
from typing import Any

from mcprun.cli.failure import CommandFailed
from mcprun.cli.mesh_client import DEFAULT_URL, MeshClient
from mcprun.cli.tensors import tensor

_MOST_ELEMENTS = 32
"""A larger input is no example to be typed."""
_NUMPY = {"FP32": "float32", "FP64": "float64", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool"}
_JSON = "-H 'content-type: application/json'"
_INSTALL = '   # pip install "tritonclient[grpc]"'


def demo_commands(url: str, target: str) -> list[str]:
    """What to try with the demo models."""
    body = '{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["good morning"]}]}'
    client = (
        "import numpy, tritonclient.grpc as grpc; text = grpc.InferInput('text', [1], 'BYTES'); "
        "text.set_data_from_numpy(numpy.array([b'good morning'], dtype=object)); "
        f"print(grpc.InferenceServerClient('{target}').infer('embed', [text]).as_numpy('embedding'))"
    )
    return [
        f"mcprun infer filetype --input {sys.executable}{_at(url)}",
        f"curl {url}/v2/models/embed/infer {_JSON} -d '{body}'",
        f'python -c "{client}"{_INSTALL}',
    ]


def commands(mesh: MeshClient, models: list[str], target: str) -> list[str]:
    """What to try with the first of these models whose input is small enough to be typed, or else with any mesh."""
    for model in models:
        try:
            inputs = mesh.metadata(model, None).get("inputs", [])
        except CommandFailed:
            continue
        if len(inputs) == 1 and (value := _zeros(inputs[0])) is not None:
            return _inference(mesh.url, target, model, inputs[0], value)
    client = f"import tritonclient.grpc as grpc; print(grpc.InferenceServerClient('{target}').get_model_repository_index())"
    return [
        f"mcprun models list{_at(mesh.url)}",
        f"curl -X POST {mesh.url}/v2/repository/index",
        f'python -c "{client}"{_INSTALL}',
    ]


def _inference(url: str, target: str, model: str, spec: dict[str, Any], value: Any) -> list[str]:
    sent = tensor(spec, value)
    name, datatype, shape = sent["name"], sent["datatype"], sent["shape"]
    client = (
        f"import numpy, tritonclient.grpc as grpc; x = grpc.InferInput('{name}', {shape}, '{datatype}'); "
        f"x.set_data_from_numpy(numpy.zeros({shape}, '{_NUMPY[datatype]}')); "
        f"print(grpc.InferenceServerClient('{target}').infer('{model}', [x]).get_response())"
    )
    return [
        f"mcprun infer {model} --input '{json.dumps(value)}'{_at(url)}",
        f"curl {url}/v2/models/{model}/infer {_JSON} -d '{json.dumps({'inputs': [sent]})}'",
        f'python -c "{client}"{_INSTALL}',
    ]


def _at(url: str) -> str:
    return "" if url == DEFAULT_URL else f" --url {url}"


def _zeros(spec: dict[str, Any]) -> Any:
    """Nested lists of zeros of an input's shape, with free extents of 1; None when there is no short one."""
    shape = [max(1, int(extent)) for extent in spec.get("shape", [])]
    count = 1
    for extent in shape:
        count *= extent
    if spec.get("datatype") not in _NUMPY or not shape or count > _MOST_ELEMENTS or not str(spec.get("name", "")).isidentifier():
        return None
    value: Any = {"BOOL": False, "FP32": 0.0, "FP64": 0.0}.get(str(spec["datatype"]), 0)
    for extent in reversed(shape):
        value = [value] * extent
    return value
