"""The loaded versions, their threads and their credits."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from mcprun.errors import Internal, InvalidInput, MeshError, MessageTooLarge, NotFound
from mcprun.protocol.v1 import model_pb2
from mcprun.runtime import logs
from mcprun_worker import metrics
from mcprun_worker.execution import Executor, Item, Outcome
from mcprun_worker.repository import Fingerprint, Repository
from mcprun_worker.version import LoadedVersion, load

_log = logs.get_logger(__name__)

ModelKey = tuple[str, str]

PREFETCH = 1
"""Batches that a model may have waiting in the worker, so that an instance need not wait for the network."""


@dataclass(slots=True, eq=False)
class Serving:
    """A loaded version with its threads: one for each instance."""

    version: LoadedVersion
    executor: Executor
    threads: ThreadPoolExecutor
    running: int = 0
    retired: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has been replaced or unloaded and its last batch is done."""
    retiring: bool = False

    @property
    def credits(self) -> int:
        """How many batches of it the worker holds at most."""
        return self.version.instances + PREFETCH

    async def run(self, items: Sequence[Item], is_cancelled: Callable[[int], bool]) -> Outcome:
        """Runs a batch in one of its threads."""
        self.running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, self.executor.run, items, is_cancelled)
        finally:
            self.running -= 1
            if self.retiring and not self.running:
                self.retired.set()

    async def retire(self) -> None:
        """Lets its batches finish, then frees it."""
        self.retiring = True
        if self.running:
            await self.retired.wait()
        self.threads.shutdown()
        self.version.session.close()


