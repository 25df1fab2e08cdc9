"""The policy that the filter is configured with: JSON bytes made into objects, or a `ValueError` that says what is wrong where.

An empty object is a whole policy: the defaults. A key that is not known is an error. What a policy says of one tenant
touches no other's breakers, since their records are found by names alone. `docs/edge-policy.md` describes each field.
"""

from __future__ import annotations

from mcprun_filter.breaker import Thresholds
from mcprun_filter.fields import Fields, fail, is_plain, load
from mcprun_filter.fleet import MAX_NODE_NAME, MAX_NODES, Circuit
from mcprun_filter.routing import EXACT, HEADER_PREFIX, NAME_BYTES, PERCENT, PREFIX, PRESENT, Rule, Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1
ENVIRONMENTS = {"dev": (0.80, "debug"), "staging": (0.35, "info"), "prod": (0.15, "warn")}
"""The share of errors that opens a breaker, and what is logged, in each environment."""
LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "critical")
DEFAULT_GROUP = "default"
DEFAULT_RULES = (
    Rule("api-v2", b"v2-canary", PREFIX, value=b"/api/v2/", rewrite=b"/"),
    Rule("api-v1", b"", PREFIX, value=b"/api/v1/", rewrite=b"/"),
)
MAX_TENANTS = 1000
MAX_RULES = 100


class Tenant:
    """What holds for one tenant's requests."""

    __slots__ = ("environment", "group", "name", "rules", "thresholds")

    def __init__(self, name: str, *, group: str, environment: str, thresholds: Thresholds, rules: Rules) -> None:
        self.name = name
        self.group = group
        """Whose breakers its requests use: its own name when it has a breaker policy of its own, else `default`."""
        self.environment = environment
        self.thresholds = thresholds
        self.rules = rules


class Node:
    """An upstream node: a name for people and keys, and the addresses that Envoy knows it by."""

    __slots__ = ("addresses", "name")

    def __init__(self, name: bytes, addresses: tuple[bytes, ...]) -> None:
        self.name = name
        self.addresses = addresses
        """`host:port`; the first is what requests are steered to."""


class Policy:
    """The whole policy. Made by `load`."""

    __slots__ = (
        "_circuits",
        "default",
        "environment",
        "identities",
        "log_level",
        "max_fleets",
        "node_header",
        "nodes",
        "nodes_by_address",
        "routing_header",
        "shortest_deadline",
        "tenant_header",
        "tenants",
    )

    _circuits: dict[tuple[str, bytes, bytes], Circuit]
    environment: str
    log_level: str
    max_fleets: int
    nodes: tuple[Node, ...]
    nodes_by_address: dict[bytes, Node]
    node_header: bytes
    """The header in which Envoy's override-host load balancing reads the address."""
    routing_header: bytes
    """The header that carries the canary's tag."""
    shortest_deadline: float
    """Seconds: a client that allows less makes timeouts that are not held against a node."""
    tenant_header: bytes
    identities: dict[bytes, str]
    """URI SANs of client certificates, and whose they are."""
    tenants: dict[str, Tenant]
    default: Tenant
    """Holds for requests of no tenant, and of tenants that the policy does not name."""

    @classmethod
    def load(cls, raw: bytes) -> Policy:
        """The policy that is written in that JSON. Nothing at all is an empty object.

        Raises:
            ValueError: names the field's path, what was expected and what came.
        """
        root = Fields(load(raw), "")
        policy = cls()
        root.integer("version", VERSION, VERSION, VERSION)
        policy.environment = root.one_of("environment", "prod", tuple(ENVIRONMENTS))
        policy.log_level = root.one_of("log_level", ENVIRONMENTS[policy.environment][1], LOG_LEVELS)
        policy.max_fleets = root.integer("max_fleets", 512, 1, 4096)
        policy.node_header = root.header("node_header", b"x-mcprun-node")
        policy.routing_header = root.header("routing_header", b"x-routing")
        policy.shortest_deadline = root.number("shortest_deadline_seconds", 0.05, 0.0, 3600.0)
        policy.nodes = _nodes(root)
        policy.nodes_by_address = _by_address(policy.nodes)

        breaker = root.object("breaker")
        trust = root.boolean("trust_client_routing", False)
        canary = _rules(root, trust=trust) if root.has("canary") else Rules(DEFAULT_RULES, trust_client=trust)
        thresholds = _thresholds(breaker, {}, policy.environment)
        policy.default = Tenant("", group=DEFAULT_GROUP, environment=policy.environment, thresholds=thresholds, rules=canary)

        policy.tenant_header, policy.identities = _identification(root.object("tenant_identity"))
        policy.tenants = {}
        tenants = root.object("tenants")
        tenants.at_most(MAX_TENANTS, "tenants")
        for name in tenants.names():
            policy.tenants[name] = _tenant(name, tenants, policy.default, breaker.values, canary)
        tenants.done()
        for uri, name in policy.identities.items():
            if name not in policy.tenants:
                fail(f"tenant_identity.uri_sans.{uri.decode()}", "one of the names in tenants", name)
        root.done()
        policy._circuits = {}
        return policy

    def tenant(self, *, header: bytes | None = None, identity: bytes | None = None) -> Tenant:
        """Whose a request is. A certificate that the policy knows outweighs the header, which anybody can write.

        header: the value of `tenant_header`. identity: the certificate's URI SANs, separated by commas.
        """
        if identity and self.identities:
            for one in identity.split(b","):
                name = self.identities.get(one.strip())
                if name is not None:
                    return self.tenants.get(name, self.default)
        if header:
            return self.tenants.get(header.decode("latin-1"), self.default)
        return self.default

    def circuit(self, tenant: Tenant, model: bytes, side: bytes) -> Circuit:
        """Which breakers a request uses: those of its policy group, its model and its side of the canary (the tag, or empty)."""
        name = (tenant.group, model, side)
        circuit = self._circuits.get(name)
        if circuit is None:
            if len(self._circuits) >= 4 * self.max_fleets:  # names of models come from clients
                self._circuits.clear()
            circuit = self._circuits[name] = Circuit(
                fleet_key(tenant.group, model, side), tenant.thresholds, [node.name for node in self.nodes]
            )
        return circuit

    def group_thresholds(self, group: str) -> Thresholds:
        """The thresholds of a group, by which `status` reads its records; the default ones for groups that are no more."""
        tenant = self.tenants.get(group)
        return tenant.thresholds if tenant is not None and tenant.group == group else self.default.thresholds


