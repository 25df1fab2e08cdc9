"""Blanks the values of secret keys in JSON responses, e.g. {"user": "ada", "password": "..."}.

The plugin's configuration is a JSON list of keys, ["password"] without one.
"""

import json
import re

from proxy_wasm import Action, Counter, HeaderMap, HttpContext, RootContext, log, register

blanked = Counter("body_rewrite_blanked")

BLANK = "***"
MOST_BYTES = 512 * 1024
"""Envoy breaks off a response of which more than its `per_connection_buffer_limit_bytes` is kept, 1 MiB by default, and adds what came to
what is kept before it asks. So set that limit to this and the largest chunk together: where bodies may be larger, to 2 MiB."""
MOST_NESTED = 200

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def nesting(content: bytes) -> int:
    """How deep arrays and objects are nested. To parse what is too deep would overflow the stack, which no `except` catches."""
    depth = deepest = 0
    for bracket in _STRING.sub(b"", content).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


class RedactStream(HttpContext["Redact"]):
    """One stream."""

    def __init__(self, context_id: int, root: "Redact") -> None:
        super().__init__(context_id, root)
        self._json = False

    def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
        """Looks whether the body is for us: once the headers have passed they cannot be changed to fit another body."""
        content_type = headers.get("content-type", b"") or b""
        self._json = not end_of_stream and content_type.partition(b";")[0].strip().lower() == b"application/json"
        if self._json:
            # Without it Envoy marks the end of the body by itself.
            headers.remove("content-length")
        return Action.CONTINUE

    def on_response_body(self, size: int, end_of_stream: bool) -> Action:
        """Keeps the body until all of it is there, and replaces it."""
        if not self._json:
            return Action.CONTINUE
        if size > MOST_BYTES:
            log.warn(f"a body of more than {MOST_BYTES} bytes passes as it is")
            self._json = False
            return Action.CONTINUE
        if not end_of_stream:
            return Action.PAUSE
        body = self.response_body
        content = body.get()
        if nesting(content) > MOST_NESTED:
            log.warn(f"a body nested more than {MOST_NESTED} deep passes as it is")
            return Action.CONTINUE
        try:
            document = json.loads(content)
        except ValueError:
            return Action.CONTINUE  # says it is JSON, and is not
        body.set(json.dumps(self.root.blank(document)).encode())
        return Action.CONTINUE


@register
class Redact(RootContext):
    """The filter."""

    http_context = RedactStream

    def on_configure(self, configuration: bytes) -> bool:
        """Reads the keys."""
        self.secret = frozenset(json.loads(configuration or b'["password"]'))
        return True

    def blank(self, document: object) -> object:
        """The document with every secret value blanked."""
        if isinstance(document, dict):
            blanked.increment(len(self.secret & document.keys()))
            return {key: BLANK if key in self.secret else self.blank(value) for key, value in document.items()}
        if isinstance(document, list):
            return [self.blank(element) for element in document]
        return document
