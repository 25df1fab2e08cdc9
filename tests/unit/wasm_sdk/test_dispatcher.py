"""What the dispatcher guards, and what it has exported."""

import random
from typing import Any

import pytest

from proxy_wasm import Action, ErrorPolicy, HeaderMap, HttpContext, RootContext
from proxy_wasm.dispatcher import Dispatcher
from proxy_wasm.hostcalls import ANSWERING, CALLBACKS
from proxy_wasm.testing import ConfigurationRefused, Simulation


class Plain(RootContext):
    pass


class Failing(HttpContext["FailingRoot"]):
    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
        if self.root.at == "request headers":
            raise self.root.error

    def on_request_body(self, size: int, end_of_stream: bool) -> None:
        if self.root.at == "request body":
            raise self.root.error

    def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
        if self.root.at == "response headers":
            raise self.root.error

    def on_log(self) -> None:
        if self.root.at == "log":
            raise self.root.error


class Refusing(Failing):
    on_error = ErrorPolicy.REFUSE


class FailingRoot(RootContext):
    http_context = Failing
    at = ""
    error: BaseException = ValueError("boom")


def failing(at: str, error: BaseException | None = None, *, refuse: bool = False) -> type[FailingRoot]:
    members = {"at": at, "error": error or ValueError("boom"), "http_context": Refusing if refuse else Failing}
    return type("Filter", (FailingRoot,), members)


def test_only_callbacks_that_are_overridden_are_exported() -> None:
    always = Dispatcher.callbacks(Plain)
    assert {"on_vm_start", "on_configure", "on_context_create", "on_delete", "on_tick", "on_http_call_response"} <= always
    assert not {name for name in always if "request" in name or "response_" in name.replace("call_response", "")}
    assert Dispatcher.callbacks(FailingRoot) - always == {"on_request_headers", "on_request_body", "on_response_headers", "on_log"}


def test_a_factory_without_a_declared_class_has_all_of_streams_exported() -> None:
    class Factory(RootContext):
        def create_http_context(self, context_id: int) -> HttpContext[Any]:
            return HttpContext(context_id, self)

    assert {name for name in CALLBACKS if name.startswith(("on_request", "on_response"))} <= Dispatcher.callbacks(Factory)


def test_every_callback_of_the_abi_has_a_method_that_ignores_unknown_contexts() -> None:
    with Simulation(Plain) as host:
        for name, arguments in CALLBACKS.items():
            if name != "on_context_create":
                answer = host.workers[0].machine.call(name, *[4711] * len(arguments))
                assert (answer is not None) == (name in ANSWERING)
        assert not host.exceptions