def fleet_key(group: str, model: bytes, side: bytes) -> bytes:
    """The name of a fleet: made of names alone, so that no change of a policy moves it. Its parts hold no slash."""
    return group.encode() + b"/" + model + b"/" + side


def fleet_name(key: bytes) -> tuple[str, str, str]:
    """Group, model and side of a fleet's key; of the overflow fleet they are all `*`."""
    parts = key.decode("latin-1").split("/")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("*", "*", "*")


def _thresholds(own: Fields, inherited: dict[str, object], environment: str) -> Thresholds:
    """Thresholds of what is said here, else of what is inherited, else of the environment."""
    fields = Fields({**inherited, **{key: value for key, value in own.values.items() if value is not None}}, own.path)
    window = fields.integer("window_seconds", 10, 1, 60)
    ratio = fields.number("max_error_ratio", ENVIRONMENTS[environment][0], 0.0, 1.0)
    requests = fields.integer("min_requests", 20, 1, 1_000_000)
    consecutive = fields.integer("consecutive_failures", 5, 0, 1_000_000)
    isolation = fields.number("isolation_seconds", 30.0, 0.1, 86_400.0)
    lone = fields.number("lone_isolation_seconds", min(1.0, isolation), 0.1, 86_400.0)
    longest = fields.number("max_isolation_seconds", max(300.0, isolation), 0.1, 86_400.0)
    thresholds = Thresholds(
        window_seconds=window,
        max_error_ratio=ratio,
        min_requests=requests,
        consecutive_failures=consecutive,
        isolation_seconds=isolation,
        max_isolation_seconds=longest,
        lone_isolation_seconds=lone,
        probes=fields.integer("probes", 3, 1, 16),
        probe_successes=fields.integer("probe_successes", 3, 1, 1000),
        probe_lease_seconds=fields.number("probe_lease_seconds", 10.0, 0.1, 3600.0),
        max_isolated_ratio=fields.number("max_isolated_ratio", 0.5, 0.0, 1.0),
        panic_ratio=fields.number("panic_ratio", 0.5, 0.0, 1.0),
    )
    if longest < isolation:
        fail(fields.below("max_isolation_seconds"), f"isolation_seconds, {isolation:g}, or more", longest)
    fields.done()
    return thresholds


def _tenant(name: str, tenants: Fields, default: Tenant, breaker: dict[str, object], canary: Rules) -> Tenant:
    if not _named(name, 63):
        fail(tenants.below(name), "a name of 1 to 63 letters, digits, '.', '_' and '-'", name)
    if name == DEFAULT_GROUP:
        fail(tenants.below(name), "another name: 'default' is the group of all who have no breaker of their own", name)
    fields = tenants.object(name)
    environment = fields.one_of("environment", default.environment, tuple(ENVIRONMENTS))
    own = fields.object("breaker")
    # A group of its own only for those who ask for it: the more share one, the sooner its breakers know.
    apart = fields.has("breaker") or fields.has("environment")
    thresholds = default.thresholds
    if apart:
        inherited = dict(breaker)
        if fields.has("environment"):
            inherited.pop("max_error_ratio", None)
        thresholds = _thresholds(own, inherited, environment)
    trust = fields.boolean("trust_client_routing", canary.trust_client)
    rules = _rules(fields, trust=trust) if fields.has("canary") else Rules(canary.rules, trust_client=trust)
    fields.done()
    return Tenant(name, group=name if apart else DEFAULT_GROUP, environment=environment, thresholds=thresholds, rules=rules)


