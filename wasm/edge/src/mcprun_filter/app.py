"""The edge filter: what Envoy's callbacks make of the policy.

A worker has one `Guard` for each configuration and one `Stream` for each request. In the ordinary case, with every node
healthy, a request costs one read of shared data when it comes and one when it ends.
"""

from __future__ import annotations

import json
import os

from mcprun_filter import meters, outcomes
from mcprun_filter.breaker import CLOSED
from mcprun_filter.fleet import Choice, Circuit, Fleet
from mcprun_filter.model_name import NEED_MORE, UNKNOWN, from_message, from_path, in_message
from mcprun_filter.policy import Policy, Tenant, fleet_name
from mcprun_filter.refusals import is_grpc, refuse
from mcprun_filter.routing import CLIENT, Decision
from mcprun_filter.status import report
from mcprun_filter.store import OVERFLOW, Fleets
from mcprun_filter.tally import Tally
from mcprun_filter.topology import Topology
from mcprun_filter.traffic import is_guarded
from proxy_wasm import Action, HeaderMap, HttpContext, RootContext, log, now_nanoseconds, properties, register, shared_data
from proxy_wasm.abi import MapType
from proxy_wasm.errors import CasMismatch
from proxy_wasm.hostcalls import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcprun_filter.breaker import Transition
    from proxy_wasm.hostcalls import Host

TICK_MILLISECONDS = 1000
MAX_PLANS = 1024
REQUEST_HEADERS = int(MapType.REQUEST_HEADERS)
RESPONSE_HEADERS = int(MapType.RESPONSE_HEADERS)
FLAGS = b"response\0flags"
ADDRESS = b"upstream\0address"
NO_FLAGS = bytes(8)
"""Envoy's response flags of a stream that nothing was wrong with, as the property has them."""
LOOKED_AT_BYTES = 4096
"""How much of a gRPC message is waited for in order to learn the model's name."""
REFUSAL_HEADER = "x-mcprun-refusal"
"""By it a router says that a model is still loading, which is no failure."""

_LEVELS = ("trace", "debug", "info", "warn", "error", "critical")


class Shared:
    """Envoy's shared data, as `Fleets` takes it."""

    def __init__(self, host: Host) -> None:
        self.get = host.get_shared_data

    def set(self, key: bytes, value: bytes, cas: int) -> bool:
        """Whether it was set."""
        try:
            shared_data.set(key, value, cas)
        except CasMismatch:
            return False
        return True


class Plan:
    """What becomes of every request to one path, where rules look at nothing else."""

    __slots__ = ("circuit", "decision", "model")

    def __init__(self, decision: Decision, circuit: Circuit | None, model: bytes) -> None:
        self.decision = decision
        self.circuit = circuit
        """None when it is none of the breakers' business."""
        self.model = model


