"""Every operation of the protocol. Knows neither HTTP nor gRPC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc.aio
from google.protobuf.message import DecodeError, Message

from mcprun import __version__
from mcprun.datatypes import DATATYPES, element_count
from mcprun.errors import InvalidInput, MessageTooLarge, Unimplemented, from_code
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.inference import model_config_pb2
from mcprun.protocol.v1 import admin_pb2, admin_pb2_grpc, model_pb2
from mcprun_router import contents, validation
from mcprun_router.catalog import Catalog, Model
from mcprun_router.classification import top_classes
from mcprun_router.link import BatcherLink
from mcprun_router.settings import RouterSettings
from mcprun_router.shared_memory import Region, SharedMemory

M = TypeVar("M", bound=Message)
A = TypeVar("A")

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
)

_REGION, _REGION_OFFSET, _REGION_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
_CLASSIFICATION = "classification"
_STATES = {
    model_pb2.MODEL_STATE_LOADING: "LOADING",
    model_pb2.MODEL_STATE_READY: "READY",
    model_pb2.MODEL_STATE_UNAVAILABLE: "UNAVAILABLE",
}
_CONFIG_DATATYPES = {name: getattr(model_config_pb2, f"TYPE_{'STRING' if name == 'BYTES' else name}") for name in DATATYPES}


@dataclass(frozen=True, slots=True)
class Caller:
    """What a transport knows of the caller, beside the request."""

    timeout: float | None = None
    """How long it still waits, in seconds; None without a bound."""
    routing: str = ""
    """The x-routing header."""
    traceparent: str = ""
    tenant: str = ""


class Dataplane:
    """The router's core: one method an operation. All raise MeshError."""

    def __init__(self, settings: RouterSettings, catalog: Catalog, link: BatcherLink) -> None:
        self.catalog = catalog
        self.link = link
        self.shared_memory = SharedMemory()
        self.too_large = MessageTooLarge(settings.max_message_bytes)
        self._labels = settings.routing_labels
        self._default_model = settings.default_model
        self._admin = admin_pb2_grpc.AdminStub(link.channel)

    # Health and metadata

    def live(self) -> bool:
        """Whether the router answers at all."""
        return True

    def ready(self) -> bool:
        """Whether the batcher is connected and a worker has tried every model: requests are then served without a cold start,
        or refused for a reason of their model.
        """
        return self.link.connected and self.catalog.settled

    def model_ready(self, name: str, version: str) -> bool:
        """Whether a model version would serve the next request without a cold start. Raises NotFound."""
        return self.link.connected and self.catalog.resolve(name, version).ready

    def server_metadata(self) -> oip.ServerMetadataResponse:
        """Name, version and extensions."""
        return oip.ServerMetadataResponse(name="mcprun", version=__version__, extensions=EXTENSIONS)

    def model_metadata(self, name: str, version: str) -> oip.ModelMetadataResponse:
        """The signature of a model version."""
        model = self.catalog.usable(name, version)
        versions = self.catalog.versions(name)
        return oip.ModelMetadataResponse(
            name=name,
            versions=[other.version for other in versions if other.inputs],
            platform=model.description.platform,
            inputs=_metadata(model.description.inputs),
            outputs=_metadata(model.description.outputs),
        )

    def model_config(self, name: str, version: str) -> oip.ModelConfigResponse:
        """A model version's configuration in Triton's vocabulary, where the batch dimension is left out of `dims`."""
        model = self.catalog.usable(name, version)
        told = model.description
        skip = 1 if model.max_batch_size else 0
        config = model_config_pb2.ModelConfig(
            name=name,
            platform=told.platform,
            backend=told.backend,
            max_batch_size=model.max_batch_size,
            default_model_filename=told.model_filename,
            instance_group=[
                model_config_pb2.ModelInstanceGroup(name=name, count=told.instances, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
            ],
        )
        config.version_policy.specific.versions.extend(
            int(other.version) for other in self.catalog.versions(name) if other.version.isdigit()
        )
        for spec in told.inputs:
            config.input.add(name=spec.name, data_type=_CONFIG_DATATYPES[spec.datatype], dims=spec.shape[skip:])
        for spec in told.outputs:
            config.output.add(name=spec.name, data_type=_CONFIG_DATATYPES[spec.datatype], dims=spec.shape[skip:])
        if model.max_batch_size:
            config.dynamic_batching.max_queue_delay_microseconds = told.batching.max_wait_ns // 1000
            config.dynamic_batching.default_queue_policy.max_queue_size = told.batching.max_queue_size
        config.parameters["model_yaml"].string_value = told.config_json
        return oip.ModelConfigResponse(config=config)

    async def statistics(self, name: str, version: str) -> oip.ModelStatisticsResponse:
        """What models have done since the batcher started."""
        if name:
            model = self.catalog.resolve(name, version)
            version = model.version if version else ""
        answer = await _told(self._admin.GetStatistics(admin_pb2.GetStatisticsRequest(name=name, version=version)))
        return oip.ModelStatisticsResponse(model_stats=answer.models)

    # Repository

    def repository_index(self, *, ready_only: bool) -> oip.RepositoryIndexResponse:
        """Every model version that a worker found in its repository."""
        index = oip.RepositoryIndexResponse()
        for model in self.catalog.all():
            if model.ready or not ready_only:
                state = _STATES.get(model.description.state, "UNKNOWN")
                index.models.add(name=model.name, version=model.version, state=state, reason=model.description.reason)
        return index

    async def load(self, name: str, parameters: Sequence[str]) -> None:
        """Loads a model, or loads it anew when its files changed."""
        if parameters:
            raise Unimplemented(f"loading with parameters is not supported, got {', '.join(parameters)}: change the model's folder instead")
        await _told(self._admin.LoadModel(admin_pb2.LoadModelRequest(name=name)))

    async def unload(self, name: str) -> None:
        """Unloads a model once what was accepted for it is answered."""
        await _told(self._admin.UnloadModel(admin_pb2.UnloadModelRequest(name=name)))

    # Inference

    def default_model(self) -> str:
        """The model of a request that names none. Raises InvalidInput when there is no such model."""
        if self._default_model:
            return self._default_model
        names = self.catalog.names()
        if len(names) != 1:
            raise InvalidInput(
                f"the request names no model and there is no default one: give one of {', '.join(names) or '(none is loaded)'}"
            )
        return names[0]

    async def infer_bytes(self, body: bytes, caller: Caller) -> bytes:
        """Runs a serialized ModelInferRequest and returns the serialized ModelInferResponse.

        The bytes are passed on as they came wherever nothing in them has to change.
        """
        request = decode(oip.ModelInferRequest, body)
        plain = len(request.raw_input_contents) == len(request.inputs) and not any(
            tensor.HasField("contents") or tensor.parameters for tensor in request.inputs
        )
        return await self._infer(request, body if plain else None, caller)

    async def infer(self, request: oip.ModelInferRequest, caller: Caller) -> oip.ModelInferResponse:
        """Runs a request."""
        return decode(oip.ModelInferResponse, await self._infer(request, None, caller))

    def model(self, name: str, version: str, caller: Caller) -> Model:
        """The model version that a caller's request is for. Raises NotFound, and Unavailable when it cannot run."""
        label = self._labels.get(caller.routing, "") if caller.routing else ""
        return self.catalog.usable(name, version, label)

    async def _infer(self, request: oip.ModelInferRequest, body: bytes | None, caller: Caller) -> bytes:
        model = self.model(request.model_name, request.model_version, caller)
        if body is None:
            self._gather(request, model)
        timeout = caller.timeout
        if request.parameters:
            timeout = _parameter_timeout(request, timeout)
        special = bool(request.outputs) and any(output.parameters for output in request.outputs)
        if special:
            self._check_wishes(request)
        fit = validation.check(request, model)
        if body is None:
            body = request.SerializeToString()
            if len(body) > self.too_large.limit_bytes:
                raise self.too_large.error("the request", len(body))
        answer = await self.link.call(
            body,
            model_name=model.name,
            model_version=model.version,
            rows=fit.rows,
            shape_key=fit.shape_key,
            timeout=timeout,
            traceparent=caller.traceparent,
            tenant=caller.tenant,
        )
        return self._place(request, answer, model) if special else answer

    def _gather(self, request: oip.ModelInferRequest, model: Model) -> None:
        """Brings every tensor of a request into raw_input_contents, in the order of the inputs."""
        given = list(request.raw_input_contents)
        raw: list[bytes] = []
        total = 0
        for tensor in request.inputs:
            if tensor.datatype not in DATATYPES:
                raise InvalidInput(f"input {tensor.name!r}: datatype {tensor.datatype!r} is unknown")
            if _REGION in tensor.parameters:
                if tensor.HasField("contents"):
                    raise InvalidInput(f"input {tensor.name!r}: either shared memory or contents expected, got both")
                spec = validation.expect(model, tensor.name, tensor.datatype, tuple(tensor.shape))
                region, offset, size = self._place_of(tensor.parameters, f"input {tensor.name!r}")
                expected = element_count(tensor.shape) * spec.itemsize
                if spec.itemsize and size != expected:
                    raise InvalidInput(f"input {tensor.name!r}: {expected} bytes expected by its shape, got {_REGION_SIZE} {size}")
                total += size
                if total > self.too_large.limit_bytes:
                    raise self.too_large.error("the request", total)
                raw.append(region.read(offset, size))
                for key in (_REGION, _REGION_SIZE, _REGION_OFFSET):
                    tensor.parameters.pop(key, None)
            elif tensor.HasField("contents"):
                if given:
                    raise InvalidInput(f"input {tensor.name!r}: typed contents cannot be mixed with raw_input_contents")
                raw.append(contents.to_raw(tensor))
                tensor.ClearField("contents")
            elif given:
                raw.append(given.pop(0))
            elif all(extent != 0 for extent in tensor.shape):
                raise InvalidInput(f"input {tensor.name!r} has no data: neither raw_input_contents nor contents nor shared memory")
            else:
                raw.append(b"")
        if given:
            raise InvalidInput(f"raw_input_contents has {len(given)} entries more than there are inputs without other data")
        del request.raw_input_contents[:]
        request.raw_input_contents.extend(raw)

    def _check_wishes(self, request: oip.ModelInferRequest) -> None:
        """Refuses before the run what could not be carried out after it."""
        for output in request.outputs:
            whose = f"output {output.name!r}"
            _whole(output.parameters, _CLASSIFICATION, whose)
            if _REGION in output.parameters:
                self._place_of(output.parameters, whose)

    def _place_of(self, parameters: Mapping[str, oip.InferParameter], whose: str) -> tuple[Region, int, int]:
        """The region that a tensor's parameters name, and offset and size in it in bytes. Raises InvalidInput and NotFound."""
        name = _value(parameters[_REGION])
        if not isinstance(name, str):
            raise InvalidInput(f"{whose}: parameter {_REGION} must be a string, got {name!r}")
        return self.shared_memory.get(name), _whole(parameters, _REGION_OFFSET, whose), _whole(parameters, _REGION_SIZE, whose)

    def _place(self, request: oip.ModelInferRequest, answer: bytes, model: Model) -> bytes:
        """Turns outputs into classes and puts them into shared memory where the request asks for it."""
        response = decode(oip.ModelInferResponse, answer)
        wanted = {output.name: output.parameters for output in request.outputs}
        labels = {spec.name: list(spec.labels) for spec in model.description.outputs}
        raw = list(response.raw_output_contents)
        for position, output in enumerate(response.outputs):
            parameters = wanted[output.name]
            count = _whole(parameters, _CLASSIFICATION, f"output {output.name!r}")
            if count:
                raw[position], shape = top_classes(
                    raw[position],
                    name=output.name,
                    datatype=output.datatype,
                    shape=tuple(output.shape),
                    count=count,
                    labels=labels[output.name],
                    batched=model.max_batch_size > 0,
                )
                output.datatype = "BYTES"
                output.shape[:] = shape
            if _REGION in parameters:
                region, offset, room = self._place_of(wanted[output.name], f"output {output.name!r}")
                if len(raw[position]) > room:
                    raise InvalidInput(f"output {output.name!r} has {len(raw[position])} bytes, but shared_memory_byte_size allows {room}")
                region.write(offset, raw[position])
                output.parameters[_REGION].string_param = region.name
                output.parameters[_REGION_SIZE].int64_param = len(raw[position])
                output.parameters[_REGION_OFFSET].int64_param = offset
                raw[position] = b""
        del response.raw_output_contents[:]
        response.raw_output_contents.extend(raw)
        return response.SerializeToString()


def _whole(parameters: Mapping[str, oip.InferParameter], name: str, whose: str) -> int:
    """A parameter that must be a whole number and not below 0; 0 when it is absent."""
    if name not in parameters:
        return 0
    value = _value(parameters[name])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{whose}: parameter {name} must be a whole number of at least 0, got {value!r}")
    return value


def decode(kind: type[M], body: bytes) -> M:
    """Parses a message. Raises InvalidInput when the bytes are none."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise InvalidInput(f"the body is no {kind.DESCRIPTOR.full_name} message") from None


def _metadata(specs: Sequence[model_pb2.TensorSpec]) -> list[oip.ModelMetadataResponse.TensorMetadata]:
    return [oip.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape) for spec in specs]


def _parameter_timeout(request: oip.ModelInferRequest, timeout: float | None) -> float | None:
    """The caller's timeout or that of the `timeout` parameter, which is in microseconds, whichever is shorter."""
    parameters = request.parameters
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if name in parameters and _value(parameters[name]) not in (0, "", False, None):
            raise InvalidInput(f"parameter {name!r}: sequences are not supported")
    if "timeout" not in parameters:
        return timeout
    value = _value(parameters["timeout"])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"parameter 'timeout': a whole number of microseconds is expected, got {value!r}")
    if value == 0:
        return timeout
    return value / 1e6 if timeout is None else min(timeout, value / 1e6)


def _value(parameter: oip.InferParameter) -> bool | int | str | float | None:
    chosen = parameter.WhichOneof("parameter_choice")
    return cast("bool | int | str | float", getattr(parameter, chosen)) if chosen else None


async def _told(call: "grpc.aio.UnaryUnaryCall[Any, A]") -> A:
    """The answer of another service, its refusals as MeshErrors."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_code(error.code().value[0], error.details() or "the batcher gave no reason") from error
