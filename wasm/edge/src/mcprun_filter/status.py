"""What the filter tells those who operate the mesh."""

from __future__ import annotations

from mcprun_filter.fleet import Circuit
from mcprun_filter.policy import Policy, fleet_name
from mcprun_filter.store import OVERFLOW, Fleets


def report(policy: Policy, fleets: Fleets, now: int) -> dict[str, object]:
    """Every breaker of every fleet, in plain values; times in seconds."""
    nodes = [node.name for node in policy.nodes]
    told = []
    for key in fleets.keys():  # noqa: SIM118  no mapping
        group, model, side = fleet_name(key)
        thresholds = policy.default.thresholds if key == OVERFLOW else policy.group_thresholds(group)
        fleet = fleets.view(Circuit(key, thresholds, nodes))
        told.append({"tenant": group, "model": model, "side": side, "nodes": [_node(row, now) for row in fleet.status(now)]})
    return {"environment": policy.environment, "fleets": told}


def _node(row: dict[str, object], now: int) -> dict[str, object]:
    def number(key: str) -> int:
        value = row[key]
        return value if isinstance(value, int) else 0

    isolated = row["state"] == "open"
    failed = number("window_failed")
    return {
        "node": row["node"],
        "state": row["state"],
        "since_seconds": number("since_milliseconds") / 1000,
        "reason": row["text"] if number("generation") or number("isolations") or row["state"] != "closed" else "",
        "until_seconds": (now + number("isolation_left_milliseconds")) / 1000 if isolated else None,
        "isolations": number("isolations"),
        "requests": number("window_ok") + failed,
        "failures": failed,
        "consecutive_failures": number("consecutive_failures"),
        "probes": number("probes_under_way"),
    }
