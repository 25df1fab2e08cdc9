"""The filter's metrics. What their labels say is bounded, since Envoy never forgets one: fleets that have a record, nodes, rules and tags
of the policy. All other models are `*` together, and so are the tags of trusted clients.
"""

from __future__ import annotations

from mcprun_filter.breaker import CLOSED, HALF_OPEN, OPEN, REASONS, STATES, Transition
from mcprun_filter.policy import fleet_name
from proxy_wasm import Counter, Gauge

_CIRCUIT = ("tenant", "model", "side")

STATE = Gauge("mcprun_edge_breaker_state", (*_CIRCUIT, "node"))
"""0 closed, 1 half-open, 2 open."""
TRANSITIONS = Counter("mcprun_edge_breaker_transitions_total", (*_CIRCUIT, "node", "to", "reason"))
WITHHELD = Counter("mcprun_edge_isolations_withheld_total")
"""Nodes that were to be isolated and were not, since too many others are."""
REFUSALS = Counter("mcprun_edge_refusals_total", _CIRCUIT)
PROBES = Counter("mcprun_edge_probes_total", (*_CIRCUIT, "node"))
PANICS = Counter("mcprun_edge_panic_requests_total", _CIRCUIT)
"""Requests that went to any node, since too few are healthy."""
TAGS = Counter("mcprun_edge_tagged_requests_total", ("rule", "tag"))

_LEVELS = {CLOSED: 0, HALF_OPEN: 1, OPEN: 2}


def tell_state(key: bytes, node: bytes, state: int) -> None:
    """Shows a node's state. `key` is that of the fleet."""
    STATE.labels(*fleet_name(key), node.decode("latin-1")).set(_LEVELS[state])


def tell_transition(transition: Transition) -> None:
    """Counts a change of state, and shows the new one."""
    node = transition.node.decode("latin-1")
    TRANSITIONS.labels(*fleet_name(transition.key), node, STATES[transition.after], REASONS[transition.reason]).increment()
    tell_state(transition.key, transition.node, transition.after)
