"""Rewrites headers by rules of the plugin's configuration, e.g.

{"request": {"set": {"x-team": "vision"}, "remove": ["x-debug"]}, "response": {"set": {"x-served-by": "mesh"}, "remove": ["server"]}}
"""

import json
from typing import Any

from proxy_wasm import Action, Counter, HeaderMap, HttpContext, RootContext, register

rewritten = Counter("header_rewrite_changes")


class Rules:
    """What to do with the headers of one direction."""

    def __init__(self, rules: dict[str, Any]) -> None:
        unknown = set(rules) - {"set", "remove"}
        if unknown:
            raise ValueError(f"unknown rules: {', '.join(sorted(unknown))}")
        self.set: dict[str, str] = rules.get("set", {})
        self.remove: list[str] = rules.get("remove", [])

    def apply(self, headers: HeaderMap) -> None:
        """Changes the headers."""
        for name in self.remove:
            headers.remove(name)
        for name, value in self.set.items():
            headers[name] = value
        rewritten.increment(len(self.remove) + len(self.set))


class RewriteStream(HttpContext["Rewrite"]):
    """One stream."""

    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
        """Changes the request's headers; Envoy picks the route anew after that."""
        self.root.request.apply(headers)
        return Action.CONTINUE

    def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
        """Changes the response's headers."""
        self.root.response.apply(headers)
        return Action.CONTINUE


@register
class Rewrite(RootContext):
    """The filter."""

    http_context = RewriteStream

    def on_configure(self, configuration: bytes) -> bool:
        """Reads the rules; what is wrong with them is logged, and the host refuses them."""
        rules = json.loads(configuration or b"{}")
        self.request = Rules(rules.get("request", {}))
        self.response = Rules(rules.get("response", {}))
        return True