class Stream(HttpContext["Guard"]):
    """One request, from its headers to its end.

    What every request comes by asks the host itself, in few steps and few functions: with one request at a time the processor's caches
    hold little of the filter, so that what is not run costs most of what is saved.
    """

    _circuit: Circuit | None = None
    """The breakers that it is about; None when it is none of their business."""
    _tag = b""
    """Of the canary; empty when it is none."""
    _tenant: Tenant | None = None
    _generations: Fleet | None = None
    """The breakers as they were when it was sent: outcomes count for those alone."""
    _probe: tuple[bytes, int, int] | None = None
    """Node, token and generation, when it is a probe."""
    _status: int | None = None
    """Of the response, once its headers came."""
    _is_grpc = False
    _waits_for_model = False
    _counted = False
    _refused = False
    _complete = False

    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action | None:
        """Tags it, and steers it once its model is known."""
        root = self.root
        host = root.host
        policy = root.policy
        self._complete = end_of_stream
        asked = host.get_header(REQUEST_HEADERS, b":path") or b""
        client_tag = host.get_header(REQUEST_HEADERS, policy.routing_header)
        plan = root.plans.get(asked)
        if plan is not None and client_tag is None:
            decision = plan.decision
            if decision.tag or decision.rewritten:
                self._apply(headers, decision, None)
            circuit = plan.circuit
            if circuit is None:
                return None
            found = host.get_shared_data(circuit.place)
            if found is not None and found[1] == circuit.cas and circuit.quiet:
                self._circuit = circuit
                self._generations = circuit.seen
                return None
            return self._steer(circuit, plan.model)
        self._is_grpc = is_grpc(headers.get("content-type"))
        tenant = self._tenant = root.tenant(headers) if policy.tenants else policy.default
        decision = tenant.rules.decide(asked, headers.get, tenant=tenant.name.encode(), client_tag=client_tag)
        self._apply(headers, decision, client_tag)
        path = decision.path
        if not is_guarded(path, grpc=self._is_grpc):
            if client_tag is None and not self._is_grpc:
                root.plan(asked, decision, None, UNKNOWN)
            return None
        if self._is_grpc and root.reads_messages and in_message(path) and not end_of_stream:
            self._waits_for_model = True
            return Action.PAUSE
        model = from_path(path)
        circuit = policy.circuit(tenant, model, decision.tag)
        if client_tag is None and not self._is_grpc:
            root.plan(asked, decision, circuit, model)
        return self._steer(circuit, model)

    def on_request_body(self, size: int, end_of_stream: bool) -> Action | None:
        """The first message of a gRPC call names the model."""
        self._complete = end_of_stream
        if not self._waits_for_model:
            return None
        name = from_message(self.request_body.get(0, min(size, LOOKED_AT_BYTES)) or b"")
        if name is NEED_MORE and size < LOOKED_AT_BYTES and not end_of_stream:
            return Action.PAUSE
        self._waits_for_model = False
        assert self._tenant is not None  # noqa: S101  set with the headers
        model = name or UNKNOWN
        return self._steer(self.root.policy.circuit(self._tenant, model, self._tag), model)

    def on_response_headers(self, headers: HeaderMap, end_of_stream: bool) -> None:
        """Tells the client the tag. What is a failure by its status counts at once, before the rest of the answer is sent."""
        root = self.root
        if self._tag:
            headers[root.policy.routing_header] = self._tag
        if self._circuit is None or self._refused:
            return
        code = root.host.get_header(RESPONSE_HEADERS, b":status")
        status = self._status = 200 if code == b"200" else outcomes.http_code(code)
        if status is not None and status >= 500:
            self._ended(status=status, answered=True)
        elif self._probe is not None and not self._is_grpc:
            # A stream of events may go on for long; that it has begun is what its probe was to find out.
            self._ended(status=status, answered=True)

    def on_log(self) -> None:
        """What is known at the end: resets, timeouts, and the status of gRPC in its trailers."""
        circuit, status = self._circuit, self._status
        if circuit is None or self._refused or self._counted:
            return
        host = self.root.host
        flags = host.get_property(FLAGS)
        if flags == NO_FLAGS and status == 200 and self._probe is None and self._generations is circuit.seen:
            # An ordinary success. Where all is as it was at the one before it is counted where that was.
            counts = circuit.again.get(host.get_property(ADDRESS) or b"")
            if counts is not None and (not self._is_grpc or properties.integer("response", "grpc_status") == 0):
                found = host.get_shared_data(circuit.place)
                if found is not None and found[1] == circuit.cas:
                    counts[0] += 1
                    return
        if status is None:
            status = properties.integer("response", "code")
        self._ended(
            status=status,
            grpc_status=properties.integer("response", "grpc_status") if self._is_grpc else None,
            flags=0 if flags is None else int.from_bytes(flags, "little"),
            answered=bool(status) and self._response_started,
        )

    def _apply(self, headers: HeaderMap, decision: Decision, client_tag: bytes | None) -> None:
        header = self.root.policy.routing_header
        self._tag = decision.tag
        if decision.tag:
            if decision.tag != client_tag:
                headers[header] = decision.tag
            # Tags of clients are theirs to choose, and Envoy never forgets a metric.
            meters.TAGS.labels(decision.rule, "*" if decision.rule == CLIENT else decision.tag.decode("latin-1")).increment()
        elif client_tag is not None:
            headers.remove(header)
        if decision.rewritten:
            headers[":path"] = decision.path

    def _steer(self, circuit: Circuit, model: bytes) -> Action | None:
        """Sends it to a node that is well, to one that is to be probed, or back."""
        self._circuit = circuit
        fleet = self._generations = self.root.fleets.view(circuit)
        if fleet is circuit.seen and circuit.quiet:
            return None
        for breaker in fleet.breakers.values():
            if breaker.state != CLOSED:
                return self._avoid(circuit, fleet, model)
        return None

    def _avoid(self, circuit: Circuit, fleet: Fleet, model: bytes) -> Action | None:
        root = self.root
        now = _now()
        choice = fleet.choose(now)
        if choice.panic:
            meters.PANICS.labels(*root.labels(circuit)).increment()
        for node in choice.probing:
            if root.topology.addresses(node) and self._claim(circuit, node, now):
                self._send_to(node)
                return None
        if choice.panic:
            return None
        reachable = [node for node in choice.usable if root.topology.addresses(node)]
        if choice.refused or (choice.total and not choice.usable):
            return self._refuse(circuit, choice, model)
        if reachable:
            self._send_to(*root.topology.turned(reachable))
        return None

    def _claim(self, circuit: Circuit, node: bytes, now: int) -> bool:
        token = self.root.token()
        update = self.root.fleets.update(circuit, lambda fleet: fleet.claim(node, now, token))
        self.root.tell(update.transitions)
        if not update.stored or not isinstance(update.value, int):
            return False
        self._probe = (node, token, update.value)
        meters.PROBES.labels(*self.root.labels(circuit), node.decode("latin-1")).increment()
        return True

    def _send_to(self, *nodes: bytes) -> None:
        topology = self.root.topology
        self.request_headers[self.root.policy.node_header] = b",".join(address for node in nodes for address in topology.addresses(node))

    def _refuse(self, circuit: Circuit, choice: Choice, model: bytes) -> Action:
        root, headers = self.root, self.request_headers
        refusal = refuse(choice, model=model, content_type=headers.get("content-type"), accept=headers.get("accept"))
        self._refused = True
        meters.REFUSALS.labels(*root.labels(circuit)).increment()
        self.send_local_response(
            refusal.status,
            body=refusal.body,
            headers=refusal.headers,
            details=refusal.details.decode(),
            grpc_status=refusal.grpc_status if self._is_grpc else None,
        )
        return Action.PAUSE

    def _ended(self, *, status: int | None, grpc_status: int | None = None, flags: int = 0, answered: bool) -> None:
        """Counts its outcome, once."""
        self._counted = True
        circuit = self._circuit
        assert circuit is not None  # noqa: S101  asked before
        address = self.root.host.get_property(ADDRESS)
        node = self.root.topology.node(address) if address else None
        outcome = outcomes.OK
        if flags or grpc_status or not answered or status is None or status >= 400:
            outcome, _ = outcomes.classify(
                status=status, grpc_status=grpc_status, flags=flags, answered=answered, request_complete=self._complete
            )
        if outcome != outcomes.OK:
            outcome = self._looked_into(outcome, status=status, grpc_status=grpc_status, flags=flags, answered=answered)
        now = _now()
        root = self.root
        if self._probe is not None:
            probed, token, generation = self._probe
            # Envoy may have had to send it elsewhere: then it says nothing of the node.
            verdict = outcomes.verdict(outcome) if node == probed else None
            update = root.fleets.update(circuit, lambda fleet: fleet.finish(probed, now, token, ok=verdict, generation=generation))
            root.tell(update.transitions)
            return
        if node is None or outcome == outcomes.NOTHING or self._generations is None:
            return
        root.count(
            circuit,
            node,
            now,
            ok=outcome != outcomes.FAILED,
            generation=self._generations.generation(node),
            create=outcome != outcomes.ANSWERED,
            address=address,
        )

    def _looked_into(self, outcome: int, *, status: int | None, grpc_status: int | None, flags: int, answered: bool) -> int:
        """The outcome in the light of what is too costly to ask of each request."""
        headers = self.response_headers
        if headers.get(REFUSAL_HEADER) is not None:
            return outcomes.NOTHING
        deadline = outcomes.grpc_timeout(self.request_headers.get("grpc-timeout")) if self._is_grpc else None
        elapsed = _now() * 1e-3 - (properties.integer("request", "time") or 0) * 1e-9
        looked, why = outcomes.classify(
            status=status,
            grpc_status=grpc_status,
            flags=flags,
            elapsed=elapsed,
            deadline=deadline,
            shortest_deadline=self.root.policy.shortest_deadline,
            answered=answered,
            request_complete=self._complete,
            quota=headers.get(outcomes.QUOTA_HEADER) is not None,
        )
        if looked == outcomes.FAILED and self.root.tells("debug"):
            address = properties.text("upstream", "address")
            log.debug(f"failed: {why}, status {status}, gRPC status {grpc_status}, flags {flags:#x}, node {address}")
        return looked


