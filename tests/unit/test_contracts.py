"""The contracts are those that existing clients speak, and they are written to be read."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from mcprun.protocol.inference import grpc_service_pb2 as ours
from mcprun.protocol.inference import model_config_pb2 as our_config

PROTO = Path(__file__).resolve().parents[2] / "proto"


def facts(file: descriptor_pb2.FileDescriptorProto) -> dict[str, str]:
    """Everything of a contract that a peer can tell, by name."""
    found: dict[str, str] = {"package": file.package}

    def enum(path: str, told: descriptor_pb2.EnumDescriptorProto) -> None:
        found[f"{path}.{told.name}"] = str(sorted((value.name, value.number) for value in told.value))

    def message(path: str, told: descriptor_pb2.DescriptorProto) -> None:
        here = f"{path}.{told.name}"
        found[here] = "message"
        for field in told.field:
            group = told.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            found[f"{here}.{field.name}"] = f"{field.number} {field.type} {field.label} {field.type_name} {group}"
        for below in told.enum_type:
            enum(here, below)
        for nested in told.nested_type:
            message(here, nested)

    for told in file.message_type:
        message("", told)
    for told_enum in file.enum_type:
        enum("", told_enum)
    for service in file.service:
        for method in service.method:
            found[f"{service.name}/{method.name}"] = (
                f"{method.input_type} {method.output_type} {method.client_streaming} {method.server_streaming}"
            )
    return found


def file_of(module: object) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)  # type: ignore[attr-defined]
    return file


@pytest.mark.parametrize("name", ["service_pb2", "model_config_pb2"])
def test_the_protocol_is_that_of_existing_clients(name: str) -> None:
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs = facts(file_of({"service_pb2": service_pb2, "model_config_pb2": model_config_pb2}[name]))
    assert facts(file_of({"service_pb2": ours, "model_config_pb2": our_config}[name])) == theirs


def test_a_message_of_a_client_is_read_as_it_was_meant() -> None:
    from tritonclient.grpc import service_pb2 as theirs

    request = theirs.ModelInferRequest(model_name="m", model_version="2", id="7", raw_input_contents=[b"ab"])
    request.inputs.add(name="x", datatype="UINT8", shape=[1, 2]).parameters["p"].double_param = 1.5
    request.parameters["timeout"].int64_param = 9
    read = ours.ModelInferRequest.FromString(request.SerializeToString())
    assert str(read) == str(request)
    assert read.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "order", ["mcprun.protocol.inference.grpc_service_pb2, tritonclient.grpc", "tritonclient.grpc, mcprun.protocol.v1.admin_pb2"]
)
def test_another_client_of_the_protocol_can_live_in_the_same_process(order: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {order}"], check=True, timeout=60)


def uncommented(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    """What has no comment: messages, fields, enums, their values, services and methods."""
    commented = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}

    def check(path: tuple[int, ...], name: str) -> Iterator[str]:
        if path not in commented:
            yield f"{file.name}: {name}"

    def enum(path: tuple[int, ...], name: str, told: descriptor_pb2.EnumDescriptorProto) -> Iterator[str]:
        yield from check(path, f"{name}.{told.name}")
        for index, value in enumerate(told.value):
            # The zero value that protobuf asks for means that nothing was said.
            if not value.name.endswith("_UNSPECIFIED"):
                yield from check((*path, 2, index), f"{name}.{told.name}.{value.name}")

    def message(path: tuple[int, ...], name: str, told: descriptor_pb2.DescriptorProto) -> Iterator[str]:
        if told.options.map_entry:
            return
        here = f"{name}.{told.name}"
        yield from check(path, here)
        for index, field in enumerate(told.field):
            yield from check((*path, 2, index), f"{here}.{field.name}")
        for index, nested in enumerate(told.nested_type):
            yield from message((*path, 3, index), here, nested)
        for index, below in enumerate(told.enum_type):
            yield from enum((*path, 4, index), here, below)

    for index, told in enumerate(file.message_type):
        yield from message((4, index), "", told)
    for index, told_enum in enumerate(file.enum_type):
        yield from enum((5, index), "", told_enum)
    for index, service in enumerate(file.service):
        yield from check((6, index), service.name)
        for number, method in enumerate(service.method):
            yield from check((6, index, 2, number), f"{service.name}.{method.name}")


def test_every_part_of_every_contract_has_a_comment(tmp_path: Path) -> None:
    target = tmp_path / "descriptors"
    sources = [str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto")]
    assert len(sources) >= 7
    assert protoc.main(["protoc", f"-I{PROTO}", "--include_source_info", f"--descriptor_set_out={target}", *sources]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
    assert [missing for file in files for missing in uncommented(file)] == []
