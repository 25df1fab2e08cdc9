"""The unary gRPC methods as functions from request bytes to answer bytes, for every transport that carries gRPC."""

from collections.abc import Awaitable, Callable

from mcprun.errors import InvalidInput, MeshError, Unimplemented
from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun_router.dataplane import Caller, Dataplane, decode

SERVICE = "inference.GRPCInferenceService"
STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"
INFER = f"/{SERVICE}/ModelInfer"

Method = Callable[[bytes, Caller], Awaitable[bytes]]

_CUDA = "CUDA shared memory is not supported"


class Methods:
    """`table` holds each unary method by its path."""

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane
        self.table: dict[str, Method] = {
            INFER: dataplane.infer_bytes,
            **{
                f"/{SERVICE}/{name}": method
                for name, method in (
                    ("ServerLive", self._server_live),
                    ("ServerReady", self._server_ready),
                    ("ModelReady", self._model_ready),
                    ("ServerMetadata", self._server_metadata),
                    ("ModelMetadata", self._model_metadata),
                    ("ModelConfig", self._model_config),
                    ("ModelStatistics", self._model_statistics),
                    ("RepositoryIndex", self._repository_index),
                    ("RepositoryModelLoad", self._load),
                    ("RepositoryModelUnload", self._unload),
                    ("SystemSharedMemoryStatus", self._shared_memory_status),
                    ("SystemSharedMemoryRegister", self._shared_memory_register),
                    ("SystemSharedMemoryUnregister", self._shared_memory_unregister),
                    ("CudaSharedMemoryStatus", self._cuda_status),
                    ("CudaSharedMemoryRegister", self._cuda_register),
                    ("CudaSharedMemoryUnregister", self._cuda_unregister),
                    ("TraceSetting", self._settings),
                    ("LogSettings", self._settings),
                )
            },
        }

    async def _server_live(self, body: bytes, caller: Caller) -> bytes:
        return oip.ServerLiveResponse(live=self._dataplane.live()).SerializeToString()

    async def _server_ready(self, body: bytes, caller: Caller) -> bytes:
        return oip.ServerReadyResponse(ready=self._dataplane.ready()).SerializeToString()

    async def _model_ready(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.ModelReadyRequest, body)
        return oip.ModelReadyResponse(ready=self._dataplane.model_ready(request.name, request.version)).SerializeToString()

    async def _server_metadata(self, body: bytes, caller: Caller) -> bytes:
        return self._dataplane.server_metadata().SerializeToString()

    async def _model_metadata(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.ModelMetadataRequest, body)
        return self._dataplane.model_metadata(request.name, request.version).SerializeToString()

    async def _model_config(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.ModelConfigRequest, body)
        return self._dataplane.model_config(request.name, request.version).SerializeToString()

    async def _model_statistics(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.ModelStatisticsRequest, body)
        return (await self._dataplane.statistics(request.name, request.version)).SerializeToString()

    async def _repository_index(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.RepositoryIndexRequest, body)
        return self._dataplane.repository_index(ready_only=request.ready).SerializeToString()

    async def _load(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.RepositoryModelLoadRequest, body)
        await self._dataplane.load(request.model_name, sorted(request.parameters))
        return oip.RepositoryModelLoadResponse().SerializeToString()

    async def _unload(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.RepositoryModelUnloadRequest, body)
        await self._dataplane.unload(request.model_name)
        return oip.RepositoryModelUnloadResponse().SerializeToString()

    async def _shared_memory_status(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.SystemSharedMemoryStatusRequest, body)
        response = oip.SystemSharedMemoryStatusResponse()
        for region in self._dataplane.shared_memory.status(request.name):
            told = response.regions[region.name]
            told.name, told.key, told.offset, told.byte_size = region.name, region.key, region.offset, region.byte_size
        return response.SerializeToString()

    async def _shared_memory_register(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.SystemSharedMemoryRegisterRequest, body)
        self._dataplane.shared_memory.register(request.name, request.key, request.offset, request.byte_size)
        return oip.SystemSharedMemoryRegisterResponse().SerializeToString()

    async def _shared_memory_unregister(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.SystemSharedMemoryUnregisterRequest, body)
        self._dataplane.shared_memory.unregister(request.name)
        return oip.SystemSharedMemoryUnregisterResponse().SerializeToString()

    async def _cuda_status(self, body: bytes, caller: Caller) -> bytes:
        request = decode(oip.CudaSharedMemoryStatusRequest, body)
        if request.name:
            raise Unimplemented(_CUDA)
        return oip.CudaSharedMemoryStatusResponse().SerializeToString()

    async def _cuda_register(self, body: bytes, caller: Caller) -> bytes:
        raise Unimplemented(_CUDA)

    async def _cuda_unregister(self, body: bytes, caller: Caller) -> bytes:
        # Clients unregister everything before they begin; with nothing registered that is done.
        return oip.CudaSharedMemoryUnregisterResponse().SerializeToString()

    async def _settings(self, body: bytes, caller: Caller) -> bytes:
        raise Unimplemented("trace and log settings cannot be changed through the protocol: set them in mcprun.yaml")


async def stream_infer(dataplane: Dataplane, body: bytes, caller: Caller) -> oip.ModelStreamInferResponse:
    """One request of a ModelStreamInfer stream. Its errors are answers, so that the stream goes on."""
    try:
        request = decode(oip.ModelInferRequest, body)
        return oip.ModelStreamInferResponse(infer_response=await dataplane.infer(request, caller))
    except MeshError as error:
        return oip.ModelStreamInferResponse(error_message=error.message, infer_response=_identity(body))


def _identity(body: bytes) -> oip.ModelInferResponse:
    """What tells the client which of its requests failed."""
    try:
        request = decode(oip.ModelInferRequest, body)
    except InvalidInput:
        return oip.ModelInferResponse()
    return oip.ModelInferResponse(model_name=request.model_name, model_version=request.model_version, id=request.id)
