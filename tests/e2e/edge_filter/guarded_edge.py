"""An edge with its filter, and the questions that tests ask of it."""

import concurrent.futures
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
from e2e.edge.running_edge import Caller, Edge

from mcprun.edge.breakers import NodeBreaker, ask
from mcprun.edge.delivery import DeliveryState, Wanted, outcome
from mcprun.protocol.inference import grpc_service_pb2 as oip

from .replica import Replica

QUICK: dict[str, Any] = {
    "environment": "prod",
    "breaker": {
        "isolation_seconds": 1.0,
        "probes": 2,
        "probe_successes": 2,
        "probe_lease_seconds": 2.0,
        "max_isolated_ratio": 1.0,
        "panic_ratio": 0.0,
    },
    "tenants": {
        "own": {"breaker": {"consecutive_failures": 1}},
        "trusted": {"trust_client_routing": True},
    },
}
"""A policy whose isolations are short."""


class GuardedEdge:
    """The edge process with `replicas` behind it."""

    def __init__(
        self, folder: Path, replicas: Sequence[Replica], *, arguments: Sequence[str] = (), policy: dict[str, Any] | None = None
    ) -> None:
        self.replicas = list(replicas)
        self.folder = folder
        self._policy = policy or QUICK
        path = folder / "policy.yaml"
        path.write_text(json.dumps(self._policy))
        self.process = Edge(
            folder,
            router_http=",".join(f"127.0.0.1:{replica.http_port}" for replica in replicas),
            router_grpc=",".join(f"127.0.0.1:{replica.grpc_port}" for replica in replicas),
            arguments=("--policy", str(path), "--concurrency", "2", "--environment", "prod", *arguments),
            wasm=True,
        )
        self.wanted = Wanted(self.process.filter_folder)
        self._changed = False

    @property
    def url(self) -> str:
        """Where HTTP clients reach it."""
        return self.process.url

    def close(self) -> None:
        """Ends it; it must end well."""
        assert self.process.stop() == 0

    # Calls

    def infer(
        self, model: str, *, client: httpx.Client | None = None, headers: dict[str, str] | None = None, prefix: str = ""
    ) -> httpx.Response:
        """One REST inference, over a connection of its own unless a client is given."""
        send = client.post if client is not None else httpx.post
        return send(f"{self.url}{prefix}/v2/models/{model}/infer", content=b"{}", headers=headers, timeout=10)

    def many(self, model: str, count: int, *, threads: int = 8, headers: dict[str, str] | None = None) -> list[httpx.Response]:
        """So many inferences over several connections, and so through both worker threads."""

        def some(number: int) -> list[httpx.Response]:
            with httpx.Client(timeout=10) as client:
                return [self.infer(model, client=client, headers=headers) for _ in range(number)]

        shares = [count // threads + (index < count % threads) for index in range(threads)]
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return [answer for answers in pool.map(some, shares) for answer in answers]

    def call(self, model: str, *, seconds: float = 10.0, metadata: Sequence[tuple[str, str]] = ()) -> tuple[str, dict[str, str]]:
        """One unary gRPC inference: the name of its code, and its trailing metadata."""
        message = oip.ModelInferRequest(model_name=model).SerializeToString()
        with self.process.channel() as channel:
            call = Caller(channel).unary("ModelInfer")
            try:
                answer, done = call.with_call(message, timeout=seconds, metadata=tuple(metadata))
            except grpc.RpcError as error:
                trailers = {str(key): str(value) for key, value in error.trailing_metadata() or ()}  # type: ignore[attr-defined, has-type]
                return error.code().name, {**trailers, "message": error.details() or ""}  # type: ignore[attr-defined, has-type]
            assert answer == message
            return "OK", {str(key): str(value) for key, value in (*done.initial_metadata(), *done.trailing_metadata())}

    def stream(self, model: str, *, messages: int = 1) -> str:
        """One streamed gRPC inference: the name of its code."""
        message = oip.ModelInferRequest(model_name=model).SerializeToString()
        with self.process.channel() as channel:
            try:
                assert list(Caller(channel).stream("ModelStreamInfer")(iter([message] * messages), timeout=10)) == [message] * messages
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined, has-type]
        return "OK"

    # State

    def breakers(self, model: str, *, tenant: str = "default", side: str = "") -> dict[str, NodeBreaker]:
        """The breakers of a model, by node."""
        for fleet in ask(f"unix:{self.process.status_path}").fleets:
            if (fleet.tenant, fleet.model, fleet.side) == (tenant, model, side):
                return {node.node: node for node in fleet.nodes}
        return {}

    def state(self, model: str, node: str, *, tenant: str = "default", side: str = "") -> str:
        """The state of one breaker."""
        found = self.breakers(model, tenant=tenant, side=side).get(node)
        return found.state if found else "closed"

    def wait_for(self, model: str, node: str, state: str, *, seconds: float = 10.0) -> None:
        """Returns once a breaker is in a state."""
        end = time.monotonic() + seconds
        while self.state(model, node) != state:
            assert time.monotonic() < end, f"{node} is {self.state(model, node)} and not {state}: {self.breakers(model)}"
            time.sleep(0.01)

    def metrics(self) -> dict[str, float]:
        """The filter's series, as Prometheus scrapes them."""
        with self.process.admin as admin:
            text = admin.get("/stats/prometheus").text
        lines = [line for line in text.splitlines() if line.startswith(("mcprun_edge_", "proxy_wasm_"))]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    # Policy and module

    def apply(self, policy: dict[str, Any] | None = None, *, module: Path | None = None) -> DeliveryState:
        """Gives it a policy or a module, and waits for what comes of it."""
        path = None
        if policy is not None:
            path = self.folder / "next-policy.yaml"
            path.write_text(json.dumps(policy))
        self._changed = True
        return outcome(self.process.filter_folder, self.wanted.ask(policy=path, module=module), timeout=60)

    def reset_policy(self) -> None:
        """Goes back to what it was started with, if a test changed it."""
        if self._changed:
            assert outcome(self.process.filter_folder, self.wanted.take_back(), timeout=60).outcome == "applied"
            self._changed = False
