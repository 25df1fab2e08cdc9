"""Lets a request pass only with an API key that a key service knows.

The service, Envoy's cluster `keys`, is asked `GET /keys/<key>` and answers 200 with the owner's name as body. Answers are kept for a
minute in each worker, so that it is asked once and not for each request.
"""

from urllib.parse import quote

from proxy_wasm import Action, CallFailed, Counter, ErrorPolicy, HeaderMap, HttpContext, RootContext, log, now, register

CLUSTER = "keys"
KEPT_SECONDS = 60.0
MOST_KEPT = 10_000

refused = Counter("api_key_refused")


class ApiKeyStream(HttpContext["ApiKey"]):
    """One stream."""

    on_error = ErrorPolicy.REFUSE

    async def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
        """Looks for the owner of the key; the request waits meanwhile."""
        key = headers.get("x-api-key")
        # What a client says about itself does not count.
        headers.remove("x-owner")
        if not key:
            return self.refuse(401, "an API key is needed in x-api-key")
        owner = self.root.kept(key)
        if owner is None:
            try:
                answer = await self.http_call(CLUSTER, path=f"/keys/{quote(key, safe='')}", timeout=0.5)
            except CallFailed as error:
                log.error(f"the key service does not answer: {error}")
                return self.refuse(503, "API keys cannot be checked at the moment")
            if answer.status != 200:
                return self.refuse(403, "the API key is not known")
            owner = answer.body
            self.root.keep(key, owner)
        headers["x-owner"] = owner
        headers.remove("x-api-key")
        return Action.CONTINUE

    def refuse(self, status: int, message: str) -> Action:
        """Answers the client."""
        refused.increment()
        self.send_local_response(status, body=message + "\n", details="api_key")
        return Action.PAUSE


@register
class ApiKey(RootContext):
    """The filter: the owners that are known."""

    http_context = ApiKeyStream

    def __init__(self, context_id: int) -> None:
        super().__init__(context_id)
        self._owners: dict[bytes, tuple[bytes, float]] = {}

    def kept(self, key: bytes) -> bytes | None:
        """The owner, if the key was looked up within the last minute."""
        owner, until = self._owners.get(key, (b"", 0.0))
        return owner if now() < until else None

    def keep(self, key: bytes, owner: bytes) -> None:
        """Remembers the owner for a minute; the oldest is forgotten when there are too many."""
        self._owners.pop(key, None)
        while len(self._owners) >= MOST_KEPT:
            del self._owners[next(iter(self._owners))]
        self._owners[key] = (owner, now() + KEPT_SECONDS)
