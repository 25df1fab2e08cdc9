# mypy: ignore-errors
"""A filter that does by path what a test asks of it."""

import os

from proxy_wasm import Action, ErrorPolicy, Gauge, GrpcStatus, HttpContext, RootContext, SharedQueue, log, properties, register, shared_data

last = Gauge("many_last")


class Stream(HttpContext["Root"]):
    """One stream."""

    on_error = ErrorPolicy.REFUSE

    async def on_request_headers(self, headers, end_of_stream):
        path = headers.text(":path")
        if path == "/raise":
            raise LookupError("on purpose")
        if path == "/trap":
            os.abort()
        if path == "/grpc":
            self.send_local_response(429, body="slow down", grpc_status=GrpcStatus.RESOURCE_EXHAUSTED)
            return Action.PAUSE
        if path == "/call":
            answer = await self.http_call("helper", method="POST", path="/asked", body=b"question", timeout=5)
            headers["x-answer"] = answer.body
        if path == "/sleep":
            await self.sleep(0.05)
        count = shared_data.update("visits", lambda old: str(int(old or b"0") + 1).encode())
        last.set(int(count))
        headers["x-method"] = properties.text("request", "method") or ""
        headers["x-visit"] = count
        self.root.queue.enqueue(count)
        return Action.CONTINUE

    def on_response_trailers(self, trailers):
        trailers["x-seen"] = trailers.get("x-upstream", b"")
        return Action.CONTINUE


@register
class Root(RootContext):
    """The filter."""

    http_context = Stream

    def on_configure(self, configuration):
        self.queue = SharedQueue.register("visits")
        return True

    def on_queue_ready(self, queue_id):
        while (message := self.queue.dequeue()) is not None:
            log.info(b"queued " + message)
