# mypy: ignore-errors
"""The edge filter, with faults that a test asks for by a header of a request, or by a tenant's name when it is configured."""

import _thread
import os
import select

from mcprun_filter import app
from proxy_wasm import register


def _raise():
    raise LookupError("on purpose")


def _wait_for_itself():
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire()


FAULTS = {
    b"abort": os.abort,
    b"lock": _wait_for_itself,
    b"select": lambda: select.select([], [], [], 0.1),
    b"raise": _raise,
}


class FaultyStream(app.Stream):
    """One request. `x-fault` names the callback and what is wrong in it, such as `log abort`."""

    def _fail_in(self, callback):
        where, _, what = (self._fault or b"").partition(b" ")
        if where == callback:
            FAULTS[what]()

    def on_request_headers(self, headers, end_of_stream):
        self._fault = headers.get("x-fault")
        self._fail_in(b"request")
        return super().on_request_headers(headers, end_of_stream)

    def on_response_headers(self, headers, end_of_stream):
        self._fail_in(b"response")
        return super().on_response_headers(headers, end_of_stream)

    def on_log(self):
        self._fail_in(b"log")
        return super().on_log()


class FaultyGuard(app.Guard):
    """The filter in one worker."""

    http_context = FaultyStream

    def on_configure(self, configuration):
        for name, fault in FAULTS.items():
            if b'"start-%s"' % name in configuration:
                fault()
        return super().on_configure(configuration)

    def create_http_context(self, context_id):
        if self._role == "guard":
            return FaultyStream(context_id, self)
        return super().create_http_context(context_id)


register(FaultyGuard)
