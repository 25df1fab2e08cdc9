"""Canary rules: which tag a request gets, and which path it goes on with. Everything is bytes and nothing raises.

The first rule that matches decides the tag. The first prefix rule that matches decides the rewrite, be it the same one or not,
so that `/api/v1/...` is rewritten also when a header made a canary of it.
"""

from __future__ import annotations

import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX, EXACT, HEADER_PREFIX, PRESENT, PERCENT = "path-prefix", "exact", "prefix", "present", "percent"
CLIENT = "client"
"""The name of the rule in a `Decision` whose tag is the client's own."""
MAX_TAG = 63
PARTS = 1_000_000
"""How finely a share of requests can be given: in parts of a million."""

NAME_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class Rule:
    """One rule. `kind` says what it looks at.

    PREFIX: the path's leading whole segments, `value`. EXACT, HEADER_PREFIX, PRESENT: the header, or gRPC metadata, named `header`.
    PERCENT: `share` percent of all values of the key (`tenant`, `path` or `header`).
    """

    __slots__ = ("header", "key", "kind", "name", "parts", "rewrite", "salt", "tag", "value")

    def __init__(
        self,
        name: str,
        tag: bytes,
        kind: str,
        *,
        value: bytes = b"",
        rewrite: bytes | None = None,
        header: bytes = b"",
        share: float = 0.0,
        key: str = "",
        salt: bytes = b"",
    ) -> None:
        self.name = name
        self.tag = tag
        """Empty: an answer to the question, too, namely that it is no canary."""
        self.kind = kind
        self.value = value.rstrip(b"/") + b"/" if kind == PREFIX else value
        self.rewrite = None if rewrite is None else rewrite.rstrip(b"/") + b"/"
        self.header = header
        self.parts = round(share * PARTS / 100)
        self.key = key
        self.salt = salt

    def covers(self, path: bytes) -> bool:
        """Whether a path, without its query, lies below the prefix: by whole segments, so `/api/v2` does and `/api/v20` does not."""
        return path.startswith(self.value) or path == self.value[:-1]

    def rewritten(self, path: bytes) -> bytes:
        """The path with the prefix replaced. To be asked of prefix rules that cover it."""
        if self.rewrite is None:
            return path
        if len(path) < len(self.value):
            return self.rewrite[:-1] or b"/"
        return self.rewrite + path[len(self.value) :]


class Decision:
    """What becomes of a request."""

    __slots__ = ("path", "rewritten", "rule", "tag")

    def __init__(self, tag: bytes, rule: str, path: bytes, *, rewritten: bool) -> None:
        self.tag = tag
        """The value of the routing header; empty: there must be none, not even the client's."""
        self.rule = rule
        """The name of the rule that matched; empty: none did."""
        self.path = path
        """With its query, to go on with."""
        self.rewritten = rewritten


class Rules:
    """The rules of one tenant, in order."""

    __slots__ = ("by_path", "rules", "trust_client")

    def __init__(self, rules: tuple[Rule, ...], *, trust_client: bool = False) -> None:
        self.rules = rules
        self.by_path = all(rule.kind == PREFIX for rule in rules)
        """Whether they look at nothing but the path, and at the client's own tag."""
        self.trust_client = trust_client
        """Whether a client's own tag outweighs the rules."""

    def decide(
        self, path: bytes, header: Callable[[bytes], bytes | None], *, tenant: bytes = b"", client_tag: bytes | None = None
    ) -> Decision:
        """What becomes of a request to that path, with its query.

        header: looks a header up by its name in lower case. client_tag: the routing header as the client sent it.
        """
        bare, rest = split_query(path)
        # Whether a path with dot segments lies below a prefix depends on who resolves them: for prefixes it is nowhere.
        plain = not _dotted(bare)
        matched: Rule | None = None
        rewriting: Rule | None = None
        for rule in self.rules:
            if rule.kind == PREFIX:
                if not plain or not rule.covers(bare):
                    continue
                if rewriting is None:
                    rewriting = rule
            elif matched is not None or not _matches(rule, bare, header, tenant):
                continue
            if matched is None:
                matched = rule
            if rewriting is not None:
                break
        tag = b"" if matched is None else matched.tag
        name = "" if matched is None else matched.name
        if self.trust_client and client_tag and is_tag(client_tag):
            tag, name = client_tag, CLIENT
        if rewriting is None or rewriting.rewrite is None:
            return Decision(tag, name, path, rewritten=False)
        return Decision(tag, name, rewriting.rewritten(bare) + rest, rewritten=True)


def split_query(path: bytes) -> tuple[bytes, bytes]:
    """The path alone, and the rest of it from `?` or `#` on."""
    end = len(path)
    for mark in (b"?", b"#"):
        at = path.find(mark, 0, end)
        if at >= 0:
            end = at
    return path[:end], path[end:]


def is_tag(tag: bytes) -> bool:
    """Whether that can be a tag: letters, digits, `.`, `_` and `-`, 63 of them at most."""
    return 0 < len(tag) <= MAX_TAG and not tag.translate(None, NAME_BYTES)


def part_of(salt: bytes, key: bytes) -> int:
    """Which of the `PARTS` a key falls into: evenly, the same everywhere and always, and independently for each salt.

    CRC-32 is quick but linear; the two rounds of multiplication (MurmurHash3's finaliser, Appleby 2011) make it even.
    """
    mixed = zlib.crc32(key, zlib.crc32(salt)) | (zlib.crc32(salt, 0x9E3779B9) << 32)
    mixed = ((mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    mixed = ((mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return ((mixed ^ (mixed >> 33)) * PARTS) >> 64


def _matches(rule: Rule, path: bytes, header: Callable[[bytes], bytes | None], tenant: bytes) -> bool:
    if rule.kind == PERCENT:
        key = tenant if rule.key == "tenant" else path if rule.key == "path" else header(rule.header)
        # Who has no key would all fall into the same part: they are no canaries.
        return bool(key) and part_of(rule.salt, key or b"") < rule.parts
    value = header(rule.header)
    if value is None:
        return False
    if rule.kind == EXACT:
        return value == rule.value
    if rule.kind == HEADER_PREFIX:
        return value.startswith(rule.value)
    return True


def _dotted(path: bytes) -> bool:
    if b"\\" in path:
        return True
    if b"." not in path and b"%2" not in path:
        return False
    return any(segment in (b".", b"..") for segment in path.lower().replace(b"%2e", b".").split(b"/"))