class StatusStream(HttpContext["Guard"]):
    """A request at the listener for those who operate the mesh."""

    def on_request_headers(self, headers: HeaderMap, end_of_stream: bool) -> Action:
        """Answers with the state of every breaker."""
        root = self.root
        body = json.dumps(report(root.policy, root.fleets, _now()))
        self.send_local_response(200, body=body, headers=[("content-type", "application/json")], details="status")
        return Action.PAUSE


class Guard(RootContext):
    """The filter in one worker, with one configuration."""

    http_context: type[HttpContext[Guard]] | None = Stream

    policy: Policy
    fleets: Fleets
    tally: Tally
    topology: Topology
    host: Host
    reads_messages = False
    """Whether Envoy gives the body to a callback that has kept the headers back (`allow_on_headers_stop_iteration`): only then can a
    gRPC call wait for the name of its model."""
    _role = "guard"
    _token = 0

    def on_configure(self, configuration: bytes) -> bool:
        """Takes the policy. Raises ValueError when it is wrong; Envoy then keeps the one before.

        `configuration` is an object with `policy`, `role` (guard, or status for the listener that tells the state) and `reads_messages`.
        """
        told = json.loads(configuration) if configuration.strip() else {}
        if not isinstance(told, dict):
            raise ValueError(f"configuration: expected an object, got {type(told).__name__}")
        self.policy = Policy.load(json.dumps(told.get("policy", {})).encode())
        self._role = told.get("role", "guard")
        if self._role != "guard":
            self.http_context = StatusStream
        self.host = host()
        self.reads_messages = bool(told.get("reads_messages", False))
        self.fleets = Fleets(Shared(self.host), max_fleets=self.policy.max_fleets)
        self.tally = Tally(self.fleets)
        self.topology = Topology(self.policy)
        self.plans: dict[bytes, Plan] = {}
        """By paths as clients write them."""
        self._circuits: dict[bytes, Circuit] = {}
        self._known: set[tuple[bytes, bytes]] = set()
        self._unknown: dict[tuple[bytes, bytes], Circuit] = {}
        self._token = int.from_bytes(os.urandom(8), "little")
        if self._role == "guard":
            self.set_tick_period(TICK_MILLISECONDS)
        return True

    def on_tick(self) -> None:
        """Writes what was counted, and notes the time where nodes are isolated."""
        now = _now()
        for circuit in list(self._circuits.values()):
            fleet = self.fleets.view(circuit)
            if any(breaker.state != CLOSED for breaker in fleet.breakers.values()):
                self.tell(self.fleets.update(circuit, lambda fleet: fleet.touch(now)).transitions)
        self.tell(self.tally.flush(now))
        unknown, self._unknown = self._unknown, {}
        for (_, node), circuit in unknown.items():
            self._know(circuit, node)
        self._tell_withheld()

    def tenant(self, headers: HeaderMap) -> Tenant:
        """Whose a request is."""
        policy = self.policy
        identity = properties.get("connection", "uri_san_peer_certificate") if policy.identities else None
        return policy.tenant(header=headers.get(policy.tenant_header), identity=identity)

    def token(self) -> int:
        """A number for a probe that no other worker draws."""
        self._token = (self._token + 1) & 0xFFFF_FFFF_FFFF_FFFF
        return self._token

    def count(self, circuit: Circuit, node: bytes, now: int, *, ok: bool, generation: int, create: bool, address: bytes | None) -> None:
        """Counts an outcome of a request that was no probe."""
        transitions = self.tally.report(circuit, node, now, ok=ok, generation=generation, create=create, address=address)
        if transitions:
            self.tell(transitions)
        if not ok:
            self._tell_withheld()
        if create and (circuit.key, node) not in self._known:
            self._know(circuit, node)

    def plan(self, path: bytes, decision: Decision, circuit: Circuit | None, model: bytes) -> None:
        """Notes what becomes of requests to a path that are not gRPC, where that depends on nothing else."""
        if self.policy.tenants or not self.policy.default.rules.by_path or not decision.path.startswith((b"/v1/", b"/v2/")):
            return
        if len(self.plans) >= MAX_PLANS:
            self.plans.clear()
        self.plans[path] = Plan(decision, circuit, model)

    def tells(self, level: str) -> bool:
        """Whether the policy wants lines of that level."""
        return _LEVELS.index(level) >= _LEVELS.index(self.policy.log_level)

    def labels(self, circuit: Circuit) -> tuple[str, str, str]:
        """What metrics call the breakers: clients choose the names of models, so only those that have a record are told apart."""
        return fleet_name(self.fleets.stored_key(circuit) or OVERFLOW)

    def tell(self, transitions: list[Transition]) -> None:
        """Logs and counts changes of states."""
        for transition in transitions:
            meters.tell_transition(transition)
            tenant, model, side = fleet_name(transition.key)
            what = f"isolated for {transition.length / 1000:g} s" if transition.length else _SHOWN[transition.after]
            line = f"node {transition.node.decode('latin-1')} is {what}: {transition.text}"
            line = f"{line} (model {model or '-'}, tenant {tenant}, side {side or '-'})"
            if transition.length and self.tells("warn"):
                log.warn(line)
            elif not transition.length and self.tells("info"):
                log.info(line)

    def _know(self, circuit: Circuit, node: bytes) -> None:
        """Shows a node's state once there is a record of it, which may be at the next tick only."""
        key = self.fleets.stored_key(circuit)
        if len(self._known) + len(self._unknown) > 64 * self.policy.max_fleets:
            self._known.clear()
            self._unknown.clear()
        if key is None:
            self._unknown[circuit.key, node] = circuit
            return
        self._known.add((circuit.key, node))
        self._circuits[key] = circuit
        breaker = self.fleets.view(circuit).breakers.get(node)
        meters.tell_state(key, node, CLOSED if breaker is None else breaker.state)

    def _tell_withheld(self) -> None:
        if self.tally.withheld:
            meters.WITHHELD.increment(self.tally.withheld)
            self.tally.withheld = 0


_SHOWN = ("back", "isolated", "probed")


def _now() -> int:
    """Milliseconds since the epoch."""
    return now_nanoseconds() // 1_000_000


register(Guard)