@pytest.mark.parametrize(
    "error", [ValueError("boom"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError(), RecursionError()], ids=repr
)
@pytest.mark.parametrize("refuse", [False, True])
def test_nothing_that_user_code_raises_gets_past(error: BaseException, refuse: bool) -> None:
    with Simulation(failing("request headers", error, refuse=refuse)) as host:
        stream = host.request()
        assert type(error).__name__ in host.exceptions[0]
        assert "Failing.on_request_headers" in host.exceptions[0]
        assert host.metric("proxy_wasm_exceptions") == 1
        assert stream.reached_upstream != refuse
        assert stream.answered_locally == refuse


def test_a_refusal_is_in_the_protocol_of_the_client() -> None:
    with Simulation(failing("request headers", refuse=True)) as host:
        plain = host.request().response
        assert (plain.status, plain.headers.text("content-type"), "error" in plain.json()) == (500, "application/json", True)
        grpc = host.request({"content-type": "application/grpc+proto"}).response
        assert (grpc.status, grpc.headers.text("grpc-status")) == (200, "13")


def test_what_has_been_answered_is_not_refused() -> None:
    with Simulation(failing("response headers", refuse=True)) as host:
        stream = host.request()
        stream.respond(status=201)
        assert stream.response.status == 201
    with Simulation(failing("request body", refuse=True)) as host:
        stream = host.open()
        stream.respond(status=201, body=[b"early"])
        assert stream.response.status == 201
        stream.send_body(b"x", end=True) if not stream.over else None
        assert stream.response.status == 201


def test_a_failure_of_the_refused_filters_log_does_no_harm() -> None:
    with Simulation(failing("log", refuse=True)) as host:
        host.request().respond(status=204)
        assert len(host.exceptions) == 1
        assert not host.streams


@pytest.mark.parametrize("policy", list(ErrorPolicy))
def test_a_context_that_cannot_be_made_is_answered_by_the_policy(policy: ErrorPolicy) -> None:
    class Unmade(HttpContext[RootContext]):
        on_error = policy

        def __init__(self, context_id: int, root: RootContext) -> None:
            raise OSError("no")

        def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> None: ...

    class Filter(RootContext):
        http_context = Unmade

    with Simulation(Filter) as host:
        assert host.request().reached_upstream == (policy is ErrorPolicy.CONTINUE)


def test_an_answer_that_is_no_action_is_an_error() -> None:
    class Odd(HttpContext[RootContext]):
        def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Any:
            return "pause"

    class Filter(RootContext):
        http_context = Odd

    with Simulation(Filter) as host:
        assert host.request().reached_upstream
        assert "TypeError: a callback answers an Action or None, not str" in host.exceptions[0]


@pytest.mark.parametrize("how", ["raises", "False", "init"])
def test_a_configuration_that_is_refused_keeps_the_old_one(how: str) -> None:
    class Filter(RootContext):
        def __init__(self, context_id: int) -> None:
            super().__init__(context_id)
            if how == "init" and Filter.strict:
                raise ValueError("not again")

        def on_configure(self, configuration: bytes) -> bool:
            if configuration == b"bad" and how == "raises":
                raise ValueError("not this")
            return configuration != b"bad"

        strict = False

    with Simulation(Filter, configuration=b"good") as host:
        before = host.root
        Filter.strict = True
        with pytest.raises(ConfigurationRefused, match="not this" if how == "raises" else "not again" if how == "init" else "False"):
            host.configure(b"bad")
        assert host.root is before


def test_tracebacks_are_bounded_and_tell_both_ends_and_the_cause() -> None:
    class Deep(HttpContext[RootContext]):
        def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
            try:
                self.down(0)
            except RecursionError as error:
                raise ValueError("x" * 100_000) from error

        def down(self, depth: int) -> None:
            self.down(depth + 1)

    class Filter(RootContext):
        http_context = Deep

    with Simulation(Filter) as host:
        host.request()
        text = host.exceptions[0]
        assert len(text) < 7000
        assert "RecursionError: maximum recursion depth exceeded" in text
        assert "and then:" in text
        assert "Deep.on_request_headers" in text
        assert "more ..." in text


def test_an_exception_that_cannot_be_written_down_is_still_counted() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with Simulation(failing("request headers", Mute())) as host:
        assert host.request().reached_upstream
        assert "Mute: its text cannot be had" in host.exceptions[0]


def test_random_numbers_are_seeded_anew_in_each_virtual_machine() -> None:
    with Simulation(Plain) as host:
        worker = host.workers[0]
        dispatcher = Dispatcher(worker.host, Plain)
        dispatcher.on_context_create(1, 0)
        drawn = set()
        for _ in range(4):
            random.seed(1)
            assert dispatcher.on_vm_start(1, 0) == 1
            drawn.add(random.random())
        assert len(drawn) == 4


def test_a_root_puts_off_its_end_until_it_is_done() -> None:
    gone: list[str] = []

    class Filter(RootContext):
        def on_done(self) -> bool:
            self.call_later(1, self.done)
            return False

        def on_delete(self) -> None:
            gone.append("old")

    host = Simulation(Filter)
    host.configure(b"new")
    assert not gone
    host.advance(1)
    assert gone == ["old"]


def test_an_old_root_lives_as_long_as_its_streams() -> None:
    ended: list[bytes] = []

    class Stream(HttpContext["Filter"]):
        def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
            headers["x-root"] = self.root.configuration
            return Action.CONTINUE

    class Filter(RootContext):
        http_context = Stream

        def on_configure(self, configuration: bytes) -> bool:
            self.configuration = configuration
            return True

        def on_delete(self) -> None:
            ended.append(self.configuration)

    host = Simulation(Filter, configuration=b"1")
    stream = host.request()
    host.configure(b"2")
    assert not ended
    stream.respond()
    assert stream.response.headers["x-root"] == b"1"
    assert ended == [b"1"]
