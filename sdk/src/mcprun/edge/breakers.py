"""The state of the edge filter's breakers, as the filter tells it to who operates the mesh."""

from pathlib import Path
from typing import Literal

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

_SECONDS = 5.0


class NoStatus(Exception):
    """The edge filter cannot be asked; the message says why."""


class NothingAnswers(NoStatus):
    """Nobody is there."""


class NodeBreaker(BaseModel):
    """The breaker of one node, for one model, tenant and canary side."""

    model_config = ConfigDict(frozen=True)

    node: str
    state: Literal["closed", "open", "half-open"]
    since_seconds: float
    """When the state began, in seconds since the epoch."""
    reason: str
    """Why it is in this state; empty when it never was in another."""
    until_seconds: float | None
    """When an isolated node may be probed, in seconds since the epoch."""
    isolations: int
    """How often it was isolated in a row; each makes the next one longer."""
    requests: int
    """How many requests ended within the window."""
    failures: int
    """How many of them failed."""
    consecutive_failures: int
    probes: int
    """How many probes are under way."""


class FleetStatus(BaseModel):
    """All nodes that answer for one model, tenant and canary side."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    model: str
    side: str
    nodes: list[NodeBreaker]


class EdgeStatus(BaseModel):
    """What the edge filter tells."""

    model_config = ConfigDict(frozen=True)

    environment: str
    fleets: list[FleetStatus]


def ask(address: str) -> EdgeStatus:
    """The filter's state. `address` is unix:PATH or HOST:PORT. Raises NoStatus."""
    path = Path(address.removeprefix("unix:")) if address.startswith("unix:") else None
    transport = httpx.HTTPTransport(uds=str(path)) if path is not None else None
    try:
        with httpx.Client(transport=transport, timeout=_SECONDS, trust_env=False) as client:
            answer = client.get("http://edge/" if path is not None else f"http://{address}/")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NothingAnswers(f"nothing answers at {address}: {error}") from error
    if answer.status_code != httpx.codes.OK:
        raise NoStatus(f"{address} answers with HTTP status {answer.status_code}: {answer.text[:200]}")
    try:
        return EdgeStatus.model_validate_json(answer.content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise NoStatus(f"{address} answers what is no status of this version: {field + ': ' if field else ''}{first['msg']}") from error