class Models:
    """All model versions of this worker and what is told of them.

    `on_change` is called with each version whose description changed, `on_forget` with those whose folder is gone.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        threads: int,
        device: str,
        too_large: MessageTooLarge,
        on_change: Callable[[model_pb2.ModelVersion], None],
        on_forget: Callable[[ModelKey], None],
    ) -> None:
        self._repository = repository
        self._threads = threads
        self._device = device
        self._too_large = too_large
        self._on_change = on_change
        self._on_forget = on_forget
        self._serving: dict[ModelKey, Serving] = {}
        self._told: dict[ModelKey, model_pb2.ModelVersion] = {}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One for each model that something is done with now."""
        self._unloaded: set[str] = set()
        """Models that a command unloaded, also before their first try at loading."""
        self._retiring: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[model_pb2.ModelVersion]:
        return iter(list(self._told.values()))

    def serving(self, key: ModelKey) -> Serving | None:
        """The version that can run, None when it is not loaded."""
        return self._serving.get(key)

    async def load_all(self) -> None:
        """Has a first try at every model of the repository. A broken one is told and keeps no other from loading."""
        try:
            names = await asyncio.to_thread(self._repository.names)
        except MeshError as error:
            _log.error("no models", error=error.message)
            return
        for name in names:
            self._tell(model_pb2.ModelVersion(name=name, version="1", state=model_pb2.MODEL_STATE_LOADING))
        for name in names:
            try:
                async with self._lock(name):
                    if name not in self._unloaded:
                        await self._load(name)
            except MeshError as error:
                _log.error("a model cannot be loaded", model=name, error=error.message)

    async def load(self, name: str) -> None:
        """Loads a model, or loads it anew when its files changed; what is loaded serves until its successor is warm.

        Raises NotFound when it has no folder, InvalidInput when its files are broken.
        """
        async with self._lock(name):
            self._unloaded.discard(name)
            await self._load(name)

    async def _load(self, name: str) -> None:
        try:
            fingerprint = await asyncio.to_thread(self._repository.fingerprint, name)
            config = await asyncio.to_thread(self._repository.config, name)
        except MeshError as error:
            self._refuse(name, error)
            raise
        if self._fingerprints.get(name) == fingerprint and all((name, number) in self._serving for number in config.versions):
            for number in config.versions:
                # Told again, since somebody may have missed or withdrawn it.
                self._tell(self._told[name, number])
            return
        started = time.perf_counter()
        self._drop_versions(name, set(config.versions))
        for number in config.versions:
            if (name, number) not in self._serving:
                self._tell(
                    model_pb2.ModelVersion(
                        name=name, version=number, labels=config.versions[number].labels, state=model_pb2.MODEL_STATE_LOADING
                    )
                )
        errors: list[MeshError] = []
        for number in config.versions:
            try:
                version = await asyncio.to_thread(
                    load, config, self._repository.folder(name), number, threads=self._threads, device=self._device
                )
            except MeshError as error:
                errors.append(error)
                self._fail((name, number), error)
            except Exception as error:
                _log.error("a load failed", model=name, version=number, exc_info=True)
                errors.append(Internal(f"model {name!r} version {number} cannot be loaded: {type(error).__name__}: {error}"))
                self._fail((name, number), errors[-1])
            else:
                self._serve(version)
        if errors:
            self._fingerprints.pop(name, None)
            raise errors[0]
        self._fingerprints[name] = fingerprint
        metrics.load_seconds.labels(name).observe(time.perf_counter() - started)
        _log.info("model ready", model=name, versions=list(config.versions), seconds=round(time.perf_counter() - started, 3))

    async def unload(self, name: str) -> None:
        """Unloads every version of a model once its batches are done. Raises NotFound when there is none."""
        self._unloaded.add(name)
        async with self._lock(name):
            await self._unload(name)

    async def _unload(self, name: str) -> None:
        keys = [key for key in self._told if key[0] == name]
        if not keys:
            raise NotFound(f"the model repository has no model {name!r}")
        self._fingerprints.pop(name, None)
        retiring: list[Serving] = []
        for key in keys:
            serving = self._serving.pop(key, None)
            if serving is not None:
                retiring.append(serving)
            self._withdraw(key, "unloaded")
        await asyncio.gather(*(serving.retire() for serving in retiring))
        _log.info("model unloaded", model=name)

    async def close(self) -> None:
        """Frees everything. Batches that run are waited for."""
        serving, self._serving = list(self._serving.values()), {}
        await asyncio.gather(*(each.retire() for each in serving), *self._retiring)

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _serve(self, version: LoadedVersion) -> None:
        threads = ThreadPoolExecutor(version.instances, thread_name_prefix=f"{version.name}-{version.version}")
        former = self._serving.get(version.key)
        self._serving[version.key] = Serving(version, Executor(version, too_large=self._too_large), threads)
        metrics.loaded.labels(*version.key).set(1)
        self._tell(version.announcement)
        if former is not None:
            self._retire(former)

    def _retire(self, serving: Serving) -> None:
        task = asyncio.get_running_loop().create_task(serving.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        self._retiring.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a model could not be freed", exc_info=task.exception())

    def _fail(self, key: ModelKey, error: MeshError) -> None:
        """A version cannot be loaded. If another state of it serves, it goes on to serve."""
        if key not in self._serving:
            self._withdraw(key, error.message)

    def _refuse(self, name: str, error: MeshError) -> None:
        """A model's folder or its model.yaml cannot be used."""
        keys = [key for key in self._told if key[0] == name]
        if isinstance(error, NotFound):
            for key in keys:
                if key not in self._serving:
                    del self._told[key]
                    self._on_forget(key)
        elif isinstance(error, InvalidInput):
            for key in keys or [(name, "1")]:
                self._fail(key, error)

    def _drop_versions(self, name: str, keep: set[str]) -> None:
        """Versions that model.yaml no longer names."""
        for key in [key for key in self._told if key[0] == name and key[1] not in keep]:
            del self._told[key]
            metrics.loaded.labels(*key).set(0)
            serving = self._serving.pop(key, None)
            if serving is not None:
                self._retire(serving)
            self._on_forget(key)

    def _withdraw(self, key: ModelKey, why: str) -> None:
        metrics.loaded.labels(*key).set(0)
        former = self._told.get(key)
        version = model_pb2.ModelVersion(name=key[0], version=key[1])
        if former is not None:
            version.CopyFrom(former)
        version.state = model_pb2.MODEL_STATE_UNAVAILABLE
        version.reason = why
        self._tell(version)

    def _tell(self, version: model_pb2.ModelVersion) -> None:
        self._told[version.name, version.version] = version
        self._on_change(version)
