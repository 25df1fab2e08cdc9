"""The edge filter's policy as people write it: a YAML file, checked before an edge is given it.

The filter checks what it is given once more; it cannot use pydantic, and it may be given a policy by others (Istio, say).
`docs/edge-policy.md` describes each field, `docs/edge-policy.schema.json` is made by `python -m mcprun.edge.policy FILE`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from mcprun.document import ConfigError, Location, read, shown
from mcprun.mistakes import Mistake, validate
from mcprun.model.fields import Flag, Number, Whole

SCHEMA = "urn:mcprun:edge-policy.yaml:2026.3"
_LABEL_PATTERN = r"^[A-Za-z0-9._-]{1,63}$"
_HEADER_PATTERN = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"
_PLAIN_PATTERN = r"^[^\x00-\x1f\x7f]*$"

Label = Annotated[str, Field(strict=True, pattern=_LABEL_PATTERN)]
Header = Annotated[str, Field(strict=True, pattern=_HEADER_PATTERN)]
PathPrefix = Annotated[str, Field(strict=True, pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=1024)]
Plain = Annotated[str, Field(strict=True, pattern=_PLAIN_PATTERN, max_length=1024)]
Uri = Annotated[str, Field(strict=True, pattern=r"^[^\x00-\x1f\x7f,]+$", max_length=1024)]
Environment = Literal["dev", "staging", "prod"]
_ISOLATION_SECONDS = 30.0
MAX_BYTES = 4_000_000
"""The largest policy as JSON: what the filter takes, less what the edge adds to it."""


def _no_equal(value: Any, info: ValidationInfo) -> Any:
    """Refuses 1 for true and true for 1: they are equal in Python, and the filter tells them apart."""
    if value in (0, 1) and isinstance(value, bool) == (info.field_name == "version"):
        raise Mistake("1" if info.field_name == "version" else "true")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Breaker(_Strict):
    """When a node is isolated, for how long, and how it comes back."""

    window_seconds: Annotated[Whole, Field(ge=1, le=60)] | None = Field(default=None, description="Seconds of outcomes that count; 10")
    max_error_ratio: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        default=None, description="More than this share of failures isolates; 0.80, 0.35, 0.15 in dev, staging, prod"
    )
    min_requests: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Requests in the window from which on the share counts; 20"
    )
    consecutive_failures: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="More failures in a row than this isolate at once; 5"
    )
    isolation_seconds: Annotated[Number, Field(ge=0.1, le=86_400)] | None = Field(
        default=None, description="How long the first isolation is; doubled each time; 30"
    )
    max_isolation_seconds: Annotated[Number, Field(ge=0.1, le=86_400)] | None = Field(
        default=None, description="The longest isolation; 300"
    )
    lone_isolation_seconds: Annotated[Number, Field(ge=0.1, le=86_400)] | None = Field(
        default=None, description="The first isolation of a node that is the only one; doubled up to isolation_seconds; 1"
    )
    probes: Annotated[Whole, Field(ge=1, le=16)] | None = Field(default=None, description="Probes under way at once; 3")
    probe_successes: Annotated[Whole, Field(ge=1, le=1000)] | None = Field(default=None, description="Good probes that end it; 3")
    probe_lease_seconds: Annotated[Number, Field(ge=0.1, le=3600)] | None = Field(
        default=None, description="A probe without an answer is given up after it; 10"
    )
    max_isolated_ratio: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        default=None, description="The share of nodes that may be isolated, one at least; 0 isolates none; 0.5"
    )
    panic_ratio: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        default=None, description="With fewer than this share of nodes usable all are used; 0: never; 0.5"
    )

    def inherited_by(self, own: "Breaker") -> "Breaker":
        """What is said in `own`, and from here what is not."""
        return self.model_copy(update=own.model_dump(exclude_none=True))


class Match(_Strict):
    """What a header must be; exactly one of exact, prefix and present."""

    name: Header = Field(description="The header's name")
    exact: Plain | None = Field(default=None, description="Its whole value")
    prefix: Annotated[Plain, Field(min_length=1)] | None = Field(default=None, description="How its value begins")
    present: Annotated[Literal[True], BeforeValidator(_no_equal)] | None = Field(default=None, description="It may have any value")

    @model_validator(mode="after")
    def _one(self) -> Self:
        _exactly_one(self, "exact", "prefix", "present")
        return self


class CanaryRule(_Strict):
    """One rule; exactly one of prefix, header, metadata and percent."""

    name: Label | None = Field(default=None, description="For metrics; by default rule-0, rule-1 and so on")
    tag: Label | None = Field(default=None, description="The value of x-routing; only rules by prefix do without one")
    prefix: PathPrefix | None = Field(default=None, description="How the path begins")
    rewrite: PathPrefix | None = Field(default=None, description="What takes the place of the prefix")
    header: Match | None = Field(default=None, description="A header of the request")
    metadata: Match | None = Field(default=None, description="Metadata of a gRPC call")
    percent: Annotated[Number, Field(ge=0, le=100)] | None = Field(default=None, description="A share of all keys, always the same ones")
    key: Literal["tenant", "path", "header"] | None = Field(default=None, description="What a share is of; tenant")
    key_header: Header | None = Field(default=None, description="The header whose values are the keys")
    salt: Annotated[Plain, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="Rules of one salt pick the same keys; by default the rule's name"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _exactly_one(self, "prefix", "header", "metadata", "percent")
        if self.rewrite is not None and self.prefix is None:
            raise Mistake("nothing: only rules by prefix rewrite", shown(self.rewrite), below=("rewrite",))
        if self.tag is None and self.prefix is None:
            raise Mistake("a tag: only rules by prefix do without one", "nothing", below=("tag",))
        if (self.key == "header") != (self.key_header is not None):
            raise Mistake("a header's name exactly when key is header", shown(self.key_header), below=("key_header",))
        if self.percent is None and (self.key or self.salt):
            raise Mistake(
                "nothing: only rules by percent have a key and a salt", shown(self.key or self.salt), below=("key" if self.key else "salt",)
            )
        return self


def _tenant_name(name: str, info: ValidationInfo) -> str:
    if name == "default":
        raise Mistake("another name: default is the group of all who have no breaker of their own")
    return name


TenantName = Annotated[Label, AfterValidator(_tenant_name)]


class Tenant(_Strict):
    """What one tenant has of its own; the rest is everybody's."""

    environment: Environment | None = Field(default=None, description="Its environment; a breaker of its own follows")
    breaker: Breaker | None = Field(default=None, description="Its breakers, apart from everybody's; what is left out is everybody's")
    canary: Annotated[list[CanaryRule], Field(max_length=100)] | None = Field(
        default=None, description="Its rules, in place of everybody's"
    )
    trust_client_routing: Flag | None = Field(default=None, description="Whether its own x-routing header counts")


