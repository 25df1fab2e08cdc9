"""mcprun infer: one inference from a file, JSON or text."""

import errno
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.cli.mesh_client import MeshClient, find_url
from mcprun.cli.output import console, print_json, print_table
from mcprun.cli.tensors import binary_tensor, rows, tensor

_SHOWN = 8
_LIKE_A_PATH = re.compile(r"^\S*(/\S+|\.[A-Za-z0-9]{1,5})$")


@dataclass(frozen=True, slots=True)
class Given:
    """What was given as --input: JSON, or the bytes of a file or of a text."""

    json: Any = None
    content: bytes | None = None


def infer(model: str, value: str | None, *, version: str | None, routing: str | None, url: str | None, as_json: bool) -> None:
    """Runs one inference and prints what comes out."""
    given = read_input(value)
    with MeshClient(find_url(url, Path())) as mesh:
        body, json_size = request(mesh.metadata(model, version), given)
        headers = {"x-routing": routing} if routing else {}
        answer = mesh.infer(model, version, body=body, json_size=json_size, headers=headers)
    if as_json:
        print_json(answer)
    else:
        _print(answer)


def read_input(value: str | None) -> Given:
    """Reads what --input names. Raises CommandFailed."""
    if value is None and not sys.stdin.isatty():
        value = "-"
    if value is None:
        raise CommandFailed(ExitCode.USAGE, "--input is required: a file, JSON, a text, or - for standard input")
    if value == "-":
        return _content(sys.stdin.buffer.read(), "standard input", certain=False)
    if value.lstrip().startswith(("{", "[")):
        return Given(json=_parsed(value, "--input"))
    try:
        path = Path(value)
        if path.is_file():
            return _content(path.read_bytes(), value, certain=path.suffix == ".json")
        if path.is_dir():
            raise CommandFailed(ExitCode.USAGE, f"{value} is a folder; a file is expected")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise CommandFailed(ExitCode.USAGE, f"{value} cannot be read: {error.strerror}") from error
    except ValueError:
        # Text with a zero byte is no path.
        return Given(content=value.encode())
    if _LIKE_A_PATH.match(value):
        raise CommandFailed(ExitCode.USAGE, f"there is no file {value}")
    return Given(content=value.encode())


def request(metadata: dict[str, Any], given: Given) -> tuple[bytes, int | None]:
    """The body of the request, and the size of its JSON when raw bytes follow it. Raises CommandFailed."""
    inputs: list[dict[str, Any]] = metadata.get("inputs", [])
    if given.content is not None:
        if len(inputs) != 1 or inputs[0].get("datatype") != "BYTES":
            takes = ", ".join(_signature(spec) for spec in inputs)
            raise CommandFailed(ExitCode.USAGE, f"{metadata.get('name')} takes {takes}: JSON is expected as --input, not a file or text")
        description, raw = binary_tensor(inputs[0], [given.content])
        head = json.dumps({"inputs": [description]}).encode()
        return head + raw, len(head)
    if isinstance(given.json, dict) and isinstance(given.json.get("inputs"), list):
        return json.dumps(given.json).encode(), None
    if isinstance(given.json, dict):
        known = {spec["name"]: spec for spec in inputs}
        unknown = [name for name in given.json if name not in known]
        if unknown:
            raise CommandFailed(ExitCode.USAGE, f"{metadata.get('name')} has the inputs {', '.join(known)}, got {', '.join(unknown)}")
        tensors = [tensor(known[name], value) for name, value in given.json.items()]
    elif len(inputs) == 1:
        tensors = [tensor(inputs[0], given.json)]
    else:
        names = ", ".join(str(spec["name"]) for spec in inputs)
        raise CommandFailed(ExitCode.USAGE, f'{metadata.get("name")} has the inputs {names}: JSON of the form {{"NAME": ...}} is expected')
    return json.dumps({"inputs": tensors}).encode(), None


def _content(content: bytes, what: str, *, certain: bool) -> Given:
    """A file's content; JSON when it is called so, or when it looks so on standard input."""
    if certain:
        return Given(json=_parsed(content, what))
    if what == "standard input" and content.lstrip()[:1] in (b"{", b"["):
        try:
            return Given(json=json.loads(content))
        except ValueError:
            return Given(content=content)
    return Given(content=content)


def _parsed(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandFailed(ExitCode.USAGE, f"{what} is not JSON: {error}") from error


def _signature(spec: dict[str, Any]) -> str:
    return f"{spec.get('name')} ({spec.get('datatype')} {spec.get('shape')})"


def _print(answer: dict[str, Any]) -> None:
    out = console()
    out.print(f"{answer.get('model_name')} version {answer.get('model_version')}", style="bold")
    outputs: dict[str, dict[str, Any]] = {output["name"]: output for output in answer.get("outputs", [])}
    best, scores = outputs.get("labels"), outputs.get("scores")
    if best and scores and best.get("datatype") == "BYTES" and best.get("shape") == scores.get("shape"):
        del outputs["labels"], outputs["scores"]
        for index, (names, numbers) in enumerate(zip(rows(best), rows(scores), strict=True)):
            if index:
                out.print()
            ranked = zip(names, numbers, strict=True)
            print_table(
                ("rank", "label", "score"),
                [(str(rank), str(name), _number(score)) for rank, (name, score) in enumerate(ranked, start=1)],
                right=("rank", "score"),
            )
    if outputs:
        print_table(("output", "datatype", "shape", "values"), [_row(output) for output in outputs.values()])


def _row(output: dict[str, Any]) -> tuple[str, str, str, str]:
    values = [value for row in rows(output) for value in row]
    text = ", ".join(_number(value) for value in values[:_SHOWN])
    if len(values) > _SHOWN:
        text += f", ... ({len(values)} in all; --json prints them)"
    shape = " × ".join(str(extent) for extent in output.get("shape", [])) or "scalar"
    return str(output["name"]), str(output.get("datatype", "")), shape, text


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
