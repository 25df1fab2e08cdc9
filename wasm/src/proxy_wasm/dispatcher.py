"""From the host's callbacks to the filter's methods.

Nothing that the filter's code raises gets past it: an exception that leaves the module takes down the whole virtual machine, and with
it every stream of its worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from proxy_wasm import calls
from proxy_wasm.abi import BufferType, StreamType
from proxy_wasm.binding import bound
from proxy_wasm.contexts import Context, ErrorPolicy, HttpContext, RootContext
from proxy_wasm.errors import HostcallFailed
from proxy_wasm.failures import refuse, report
from proxy_wasm.headers import REQUEST_HEADERS, REQUEST_TRAILERS, RESPONSE_HEADERS, RESPONSE_TRAILERS, HeaderMap
from proxy_wasm.tasks import Task
from proxy_wasm.timers import Timer

if TYPE_CHECKING:
    from proxy_wasm.hostcalls import Host

_REQUEST = int(StreamType.REQUEST)
_RESPONSE = int(StreamType.RESPONSE)
_VM_CONFIGURATION = int(BufferType.VM_CONFIGURATION)
_PLUGIN_CONFIGURATION = int(BufferType.PLUGIN_CONFIGURATION)
_CALL_DATA = int(BufferType.CALL_DATA)

_ALWAYS = frozenset(
    {
        "on_vm_start",
        "on_configure",
        "on_context_create",
        "on_delete",
        # Cost nothing while no timer runs and no call is under way.
        "on_tick",
        "on_http_call_response",
        "on_grpc_receive_initial_metadata",
        "on_grpc_receive",
        "on_grpc_receive_trailing_metadata",
        "on_grpc_close",
    }
)
_ROOT = ("on_queue_ready", "on_foreign_function", "on_done", "on_log")
_HTTP = (
    "on_request_headers",
    "on_request_body",
    "on_request_trailers",
    "on_response_headers",
    "on_response_body",
    "on_response_trailers",
    "on_done",
    "on_log",
)


class _Unmade(HttpContext[RootContext]):
    """Stands for a stream whose own object could not be made, where the policy is to refuse."""

    on_error = ErrorPolicy.REFUSE

    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
        raise RuntimeError("the stream's context could not be made")

    def on_request_body(self, size: int, end_of_stream: bool) -> None:
        raise RuntimeError("the stream's context could not be made")


class Dispatcher:
    """Has a method for each callback of the ABI, with the names and arguments of `hostcalls.CALLBACKS`; those that answer do it in numbers.

    Contexts that it does not know are ignored.
    """

    def __init__(self, host: Host, root_type: type[RootContext], *, reseed: bool = True) -> None:
        self.calls: dict[int, Any] = {}
        self._host = host
        self._root_type = root_type
        self._reseed = reseed
        self._roots: dict[int, RootContext] = {}
        self._streams: dict[int, HttpContext[Any]] = {}
        self.bind()

    @classmethod
    def callbacks(cls, root_type: type[RootContext]) -> frozenset[str]:
        """The callbacks that a module has to export for this filter: those that its classes override, and the few that all need.

        Each exported callback costs every stream some microseconds. Without `http_context`, but with a `create_http_context` of its own,
        a filter gets all those of streams.
        """
        overridden = {name for name in _ROOT if getattr(root_type, name) is not getattr(RootContext, name)}
        stream_type = root_type.http_context
        if stream_type is not None:
            overridden.update(name for name in _HTTP if getattr(stream_type, name) is not getattr(HttpContext, name))
        elif root_type._creates_streams:
            overridden.update(_HTTP)
        return _ALWAYS | overridden

    @property
    def roots(self) -> dict[int, RootContext]:
        """The root contexts there are, by their numbers."""
        return self._roots

    @property
    def streams(self) -> dict[int, HttpContext[Any]]:
        """The streams there are, by their numbers."""
        return self._streams

    def bind(self) -> None:
        """Makes this dispatcher's host the one that the SDK talks to. For a simulation of several workers, before each callback."""
        bound.host = self._host
        bound.machine = self
        bound.context_id = 0

    # Contexts

    def on_vm_start(self, context_id: int, configuration_size: int) -> int:
        """Answers 1 when the filter accepts the configuration."""
        bound.context_id = context_id
        random = sys.modules.get("random")
        if random is not None and self._reseed:
            # Its state is part of the module: each worker would draw the same numbers.
            random.seed()
        root = self._roots.get(context_id)
        return 0 if root is None else self._configure(root, root.on_vm_start, "on_vm_start", _VM_CONFIGURATION, configuration_size)

    def on_configure(self, context_id: int, configuration_size: int) -> int:
        """Answers 1 when the filter accepts the configuration."""
        bound.context_id = context_id
        root = self._roots.get(context_id)
        return 0 if root is None else self._configure(root, root.on_configure, "on_configure", _PLUGIN_CONFIGURATION, configuration_size)

    def on_context_create(self, context_id: int, parent_id: int) -> None:
        """A root context when `parent_id` is 0, else a stream of that root."""
        bound.context_id = context_id
        if parent_id == 0:
            try:
                self._roots[context_id] = self._root_type(context_id)
            except BaseException as error:
                report(error, "__init__", context_id)
            return
        root = self._roots.get(parent_id)
        if root is None:
            return
        try:
            stream = root.create_http_context(context_id)
        except BaseException as error:
            stream = self._unmade(root, context_id, error)
        if stream is not None:
            self._streams[context_id] = stream

    def on_done(self, context_id: int) -> int:
        """Answers 0 when the filter wants the context a while longer."""
        bound.context_id = context_id
        context: Context | None = self._streams.get(context_id) or self._roots.get(context_id)
        if context is None:
            return 1
        context._over = True
        try:
            answer = context.on_done()  # type: ignore[attr-defined]
        except BaseException as error:
            report(error, "on_done", context_id)
            return 1
        if answer.__class__ is CoroutineType:
            self._aside(context, answer, "on_done")
            return 1
        return 0 if answer is False else 1

    def on_log(self, context_id: int) -> None:
        """The context has ended."""
        bound.context_id = context_id
        context: Context | None = self._streams.get(context_id) or self._roots.get(context_id)
        if context is not None:
            context._over = True
            try:
                answer = context.on_log()  # type: ignore[attr-defined]
            except BaseException as error:
                report(error, "on_log", context_id)
                return
            if answer is not None:
                self._aside(context, answer, "on_log")

    def on_delete(self, context_id: int) -> None:
        """The context is gone: what waits on its behalf ends."""
        bound.context_id = context_id
        context = self._streams.pop(context_id, None)
        if context is None:
            root = self._roots.pop(context_id, None)
            if root is not None:
                self._delete(root)
            return
        context._over = context._deleted = True
        if context._tasks or context._grpc or context._told_of_deletion:
            self._delete(context)

    # Streams

    def on_request_headers(self, context_id: int, count: int, end_of_stream: int) -> int:
        """Answers an `Action`."""
        context = self._streams.get(context_id)
        if context is None:
            return 0
        bound.context_id = context_id
        try:
            answer = context.on_request_headers(REQUEST_HEADERS, end_of_stream != 0)
        except BaseException as error:
            return self._failed(context, error, "on_request_headers", _REQUEST)
        return 0 if answer is None else self._answer(context, answer, "on_request_headers", _REQUEST)

    def begin_request(self, context_id: int, parent_id: int, end_of_stream: int) -> int:
        """A new stream of that root, and its request's headers: both in one call, since each costs every request some microseconds."""
        bound.context_id = context_id
        root = self._roots.get(parent_id)
        if root is None:
            return 0
        try:
            kind = root.http_context
            made = root.create_http_context(context_id) if kind is None or root._creates_streams else kind(context_id, root)
        except BaseException as error:
            made = self._unmade(root, context_id, error)
        if made is None:
            return 0
        context = self._streams[context_id] = made
        try:
            answer = context.on_request_headers(REQUEST_HEADERS, end_of_stream != 0)
        except BaseException as error:
            return self._failed(context, error, "on_request_headers", _REQUEST)
        return 0 if answer is None else self._answer(context, answer, "on_request_headers", _REQUEST)

    def on_request_body(self, context_id: int, size: int, end_of_stream: int) -> int:
        """Answers an `Action`."""
        context = self._streams.get(context_id)
        if context is None:
            return 0
        if context._request_task is not None:
            return _hold(context._request_task, "on_request_body", (size, end_of_stream))
        bound.context_id = context_id
        try:
            answer = context.on_request_body(size, end_of_stream != 0)
        except BaseException as error:
            return self._failed(context, error, "on_request_body", _REQUEST)
        if answer is None and not context._request_paused:
            return 0
        return self._answer(context, answer, "on_request_body", _REQUEST)

    def on_request_trailers(self, context_id: int, count: int) -> int:
        """Answers an `Action`."""
        context = self._streams.get(context_id)
        if context is None:
            return 0
        if context._request_task is not None:
            return _hold(context._request_task, "on_request_trailers", (count,))
        bound.context_id = context_id
        try:
            answer = context.on_request_trailers(REQUEST_TRAILERS)
        except BaseException as error:
            return self._failed(context, error, "on_request_trailers", _REQUEST)
        return self._answer(context, answer, "on_request_trailers", _REQUEST)

    def on_response_headers(self, context_id: int, count: int, end_of_stream: int) -> int:
        """Answers an `Action`."""
        context = self._streams.get(context_id)
        if context is None:
            return 0
        bound.context_id = context_id
        context._response_started = True
        try:
            answer = context.on_response_headers(RESPONSE_HEADERS, end_of_stream != 0)
        except BaseException as error:
            return self._failed(context, error, "on_response_headers", _RESPONSE)
        return 0 if answer is None else self._answer(context, answer, "on_response_headers", _RESPONSE)

    def on_response_body(self, context_id: int, size: int, end_of_stream: int) -> int:
        """Answers an `Action`."""
        context = self._streams.get(context_id)
        if context is None:
            return 0
        context._response_started = True
        if context._response_task is not None:
            return _hold(context._response_task, "on_response_body", (size, end_of_stream))
        bound.context_id = context_id
        try:
            answer = context.on_response_body(size, end_of_stream != 0)
        except BaseException as error:
            return self._failed(context, error, "on_response_body", _RESPONSE)
        if answer is None and not context._response_paused:
            return 0
        return self._answer(context, answer, "on_response_body", _RESPONSE)

    def on_response_trailers(self, context_id: int, count: int) -> int:
        """Answers an `Action`."""
        context = self._streams.get(context_id)
        if context is None:
            return 0
        context._response_started = True
        if context._response_task is not None:
            return _hold(context._response_task, "on_response_trailers", (count,))
        bound.context_id = context_id
        try:
            answer = context.on_response_trailers(RESPONSE_TRAILERS)
        except BaseException as error:
            return self._failed(context, error, "on_response_trailers", _RESPONSE)
        return self._answer(context, answer, "on_response_trailers", _RESPONSE)

    # What comes to the root

    def on_tick(self, context_id: int) -> None:
        """The root's tick, its timers, or both."""
        root = self._roots.get(context_id)
        if root is None:
            return
        bound.context_id = context_id
        try:
            due, own = root._timers.ticked()
        except BaseException as error:
            report(error, "the timers", context_id)
            return
        for timer in due:
            self.run(timer._owner, Timer.call, timer)
        if own:
            self._call(root, root.on_tick, "on_tick")

    def on_queue_ready(self, context_id: int, queue_id: int) -> None:
        """A message came."""
        bound.context_id = context_id
        root = self._roots.get(context_id)
        if root is not None:
            self._call(root, root.on_queue_ready, "on_queue_ready", queue_id)

    def on_foreign_function(self, context_id: int, function_id: int, arguments_size: int) -> None:
        """The host calls something of its own."""
        bound.context_id = context_id
        root = self._roots.get(context_id)
        if root is not None:
            arguments = (self._host.get_buffer(_CALL_DATA, 0, arguments_size) or b"") if arguments_size else b""
            self._call(root, root.on_foreign_function, "on_foreign_function", function_id, arguments)

    def on_http_call_response(self, context_id: int, token: int, header_count: int, body_size: int, trailer_count: int) -> None:
        """A call ended; without headers it failed."""
        bound.context_id = context_id
        call = self.calls.pop(token, None)
        if call is not None and not call._owner._deleted:
            call._answered(header_count, body_size, trailer_count)

    def on_grpc_receive_initial_metadata(self, context_id: int, token: int, count: int) -> None:
        """A gRPC stream has begun."""
        bound.context_id = context_id
        call = self.calls.get(token)
        if call is not None:
            call._initial_metadata(calls.received_initial_metadata())

    def on_grpc_receive(self, context_id: int, token: int, size: int) -> None:
        """A message came."""
        bound.context_id = context_id
        call = self.calls.get(token)
        if call is not None and call._message(calls.received_message(size)):
            self.calls.pop(token, None)

    def on_grpc_receive_trailing_metadata(self, context_id: int, token: int, count: int) -> None:
        """A gRPC stream is about to end."""
        bound.context_id = context_id
        call = self.calls.get(token)
        if call is not None:
            call._trailing_metadata(calls.received_trailing_metadata())

    def on_grpc_close(self, context_id: int, token: int, status: int) -> None:
        """A gRPC call failed, or a gRPC stream ended."""
        bound.context_id = context_id
        call = self.calls.pop(token, None)
        if call is not None:
            told = self._host.get_status()
            call._closed(status, "" if told is None else told[1].decode("utf-8", "replace"))

    # Guards

    def _unmade(self, root: RootContext, context_id: int, error: BaseException) -> HttpContext[Any] | None:
        """What stands for a stream that could not be made."""
        report(error, "create_http_context", context_id)
        policy = root.on_error if root.http_context is None else root.http_context.on_error
        return _Unmade(context_id, root) if policy is ErrorPolicy.REFUSE else None

    def _delete(self, context: RootContext | HttpContext[Any]) -> None:
        context._over = context._deleted = True
        if context._tasks or context._grpc:
            self._abandon(context)
        try:
            context.on_delete()
        except BaseException as error:
            report(error, "on_delete", context._id)

    def run(self, owner: Context, function: Callable[[Any], object], argument: Any) -> None:
        """Calls user code on behalf of `owner`, in its context; whatever it raises is dealt with as `owner` declares."""
        if owner._deleted:
            return
        try:
            previous = bound.enter(owner._id)
        except HostcallFailed:
            return  # the host has let go of the context already
        where = getattr(function, "__qualname__", "a callback")
        try:
            answer = function(argument)
        except BaseException as error:
            self._failed_aside(owner, error, where)
        else:
            self._aside(owner, answer, where)
        bound.leave(previous)

    def _configure(
        self, root: RootContext, function: Callable[[bytes], object], where: str, buffer_type: int, configuration_size: int
    ) -> int:
        try:
            configuration = (self._host.get_buffer(buffer_type, 0, configuration_size) or b"") if configuration_size else b""
            answer = function(configuration)
        except BaseException as error:
            report(error, where, root._id)
            return 0
        if answer.__class__ is CoroutineType:
            self._aside(root, answer, where)
            return 1
        return 1 if answer is None or answer else 0

    def _call(self, context: Context, function: Callable[..., object], where: str, *arguments: object) -> None:
        try:
            answer = function(*arguments)
        except BaseException as error:
            report(error, where, context._id)
        else:
            self._aside(context, answer, where)

    def _answer(self, context: HttpContext[Any], answer: object, where: str, side: int) -> int:
        """What a callback of a stream answers the host; starts it when it is a coroutine."""
        if answer.__class__ is CoroutineType:
            return self._begin(context, answer, where, side)
        paused = answer == 1
        if answer is not None and not paused and answer != 0:
            return self._failed(context, TypeError(f"a callback answers an Action or None, not {type(answer).__name__}"), where, side)
        if side == _REQUEST:
            context._request_paused = paused
        else:
            context._response_paused = paused
        return 1 if paused else 0

    def _begin(self, context: Context, coroutine: Any, where: str, side: int | None) -> int:
        task = Task(context, coroutine, where, side, self._ended)
        stream = context if isinstance(context, HttpContext) else None
        task.answered_before = stream is not None and stream._local_response_sent
        task.step()
        if task.over:
            return self._outcome(task)
        task.detached = True
        if context._tasks is None:
            context._tasks = []
        context._tasks.append(task)
        if stream is not None and side == _REQUEST:
            stream._request_task = task
            stream._request_paused = True
        elif stream is not None and side == _RESPONSE:
            stream._response_task = task
            stream._response_paused = True
        return 1

    def _aside(self, context: Context, answer: object, where: str) -> None:
        """Starts what a callback answered that does not pause anything, when it is a coroutine."""
        if answer.__class__ is CoroutineType:
            self._begin(context, answer, where, None)

    def _outcome(self, task: Task) -> int:
        """What the callback of a task that is over answers."""
        context, side = task.context, task.side
        if side is None or not isinstance(context, HttpContext):
            if task.error is not None:
                self._failed_aside(context, task.error, task.where)
            return 0
        if task.error is not None:
            return self._failed(context, task.error, task.where, side)
        return self._answer(context, task.answer, task.where, side)

    def _ended(self, task: Task) -> None:
        """A task is over: when the host had been told to wait for it, the stream goes on as the task says."""
        if not task.detached:
            return
        context, side = task.context, task.side
        if context._tasks is not None:
            context._tasks.remove(task)
        if side is None or not isinstance(context, HttpContext):
            self._outcome(task)
            return
        if side == _REQUEST:
            context._request_task = None
        else:
            context._response_task = None
        answer = self._outcome(task)
        while task.held and not context._over:
            name, arguments = task.held.pop(0)
            answer = getattr(self, name)(context._id, *arguments)
            waiting = context._request_task if side == _REQUEST else context._response_task
            if waiting is not None:
                waiting.held += task.held
                return
        answered = context._local_response_sent and (side == _REQUEST or not task.answered_before)
        if answer == 0 and not answered and not context._over:
            self._host.continue_stream(side)

    def _failed(self, context: HttpContext[Any], error: BaseException, where: str, side: int) -> int:
        """Reports an exception, and answers the host as the context's policy says."""
        report(error, where, context._id)
        if side == _REQUEST:
            context._request_paused = False
        else:
            context._response_paused = False
        try:
            if context.on_error is ErrorPolicy.REFUSE and refuse(context):
                return 1
        except BaseException as second:
            report(second, "the refusal after it", context._id)
        return 1 if side == _REQUEST and context._local_response_sent else 0

    def _failed_aside(self, context: Context, error: BaseException, where: str) -> None:
        """Reports an exception of code that was to let a paused stream go on, and does it in its stead."""
        if not isinstance(context, HttpContext):
            report(error, where, context._id)
            return
        request = context._request_paused and context._request_task is None
        response = context._response_paused and context._response_task is None
        answer = self._failed(context, error, where, _REQUEST)
        if answer == 0 and not context._over:
            if request:
                self._host.continue_stream(_REQUEST)
            if response:
                context._response_paused = False
                self._host.continue_stream(_RESPONSE)

    def _abandon(self, context: Context) -> None:
        for task in context._tasks or ():
            try:
                task.close()
            except BaseException as error:
                report(error, task.where, context._id)
        for call in context._grpc or ():
            call.cancel()
        context._tasks = context._grpc = None


def _hold(task: Task, name: str, arguments: tuple[int, ...]) -> int:
    """Keeps a callback for when the task ends. Of several chunks of body the last one tells of all."""
    if task.held and task.held[-1][0] == name:
        task.held.pop()
    task.held.append((name, arguments))
    return 1
