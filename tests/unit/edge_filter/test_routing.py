"""Which tag a request gets and which path it goes on with, whatever its client writes."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun_filter.routing import (
    CLIENT,
    EXACT,
    HEADER_PREFIX,
    PARTS,
    PERCENT,
    PREFIX,
    PRESENT,
    Decision,
    Rule,
    Rules,
    is_tag,
    part_of,
    split_query,
)

V2 = Rule("api-v2", b"v2-canary", PREFIX, value=b"/api/v2/", rewrite=b"/")
V1 = Rule("api-v1", b"", PREFIX, value=b"/api/v1/", rewrite=b"/")
API = Rules((V2, V1))
PIECES = [b"/", b"api", b"v1", b"v2", b"..", b".", b"%2e", b"%2F", b"\\", b"?", b"#", b"x", b"\xff", b"\0"]
PATHS = st.lists(st.sampled_from(PIECES)).map(b"".join)


def decide(
    rules: Rules, path: bytes, headers: dict[bytes, bytes] | None = None, *, tenant: bytes = b"", tag: bytes | None = None
) -> Decision:
    return rules.decide(path, (headers or {}).get, tenant=tenant, client_tag=tag)


# Prefixes


@pytest.mark.parametrize(
    ("path", "goes_on", "tag", "rule"),
    [
        (b"/api/v2/v2/models/m/infer", b"/v2/models/m/infer", b"v2-canary", "api-v2"),
        (b"/api/v1/v2/models/m/infer", b"/v2/models/m/infer", b"", "api-v1"),
        (b"/api/v2/", b"/", b"v2-canary", "api-v2"),
        (b"/api/v2", b"/", b"v2-canary", "api-v2"),
        (b"/api/v2?a=/api/v1/", b"/?a=/api/v1/", b"v2-canary", "api-v2"),
        (b"/api/v2/x?y=..&z=#/../", b"/x?y=..&z=#/../", b"v2-canary", "api-v2"),
        (b"/api/v2//x", b"//x", b"v2-canary", "api-v2"),
        (b"/api/v2/...", b"/...", b"v2-canary", "api-v2"),
        (b"/api/v2/a.b/c..d", b"/a.b/c..d", b"v2-canary", "api-v2"),
        (b"/api/v2/%41", b"/%41", b"v2-canary", "api-v2"),
        (b"/api/v20/x", b"/api/v20/x", b"", ""),
        (b"/API/v2/x", b"/API/v2/x", b"", ""),
        (b"/v2/models/m/infer", b"/v2/models/m/infer", b"", ""),
        (b"/x?/api/v2/", b"/x?/api/v2/", b"", ""),
        (b"", b"", b"", ""),
        (b"*", b"*", b"", ""),
    ],
)
def test_paths_below_a_prefix_are_tagged_and_rewritten_by_whole_segments(path: bytes, goes_on: bytes, tag: bytes, rule: str) -> None:
    decision = decide(API, path)
    assert (decision.path, decision.tag, decision.rule) == (goes_on, tag, rule)
    assert decision.rewritten == (goes_on != path)


@pytest.mark.parametrize(
    "path",
    [
        b"/api/v2/../v1/x",
        b"/api/v2/./x",
        b"/api/v2/..",
        b"/api/v2/%2e%2e/x",
        b"/api/v2/%2E./x",
        b"/api/v2/.%2e/x",
        b"/api/v2/..\\x",
        b"/api/v2/x\\..\\y",
        b"/x/../api/v2/y",
    ],
)
def test_a_path_with_dot_segments_lies_below_no_prefix(path: bytes) -> None:
    decision = decide(API, path)
    assert (decision.path, decision.tag, decision.rewritten) == (path, b"", False)


@given(PATHS)
def test_any_path_is_decided_and_both_versions_reach_the_same_api(path: bytes) -> None:
    first, second = decide(API, b"/api/v1/" + path), decide(API, b"/api/v2/" + path)
    assert first.path.removeprefix(b"/api/v1/") == second.path.removeprefix(b"/api/v2/")
    assert first.rewritten == second.rewritten
    assert first.tag == b""
    assert second.tag == (b"v2-canary" if second.rewritten else b"")
    if second.rewritten:
        assert second.path == b"/" + path
    # What is rewritten keeps its query, byte for byte.
    assert split_query(second.path)[1] == split_query(b"/api/v2/" + path)[1]


@given(st.binary())
def test_a_path_and_its_query_are_the_whole(path: bytes) -> None:
    bare, rest = split_query(path)
    assert bare + rest == path
    assert not {b"?", b"#"} & {bare[at : at + 1] for at in range(len(bare))}
    assert rest[:1] in (b"", b"?", b"#")
    decide(API, path)


@pytest.mark.parametrize(
    ("prefix", "rewrite", "path", "expected"),
    [
        (b"/", b"/base", b"/x", b"/base/x"),
        (b"/", b"/base/", b"/", b"/base/"),
        (b"/a", b"/b", b"/a", b"/b"),
        (b"/a/", b"/b", b"/a/", b"/b/"),
        (b"/a//", b"/b//", b"/a/x", b"/b/x"),
        (b"/a", b"/", b"/a", b"/"),
    ],
)
def test_a_prefix_gives_way_to_another(prefix: bytes, rewrite: bytes, path: bytes, expected: bytes) -> None:
    assert decide(Rules((Rule("r", b"", PREFIX, value=prefix, rewrite=rewrite),)), path).path == expected


def test_the_first_rule_that_matches_tags_and_the_first_prefix_that_matches_rewrites() -> None:
    by_header = Rule("beta", b"beta", EXACT, header=b"x-beta", value=b"yes")
    decision = decide(Rules((by_header, V2, V1)), b"/api/v2/x", {b"x-beta": b"yes"})
    assert (decision.tag, decision.rule, decision.path) == (b"beta", "beta", b"/x")
    decision = decide(Rules((V2, by_header, V1)), b"/api/v1/x", {b"x-beta": b"yes"})
    assert (decision.tag, decision.rule, decision.path) == (b"beta", "beta", b"/x")
    kept = Rule("kept", b"kept", PREFIX, value=b"/api/")
    decision = decide(Rules((kept, V2)), b"/api/v2/x")
    assert (decision.tag, decision.path, decision.rewritten) == (b"kept", b"/api/v2/x", False)


# Headers


@pytest.mark.parametrize(
    ("kind", "wanted", "value", "expected"),
    [
        (EXACT, b"yes", b"yes", True),
        (EXACT, b"yes", b"Yes", False),
        (EXACT, b"yes", b"yes,yes", False),
        (EXACT, b"", b"", True),
        (HEADER_PREFIX, b"ye", b"yes", True),
        (HEADER_PREFIX, b"yes!", b"yes", False),
        (HEADER_PREFIX, b"\xff", b"\xff\xfe", True),
        (PRESENT, b"", b"", True),
        (PRESENT, b"", None, False),
        (EXACT, b"", None, False),
        (HEADER_PREFIX, b"y", None, False),
    ],
)
def test_a_header_matches_by_its_bytes(kind: str, wanted: bytes, value: bytes | None, expected: bool) -> None:
    rules = Rules((Rule("r", b"t", kind, header=b"x-a", value=wanted),))
    headers = {} if value is None else {b"x-a": value}
    assert (decide(rules, b"/", headers).tag == b"t") is expected


# The client's own tag


@given(st.binary(max_size=80) | st.text("abcXYZ019._-", max_size=80).map(str.encode), st.booleans())
def test_a_clients_own_tag_counts_only_where_it_is_trusted_and_well_formed(tag: bytes, trusted: bool) -> None:
    well_formed = 0 < len(tag) <= 63 and all(byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-" for byte in tag)
    assert is_tag(tag) == well_formed
    for path, own in ((b"/x", b""), (b"/api/v2/x", b"v2-canary")):
        decision = decide(Rules((V2,), trust_client=trusted), path, tag=tag)
        assert decision.tag == (tag if trusted and well_formed else own)
        assert (decision.rule == CLIENT) == (trusted and well_formed)
        assert decision.path == b"/x"


# Shares


def share(percent: float, key: str = "tenant", *, salt: bytes = b"s") -> Rules:
    return Rules((Rule("share", b"t", PERCENT, share=percent, key=key, header=b"x-user", salt=salt),))


def tagged(rules: Rules, keys: list[bytes]) -> set[bytes]:
    return {key for key in keys if decide(rules, b"/", tenant=key).tag}


USERS = [b"user-%d" % number for number in range(20_000)]


@pytest.mark.parametrize("percent", [0.1, 1, 5, 33.3, 50, 95])
@pytest.mark.parametrize("salt", [b"a", b"rule-1", b"another"])
def test_a_share_of_many_keys_is_the_share_within_chance(percent: float, salt: bytes) -> None:
    expected = len(USERS) * percent / 100
    # Five standard deviations of a binomial distribution.
    assert abs(len(tagged(share(percent, salt=salt), USERS)) - expected) <= 5 * math.sqrt(expected * (1 - percent / 100))


def test_the_parts_of_similar_keys_are_spread_evenly() -> None:
    for keys in (USERS, [number.to_bytes(4, "big") for number in range(20_000)], [b"\0" * number for number in range(1, 4000)]):
        counts = [0] * 20
        for key in keys:
            counts[part_of(b"salt", key) * 20 // PARTS] += 1
        expected = len(keys) / 20
        # Chi-squared of 19 degrees of freedom: above 52 once in 10,000.
        assert sum((count - expected) ** 2 / expected for count in counts) < 52


def test_none_is_none_and_all_is_all() -> None:
    assert tagged(share(0), USERS) == set()
    assert tagged(share(100), USERS) == set(USERS)


def test_a_share_that_grows_keeps_whom_it_had() -> None:
    sets = [tagged(share(percent), USERS) for percent in (1, 2, 10, 50, 99)]
    for smaller, larger in itertools.pairwise(sets):
        assert smaller < larger


def test_another_salt_picks_others() -> None:
    first, second = tagged(share(50, salt=b"a"), USERS), tagged(share(50, salt=b"b"), USERS)
    # Independent halves share a quarter of all.
    assert abs(len(first & second) - len(USERS) / 4) < 5 * math.sqrt(len(USERS) * 3 / 16)


def test_who_is_picked_never_changes() -> None:
    """By figures: another hash would move people between the sides of a canary at an upgrade."""
    assert [part_of(b"rule-0", key) for key in (b"", b"a", b"user-1", b"\xff" * 100)] == PICKED


PICKED = [493630, 507527, 809082, 622970]


@given(st.binary(), st.binary())
def test_a_part_is_a_part_and_always_the_same(salt: bytes, key: bytes) -> None:
    assert 0 <= part_of(salt, key) < PARTS
    assert part_of(salt, key) == part_of(salt, key)


def test_the_key_is_the_tenant_the_path_or_a_header() -> None:
    one, other = (next(key for key in USERS if bool(decide(share(50), b"/", tenant=key).tag) is wanted) for wanted in (True, False))
    assert decide(share(50, "header"), b"/", {b"x-user": one}, tenant=other).tag == b"t"
    assert decide(share(50, "header"), b"/", {b"x-user": other}, tenant=one).tag == b""
    assert decide(share(50, "path"), one, tenant=other).tag == b"t"
    # Without its query: the next page is on the same side.
    assert decide(share(50, "path"), one + b"?page=2").tag == b"t"
    assert decide(share(50, "path"), other + b"?page=2").tag == b""


@pytest.mark.parametrize("key", ["tenant", "header"])
def test_who_has_no_key_is_no_canary(key: str) -> None:
    assert decide(share(100, key), b"/").tag == b""
    assert decide(share(100, key), b"/", {b"x-user": b""}).tag == b""
