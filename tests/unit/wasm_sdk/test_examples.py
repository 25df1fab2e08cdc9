"""The examples, in whatever `run` runs them in: here in process, elsewhere as built modules."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy_wasm.testing import ConfigurationRefused

Run = Callable[..., Any]
"""Runs an example by its name, with a configuration and clusters."""


def test_header_rewrite_sets_and_removes_in_both_directions(run: Run) -> None:
    rules = {"request": {"set": {"x-team": "vision"}, "remove": ["x-debug"]}, "response": {"set": {"x-served-by": "mesh"}}}
    with run("header_rewrite", configuration=json.dumps(rules)) as host:
        stream = host.request({"x-debug": "1", "x-team": "other"})
        assert stream.sent_upstream.headers["x-team"] == b"vision"
        assert "x-debug" not in stream.sent_upstream.headers
        stream.respond({"server": "x"})
        assert stream.response.headers["x-served-by"] == b"mesh"
        assert host.metric("header_rewrite_changes") == 3
        assert not host.exceptions


def test_header_rewrite_refuses_rules_it_does_not_know(run: Run) -> None:
    with pytest.raises(ConfigurationRefused, match="unknown rules: replace"):
        run("header_rewrite", configuration=b'{"request": {"replace": {}}}')


def test_a_known_key_passes_and_is_asked_for_once_a_minute(run: Run) -> None:
    with run("api_key", clusters=["keys"]) as host:
        stream = host.request({"x-api-key": "k/1", "x-owner": "forged"})
        assert not stream.reached_upstream
        call = host.next_call()
        assert (call.cluster, call.request.path) == ("keys", "/keys/k%2F1")
        call.respond(body=b"ada")
        assert stream.sent_upstream.headers["x-owner"] == b"ada"
        assert "x-api-key" not in stream.sent_upstream.headers
        host.advance(59)
        assert host.request({"x-api-key": "k/1"}).sent_upstream.headers["x-owner"] == b"ada"
        assert not host.calls
        host.advance(2)
        host.request({"x-api-key": "k/1"})
        assert host.next_call().request.path == "/keys/k%2F1"


def test_an_unknown_key_and_no_key_are_refused_without_the_upstream(run: Run) -> None:
    with run("api_key", clusters=["keys"]) as host:
        assert host.request().response.status == 401
        stream = host.request({"x-api-key": "nobody"})
        host.next_call().respond(status=404)
        assert stream.local_response.status == 403
        assert not stream.reached_upstream
        assert host.metric("api_key_refused") == 2


def test_a_key_service_that_hangs_is_given_up_after_half_a_second(run: Run) -> None:
    with run("api_key", clusters=["keys"]) as host:
        stream = host.request({"x-api-key": "k"})
        host.advance(0.49)
        assert not stream.answered
        host.advance(0.02)
        assert stream.response.status == 503


def test_secrets_are_blanked_however_the_body_is_cut(run: Run) -> None:
    body = json.dumps({"users": [{"name": "ada", "password": "p"}]}).encode()
    with run("body_rewrite") as host:
        stream = host.request()
        stream.respond(
            {"content-type": "application/json; charset=utf-8", "content-length": str(len(body))}, body=[body[:9], body[9:], b""]
        )
        assert stream.response.json() == {"users": [{"name": "ada", "password": "***"}]}
        assert "content-length" not in stream.response.headers
        assert host.metric("body_rewrite_blanked") == 1


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("text/plain", b'{"password": 1}'), ("application/json", b'{"password": '), ("application/json", b"[" * 5000 + b"]" * 5000)],
)
def test_bodies_that_are_no_json_pass_as_they_are(run: Run, content_type: str, body: bytes) -> None:
    with run("body_rewrite") as host:
        stream = host.request()
        stream.respond({"content-type": content_type}, body=body)
        assert stream.response.body == body
        assert not host.exceptions


def test_a_body_that_is_too_large_passes_from_there_on(run: Run) -> None:
    # More than the filter keeps, and less than Envoy does by default.
    body = b'"' + b"x" * 700 * 1024 + b'"'
    with run("body_rewrite") as host:
        stream = host.request()
        stream.respond({"content-type": "application/json"}, body=[body[:1000], body[1000:], b""])
        assert stream.response.body == body
