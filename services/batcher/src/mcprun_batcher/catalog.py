"""Which model versions exist and in what state, over all workers."""

from collections.abc import Iterable

from mcprun.protocol.v1 import batcher_pb2, model_pb2
from mcprun_batcher.queue import BatchingPolicy
from mcprun_batcher.scheduler import ModelKey

LOADING = model_pb2.MODEL_STATE_LOADING
READY = model_pb2.MODEL_STATE_READY
UNAVAILABLE = model_pb2.MODEL_STATE_UNAVAILABLE

_RANK = {READY: 3, LOADING: 2, UNAVAILABLE: 1}


class Catalog:
    """Joins what the workers say.

    A version that was READY and whose workers all went away is remembered, with its signature, as LOADING: somebody will
    start a worker again, and until the scheduler's grace is over requests for it may wait.
    """

    def __init__(self) -> None:
        self._workers: dict[str, batcher_pb2.WorkerInfo] = {}
        self._told: dict[str, dict[ModelKey, model_pb2.ModelVersion]] = {}
        self._settled: set[str] = set()
        self._remembered: dict[ModelKey, model_pb2.ModelVersion] = {}
        self._unloaded: set[str] = set()
        self.ever_settled = False
        """True once any worker has finished its first round of loading."""

    def attach(self, info: batcher_pb2.WorkerInfo) -> None:
        """A worker came."""
        self._workers[info.id] = info
        self._told[info.id] = {}

    def detach(self, worker_id: str) -> None:
        """A worker is gone."""
        self._workers.pop(worker_id, None)
        self._told.pop(worker_id, None)
        self._settled.discard(worker_id)

    def settle(self, worker_id: str) -> None:
        """A worker has finished its first round of loading."""
        self._settled.add(worker_id)
        self.ever_settled = True

    def worker(self, worker_id: str) -> batcher_pb2.WorkerInfo:
        """What is known of a worker, to be changed in place."""
        return self._workers[worker_id]

    def tell(self, worker_id: str, version: model_pb2.ModelVersion) -> None:
        """A worker tells of a model version."""
        key = (version.name, version.version)
        self._told[worker_id][key] = version
        if version.state == READY:
            self._remembered[key] = version

    def forget(self, worker_id: str, key: ModelKey) -> bool:
        """A worker no longer knows a version. True when now nobody does."""
        self._told[worker_id].pop(key, None)
        if any(key in told for told in self._told.values()):
            return False
        self._remembered.pop(key, None)
        return True

    def lost(self) -> list[ModelKey]:
        """Versions that are remembered only."""
        return sorted(key for key in self._remembered if not any(key in told for told in self._told.values()))

    def lose(self, key: ModelKey) -> None:
        """The grace of a version whose workers went away is over."""
        if not any(key in told for told in self._told.values()):
            self._remembered.pop(key, None)

    def set_unloaded(self, name: str, unloaded: bool) -> None:
        """Remembers that a user unloaded a model, so that a worker that starts later does not bring it back."""
        if unloaded:
            self._unloaded.add(name)
        else:
            self._unloaded.discard(name)

    def is_unloaded(self, name: str) -> bool:
        """Whether a user unloaded the model."""
        return name in self._unloaded

    @property
    def unloaded(self) -> frozenset[str]:
        """The models that a user unloaded."""
        return frozenset(self._unloaded)

    def versions(self, name: str) -> list[ModelKey]:
        """The versions of a model that anybody knows or that are remembered."""
        return sorted(key for key in self._keys() if key[0] == name)

    def worker_ids(self) -> list[str]:
        """The attached workers."""
        return list(self._workers)

    def snapshot(self) -> batcher_pb2.Catalog:
        """All of it, as routers get it."""
        return batcher_pb2.Catalog(
            models=[self._joined(key) for key in sorted(self._keys())],
            workers=self._workers.values(),
            settled=bool(self._settled),
        )

    def _keys(self) -> set[ModelKey]:
        return {key for told in self._told.values() for key in told} | self._remembered.keys()

    def _joined(self, key: ModelKey) -> model_pb2.ModelVersion:
        told = _best(told[key] for told in self._told.values() if key in told)
        remembered = self._remembered.get(key)
        joined = model_pb2.ModelVersion()
        if told is None or (told.state == LOADING and not told.inputs and remembered is not None):
            joined.CopyFrom(remembered if remembered is not None else model_pb2.ModelVersion(name=key[0], version=key[1]))
            joined.state = LOADING
            joined.reason = told.reason if told is not None else "its worker is away"
        else:
            joined.CopyFrom(told)
        if key[0] in self._unloaded:
            joined.state = UNAVAILABLE
            joined.reason = "unloaded"
        return joined


def _best(versions: Iterable[model_pb2.ModelVersion]) -> model_pb2.ModelVersion | None:
    return max(versions, key=lambda version: _RANK.get(version.state, 0), default=None)


def policy(version: model_pb2.ModelVersion) -> BatchingPolicy:
    """The batching policy that a worker announced; fields that it left out keep their defaults."""
    told, default = version.batching, BatchingPolicy()
    return BatchingPolicy(
        max_batch_size=told.max_batch_size,
        max_wait=told.max_wait_ns / 1e9,
        min_batch_ratio=told.min_batch_ratio,
        dispatch_when_idle=told.dispatch_when_idle,
        max_queue_size=told.max_queue_size or default.max_queue_size,
        max_queue_bytes=told.max_queue_bytes or default.max_queue_bytes,
    )
