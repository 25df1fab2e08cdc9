"""What must survive a restart, kept at the start of the arena itself.

    0        the directory of the pools, twice: each copy has a sequence number and a checksum, and they are written in turn,
             so that a crash in the middle of one leaves the other
    1 MiB    one record of 128 bytes for each slot of the arena, in the order of the pools and buckets
    9 MiB    the slots

A lease's record is written whole, with its checksum, before the lease is told of, and zeroed when it ends; a record whose
checksum does not fit is that of a lease that nobody was told of.
"""

import struct
import zlib
from dataclasses import dataclass

import orjson

from mcprun.errors import FailedPrecondition
from mcprun_kvcache.arena import SharedFile
from mcprun_kvcache.pool import Lease

LAYOUT_VERSION = 1
MAGIC = b"mcprunKV"

_COPY_BYTES = 512 * 1024
_RECORDS = 2 * _COPY_BYTES
RECORD_BYTES = 128
MAX_SLOTS = 65_536
DATA_OFFSET = _RECORDS + MAX_SLOTS * RECORD_BYTES

_HEAD = struct.Struct("<8sIQII")  # magic, layout version, sequence, length, checksum of the body
_RECORD = struct.Struct("<QQ40s64s")  # lease id, expires, tenant, owner; a checksum of 4 bytes follows
_NAME_BYTES = {"tenant": 40, "owner": 64}


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool in the directory."""

    name: str
    layers: int
    kv_heads: int
    head_size: int
    datatype: str
    slots: dict[int, int]
    max_slots_per_tenant: int
    offset: int
    """Where its first slot begins."""
    first_record: int
    """The number of its first slot's record."""


class Table:
    """Reads and writes the tables."""

    def __init__(self, arena: SharedFile) -> None:
        self._arena = arena
        self._sequence = 0

    def read_pools(self) -> list[PoolRecord]:
        """The directory. Raises FailedPrecondition when the file is no arena of this layout or both copies are broken."""
        best: tuple[int, bytes] | None = None
        for copy in (0, 1):
            head = self._arena.read(copy * _COPY_BYTES, _HEAD.size)
            if len(head) < _HEAD.size:
                continue
            magic, version, sequence, length, checksum = _HEAD.unpack(head)
            if magic != MAGIC:
                continue
            if version != LAYOUT_VERSION:
                raise FailedPrecondition(f"the arena {self._arena.path} has layout {version}, {LAYOUT_VERSION} is expected: remove it")
            body = self._arena.read(copy * _COPY_BYTES + _HEAD.size, length)
            if zlib.crc32(body) == checksum and (best is None or sequence > best[0]):
                best = (sequence, body)
        if best is None:
            raise FailedPrecondition(f"{self._arena.path} is no arena, or a broken one: remove it")
        self._sequence = best[0]
        return [
            PoolRecord(**{**entry, "slots": {int(bucket): count for bucket, count in entry["slots"].items()}})
            for entry in orjson.loads(best[1])
        ]

    def write_pools(self, pools: list[PoolRecord]) -> None:
        """Writes the directory. Raises FailedPrecondition when there are too many pools for it."""
        body = orjson.dumps([_entry(pool) for pool in pools], option=orjson.OPT_NON_STR_KEYS)
        if len(body) + _HEAD.size > _COPY_BYTES:
            raise FailedPrecondition(f"the arena's directory is full with {len(pools)} pools")
        self._sequence += 1
        head = _HEAD.pack(MAGIC, LAYOUT_VERSION, self._sequence, len(body), zlib.crc32(body))
        self._arena.write(self._sequence % 2 * _COPY_BYTES, head + body)

    def read_lease(self, record: int) -> tuple[int, int, str, str] | None:
        """Lease id, expiry, tenant and owner of a record; None when it holds none."""
        raw = self._arena.read(_RECORDS + record * RECORD_BYTES, _RECORD.size + 4)
        if len(raw) < _RECORD.size + 4 or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
            return None
        lease_id, expires, tenant, owner = _RECORD.unpack(raw[:-4])
        if lease_id == 0:
            return None
        return lease_id, expires, tenant.rstrip(b"\0").decode(errors="replace"), owner.rstrip(b"\0").decode(errors="replace")

    def write_lease(self, record: int, lease: Lease) -> None:
        """Writes the record of a lease."""
        body = _RECORD.pack(lease.lease_id, lease.expires, lease.tenant.encode(), lease.owner.encode())
        self._arena.write(_RECORDS + record * RECORD_BYTES, body + zlib.crc32(body).to_bytes(4, "little"))

    def clear_lease(self, record: int) -> None:
        """Empties a record."""
        self._arena.write(_RECORDS + record * RECORD_BYTES, bytes(_RECORD.size + 4))


def name_limit(field: str) -> int:
    """How many bytes of UTF-8 a lease's tenant or owner may have."""
    return _NAME_BYTES[field]


def _entry(pool: PoolRecord) -> dict[str, object]:
    return {name: getattr(pool, name) for name in PoolRecord.__dataclass_fields__}
