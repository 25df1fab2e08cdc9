"""Edge policies as hypothesis makes them: good ones, and good ones with one thing made wrong."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

LABELS = st.sampled_from(["a", "B-2", "v2-canary", "x_y.z", "0", "n" * 63])
HEADERS = st.sampled_from(["x-tenant", "X-Tenant", "authorization", "a", "x!#$%&'*+.^_`|~1", "h" * 128])
PATHS = st.sampled_from(["/", "/api/v2/", "/api/v2", "/a b", "/ü/%2F", "/" + "p" * 1023])
TEXTS = st.sampled_from(["yes", "a b", "ü€", "'\"\\", "t" * 1024])
ENVIRONMENTS = st.sampled_from(["dev", "staging", "prod"])
URIS = st.sampled_from(["spiffe://mesh/ns/default/sa/a", "https://example.org/ü?q=1", "u" * 1024])


def whole(least: int, most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([least, most]) | st.integers(least, most)


def number(least: float, most: float) -> st.SearchStrategy[float]:
    return st.sampled_from([least, most, int(most)]) | st.floats(least, most, allow_nan=False)


@st.composite
def breakers(draw: st.DrawFn) -> dict[str, Any]:
    # All that is generated here stays below what the longest isolation is at least.
    optional = {
        "window_seconds": whole(1, 60),
        "max_error_ratio": number(0, 1),
        "min_requests": whole(1, 1_000_000),
        "consecutive_failures": whole(0, 1_000_000),
        "isolation_seconds": number(0.1, 600),
        "max_isolation_seconds": number(600, 86_400),
        "lone_isolation_seconds": number(0.1, 86_400),
        "probes": whole(1, 16),
        "probe_successes": whole(1, 1000),
        "probe_lease_seconds": number(0.1, 3600),
        "max_isolated_ratio": number(0, 1),
        "panic_ratio": number(0, 1),
    }
    return draw(st.fixed_dictionaries({}, optional=optional))


def matches() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.fixed_dictionaries({"name": HEADERS, "exact": TEXTS | st.just("")}),
        st.fixed_dictionaries({"name": HEADERS, "prefix": TEXTS}),
        st.fixed_dictionaries({"name": HEADERS, "present": st.just(True)}),
    )


def rules() -> st.SearchStrategy[dict[str, Any]]:
    share = number(0, 100)
    salt = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128)
    named = {"name": LABELS}
    keyed = {**named, "key": st.sampled_from(["tenant", "path"]), "salt": salt}
    return st.one_of(
        st.fixed_dictionaries({"prefix": PATHS}, optional={**named, "tag": LABELS, "rewrite": PATHS}),
        st.fixed_dictionaries({"header": matches(), "tag": LABELS}, optional=named),
        st.fixed_dictionaries({"metadata": matches(), "tag": LABELS}, optional=named),
        st.fixed_dictionaries({"percent": share, "tag": LABELS}, optional=keyed),
        st.fixed_dictionaries({"percent": share, "tag": LABELS, "key": st.just("header"), "key_header": HEADERS}, optional={"salt": salt}),
    )


@st.composite
def good_policies(draw: st.DrawFn) -> dict[str, Any]:
    """What both the loader and the filter must take."""
    canary = st.lists(rules(), max_size=3)
    tenant = st.fixed_dictionaries(
        {}, optional={"environment": ENVIRONMENTS, "breaker": breakers(), "canary": canary, "trust_client_routing": st.booleans()}
    )
    tenants: dict[str, Any] = draw(st.dictionaries(LABELS, tenant, max_size=3))
    identity: dict[str, st.SearchStrategy[Any]] = {"header": HEADERS}
    if tenants:
        identity["uri_sans"] = st.dictionaries(URIS, st.sampled_from(sorted(tenants)), max_size=2)
    policy: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "version": st.just(1),
                "environment": ENVIRONMENTS,
                "log_level": st.sampled_from(["trace", "debug", "info", "warn", "error", "critical"]),
                "breaker": breakers(),
                "canary": canary,
                "trust_client_routing": st.booleans(),
                "tenant_identity": st.fixed_dictionaries({}, optional=identity),
                "shortest_deadline_seconds": number(0, 3600),
                "max_fleets": whole(1, 4096),
            },
        )
    )
    return {**policy, "tenants": tenants} if tenants else policy


WILD = st.sampled_from(
    [
        *("", "a", "default", "n" * 64, "/", "no-slash", "a/b", "a,b", "a b", "\x00", "line\nbreak", "\x7f", "ü"),
        *("\u212a", "\u0130", "a\u212a", "t" * 1025, "/" + "p" * 1024, "h" * 129, "prod", "header", "true", "1"),
        *(True, False, -1, 0, 1, 2, 17, 61, 101, 4097, 86_401, 1_000_001, 2**70),
        *(-0.5, 0.05, 0.5, 1.5, 29.5, 100.5, 1e300, [], ["a"], [{}], {}, {"a": 1}, {"name": "a"}, {"": "a"}, {"a,b": "a"}, {"default": {}}),
    ]
)


def _places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value below this one."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from _places(value[key], (*at, key))


@st.composite
def touched_policies(draw: st.DrawFn) -> dict[str, Any]:
    """A good policy in which one value is another, one key is gone or there is one more key: often wrong, not always."""
    policy = copy.deepcopy(draw(good_policies()))
    places = list(_places(policy))
    kind = draw(st.sampled_from(["replace", "remove", "add"]))
    if kind == "add" or not places:
        inner = [(), *(place for place in places if isinstance(_at(policy, place), dict))]
        target = _at(policy, draw(st.sampled_from(inner)))
        known = {key for place in places for key in place if isinstance(key, str)}
        more = {"isolation_seconds", "max_isolation_seconds", "key", "salt", "rewrite", "other"}
        target[draw(st.sampled_from(sorted(known | more)))] = draw(WILD)
        return policy
    *way, last = draw(st.sampled_from(places))
    parent = _at(policy, tuple(way))
    if kind == "remove":
        del parent[last]
    else:
        parent[last] = draw(WILD)
    return policy


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for key in place:
        value = value[key]
    return value
