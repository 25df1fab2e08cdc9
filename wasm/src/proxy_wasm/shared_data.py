"""Values that all workers of a host share, among the modules of one `vm_id`: the only state that crosses from worker to worker.

Each value has a CAS number that changes with every write. What the ABI means by it has two pitfalls:

- a write without a number overwrites whatever is there;
- a key that is missing is inserted whatever number is given: of two workers that both found it missing and wrote, the second one wins
  and the first never learns. `insert` and `update` avoid it: they write with a number that no value has, so that the host inserts
  where nothing is and refuses where something is.

There is no way to remove a key: write an empty value. The data lives as long as the host's process.
"""

from collections.abc import Callable

from proxy_wasm.abi import Status
from proxy_wasm.binding import bound
from proxy_wasm.errors import CasMismatch, Contended, check

_MISMATCH = int(Status.CAS_MISMATCH)

NEVER = 0xFFFFFFFF
"""The host counts its CAS numbers from 1 on: it gets here after four thousand million writes."""


def get(key: str | bytes) -> tuple[bytes, int] | None:
    """The value and its CAS number."""
    return bound.host.get_shared_data(key if key.__class__ is bytes else _key(key))


def set(key: str | bytes, value: bytes, cas: int | None = None) -> None:
    """Writes. With `cas`, only if that is still the number of what is there, or nothing is: else raises `CasMismatch`."""
    status = bound.host.set_shared_data(_key(key), value, cas or 0)
    if status == _MISMATCH:
        raise CasMismatch("set_shared_data", status)
    check("set_shared_data", status)


def insert(key: str | bytes, value: bytes) -> bool:
    """Writes only if nothing is there. False when something is; of several workers exactly one is told True."""
    status = bound.host.set_shared_data(_key(key), value, NEVER)
    if status == _MISMATCH:
        return False
    check("set_shared_data", status)
    return True


def update(key: str | bytes, change: Callable[[bytes | None], bytes | None], *, tries: int = 32) -> bytes | None:
    """Replaces a value by `change` of it, without losing what other workers write meanwhile; returns what is there then.

    `change` gets None when the key is missing; it may be called several times. When it answers None, nothing is written.
    Raises `Contended` after so many `tries`.
    """
    host = bound.host
    encoded = _key(key)
    for _ in range(tries):
        found = host.get_shared_data(encoded)
        old, cas = (None, NEVER) if found is None else found
        new = change(old)
        if new is None:
            return old
        status = host.set_shared_data(encoded, new, cas)
        if status == 0:
            return new
        if status != _MISMATCH:
            check("set_shared_data", status)
    raise Contended(encoded, tries)


def _key(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