def _identification(fields: Fields) -> tuple[bytes, dict[bytes, str]]:
    header = fields.header("header", b"x-tenant")
    identities: dict[bytes, str] = {}
    mapping = fields.object("uri_sans")
    for uri in mapping.names():
        if not 0 < len(uri) <= 1024 or not is_plain(uri) or "," in uri:
            fail(mapping.path, "URIs as keys, of 1 to 1024 characters without a comma", uri)
        identities[uri.encode()] = mapping.text(uri, None, 1, 63)
    mapping.done()
    fields.done()
    return header, identities


def _nodes(root: Fields) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for fields in root.objects("nodes", MAX_NODES):
        name = fields.text("name", None, 1, MAX_NODE_NAME)
        if not _named(name, MAX_NODE_NAME, extra=":[]"):
            fail(fields.below("name"), "letters, digits, '.', '_', '-', ':' and brackets", name)
        addresses = fields.texts("addresses", 16)
        if not addresses:
            fail(fields.below("addresses"), "one address or more", [])
        if any(node.name == name.encode() for node in nodes):
            fail(fields.below("name"), "a name that no other node has", name)
        nodes.append(Node(name.encode(), tuple(address.encode() for address in addresses)))
        fields.done()
    return tuple(nodes)


def _by_address(nodes: Sequence[Node]) -> dict[bytes, Node]:
    found: dict[bytes, Node] = {}
    for index, node in enumerate(nodes):
        for address in node.addresses:
            if found.setdefault(address, node) is not node:
                fail(f"nodes[{index}].addresses", "addresses that no other node has", address.decode("latin-1"))
    return found


def _rules(parent: Fields, *, trust: bool) -> Rules:
    """The canary rules, in order. Each has exactly one condition."""
    rules: list[Rule] = []
    for index, fields in enumerate(parent.objects("canary", MAX_RULES)):
        name = fields.text("name", f"rule-{index}", 1, 63)
        if not _named(name, 63):
            fail(fields.below("name"), "letters, digits, '.', '_' and '-'", name)
        tag = fields.text("tag", None, 1, 63) if fields.has("tag") else ""
        if tag and not _named(tag, 63):
            fail(fields.below("tag"), "letters, digits, '.', '_' and '-'", tag)
        rules.append(_rule(fields, name, tag.encode()))
        fields.done()
    return Rules(tuple(rules), trust_client=trust)


def _rule(fields: Fields, name: str, tag: bytes) -> Rule:
    conditions = [key for key in ("prefix", "header", "metadata", "percent") if fields.has(key)]
    if len(conditions) != 1:
        fail(fields.path, "exactly one of 'prefix', 'header', 'metadata' and 'percent'", conditions)
    rewrite = fields.text("rewrite", None, 1, 1024).encode() if fields.has("rewrite") else None
    if conditions[0] == "prefix":
        prefix = fields.text("prefix", None, 1, 1024).encode()
        if not prefix.startswith(b"/"):
            fail(fields.below("prefix"), "a path that begins with '/'", prefix.decode())
        if rewrite is not None and not rewrite.startswith(b"/"):
            fail(fields.below("rewrite"), "a path that begins with '/'", rewrite.decode())
        return Rule(name, tag, PREFIX, value=prefix, rewrite=rewrite)
    if rewrite is not None:
        fail(fields.below("rewrite"), "nothing: only rules by 'prefix' rewrite", rewrite.decode())
    if not tag:
        fail(fields.below("tag"), "a tag: only rules by 'prefix' do without one", "")
    if conditions[0] == "percent":
        share = fields.number("percent", None, 0.0, 100.0)
        key = fields.one_of("key", "tenant", ("tenant", "path", "header"))
        header = fields.header("key_header", None) if key == "header" else b""
        salt = fields.text("salt", name, 1, 128).encode()
        return Rule(name, tag, PERCENT, share=share, key=key, header=header, salt=salt)
    condition = fields.object(conditions[0])
    header = condition.header("name", None)
    kinds = [key for key in ("exact", "prefix", "present") if condition.has(key)]
    if len(kinds) != 1:
        fail(condition.path, "exactly one of 'exact', 'prefix' and 'present'", kinds)
    value = b""
    kind = PRESENT
    if kinds[0] == "present":
        if not condition.boolean("present", True):
            fail(condition.below("present"), "true", False)
    else:
        kind = EXACT if kinds[0] == "exact" else HEADER_PREFIX
        value = condition.text(kinds[0], None, 0 if kind == EXACT else 1, 1024).encode()
    condition.done()
    return Rule(name, tag, kind, header=header, value=value)


def _named(text: str, longest: int, extra: str = "") -> bool:
    return 0 < len(text) <= longest and text.isascii() and not text.encode().translate(None, NAME_BYTES + extra.encode())
