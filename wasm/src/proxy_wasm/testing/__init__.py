"""Test filters: in process by `Simulation`, as a built module in it, or in a real Envoy by `EnvoyFilter`, with the same tests."""

from proxy_wasm.testing.calls import SimulatedCall, SimulatedGrpcCall, SimulatedHttpCall
from proxy_wasm.testing.envoy import EnvoyFailed, EnvoyFilter
from proxy_wasm.testing.exchange import (
    ConfigurationRefused,
    Exchange,
    FilterUnderTest,
    LogLine,
    Message,
    OnlyInProcess,
    OnlySimulated,
    OutgoingCall,
    RuleBroken,
    Trapped,
)
from proxy_wasm.testing.machine import WasmInstance, WasmModule
from proxy_wasm.testing.simulation import Simulation
from proxy_wasm.testing.streams import SimulatedStream
from proxy_wasm.testing.worker import Worker

__all__ = [
    "ConfigurationRefused",
    "EnvoyFailed",
    "EnvoyFilter",
    "Exchange",
    "FilterUnderTest",
    "LogLine",
    "Message",
    "OnlyInProcess",
    "OnlySimulated",
    "OutgoingCall",
    "RuleBroken",
    "SimulatedCall",
    "SimulatedGrpcCall",
    "SimulatedHttpCall",
    "SimulatedStream",
    "Simulation",
    "Trapped",
    "WasmInstance",
    "WasmModule",
    "Worker",
]