class TenantIdentity(_Strict):
    """How a request's tenant is known."""

    header: Header = Field(default="x-tenant", description="The header that names the tenant")
    uri_sans: dict[Uri, Label] = Field(
        default_factory=dict, description="URI SANs of client certificates (mTLS) and their tenants; they outweigh the header"
    )


def _default_rules() -> list[CanaryRule]:
    return [
        CanaryRule(name="api-v2", prefix="/api/v2/", tag="v2-canary", rewrite="/"),
        CanaryRule(name="api-v1", prefix="/api/v1/", rewrite="/"),
    ]


class EdgePolicy(_Strict):
    """The policy of the edge filter."""

    version: Annotated[Literal[1], BeforeValidator(_no_equal)] = Field(default=1, description="The version of this format")
    environment: Environment | None = Field(default=None, description="Picks the defaults; by default the edge's own environment")
    log_level: Literal["trace", "debug", "info", "warn", "error", "critical"] | None = Field(
        default=None, description="The least severe lines of the filter; by environment debug, info, warn"
    )
    breaker: Breaker = Field(default_factory=Breaker, description="Circuit breaking, for each node, model and canary side")
    canary: Annotated[list[CanaryRule], Field(max_length=100)] = Field(
        default_factory=_default_rules, description="Rules that tag requests and rewrite paths; the first that matches counts"
    )
    trust_client_routing: Flag = Field(default=False, description="Whether a client's own x-routing header counts")
    tenant_identity: TenantIdentity = Field(default_factory=TenantIdentity, description="How a request's tenant is known")
    tenants: Annotated[dict[TenantName, Tenant], Field(max_length=1000)] = Field(
        default_factory=dict, description="What single tenants have of their own"
    )
    shortest_deadline_seconds: Annotated[Number, Field(ge=0, le=3600)] = Field(
        default=0.05, description="Timeouts of callers who allow less are not held against a node"
    )
    max_fleets: Annotated[Whole, Field(ge=1, le=4096)] = Field(
        default=512, description="The most models, times tenants and canary sides, that have breakers of their own"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _ordered(self.breaker, self.breaker, ("breaker",))
        for name, tenant in self.tenants.items():
            own = tenant.breaker or (Breaker() if tenant.environment else None)
            if own is not None:
                _ordered(self.breaker.inherited_by(own), own, ("tenants", name, "breaker"))
        for uri, name in self.tenant_identity.uri_sans.items():
            if name not in self.tenants:
                raise Mistake("one of the names in tenants", repr(name), below=("tenant_identity", "uri_sans", uri))
        return self

    def values(self) -> dict[str, Any]:
        """As the filter takes it."""
        return self.model_dump(exclude_none=True)


def load_policy(path: Path) -> EdgePolicy:
    """Reads a policy. Raises ConfigError, which tells every mistake by file, line, column and field."""
    document = read(path, may_be_empty=True)
    policy = validate(document, EdgePolicy, document.values)
    # Aliases make a small file large.
    if (size := len(json.dumps(policy.values()))) > MAX_BYTES:
        raise ConfigError([document.problem((), f"a policy of at most {MAX_BYTES} bytes as JSON", str(size))])
    return policy


def compiled(
    policy: EdgePolicy | None, *, environment: Environment, nodes: Mapping[str, Sequence[str]], node_header: str
) -> dict[str, Any]:
    """What the filter is configured with: the policy, and what the edge knows of itself.

    `nodes` are the replicas of the router by name, with the addresses at which Envoy reaches each.
    """
    values = (policy or EdgePolicy()).values()
    values.setdefault("environment", environment)
    values["node_header"] = node_header
    values["nodes"] = [{"name": name, "addresses": list(addresses)} for name, addresses in nodes.items()]
    return values


def schema_text() -> str:
    """The JSON schema of the policy, for editors and other tools."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **EdgePolicy.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def _ordered(breaker: Breaker, written: Breaker, location: Location) -> None:
    """Refuses a first isolation that is longer than the longest. `written`: the part of it that stands at that location."""
    longest = breaker.max_isolation_seconds
    first = _ISOLATION_SECONDS if breaker.isolation_seconds is None else breaker.isolation_seconds
    if longest is None or longest >= first:
        return
    if written.max_isolation_seconds is not None:
        raise Mistake(f"isolation_seconds, {first:g}, or more", f"{longest:g}", below=(*location, "max_isolation_seconds"))
    raise Mistake(f"at most max_isolation_seconds, {longest:g}", f"{first:g}", below=(*location, "isolation_seconds"))


def _exactly_one(model: BaseModel, *names: str) -> None:
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        raise Mistake(f"exactly one of {', '.join(names)}", ", ".join(given) or "none")


def main() -> None:
    """Writes the schema to the file that is named, or to standard output."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())


__all__ = ["Breaker", "CanaryRule", "ConfigError", "EdgePolicy", "Tenant", "compiled", "load_policy", "schema_text"]

if __name__ == "__main__":
    main()
