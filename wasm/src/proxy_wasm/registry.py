"""Which class a module's filter is."""

from __future__ import annotations

from typing import TypeVar

from proxy_wasm.contexts import RootContext

RootType = TypeVar("RootType", bound=type[RootContext])

_registered: list[type[RootContext]] = []


def register(root: RootType) -> RootType:
    """Says that this class is the module's filter; a module has one. Can be used as a decorator."""
    if _registered and _registered[0].__module__ == root.__module__ and _registered[0].__qualname__ != root.__qualname__:
        raise ValueError(f"a module has one root class: {_registered[0].__qualname__} is registered, so {root.__qualname__} cannot be")
    _registered[:] = [root]
    return root


def registered() -> type[RootContext] | None:
    """The class that was registered last."""
    return _registered[0] if _registered else None
