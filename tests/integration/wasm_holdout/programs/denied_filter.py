"""A filter that tries what it cannot do; see `denied`."""

import json

import denied

from proxy_wasm import RootContext, log, register


class Denied(RootContext):
    def on_configure(self, configuration: bytes) -> bool:
        name = json.loads(configuration)
        log.info(json.dumps([name, getattr(denied, name)()]))
        return True


register(Denied)
