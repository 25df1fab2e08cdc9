"""Test filters: in process by `Simulation`, or built and in a real Envoy by `EnvoyFilter`, with the same tests."""

from proxy_wasm.testing.calls import SimulatedCall, SimulatedGrpcCall, SimulatedHttpCall
from proxy_wasm.testing.exchange import (
    ConfigurationRefused,
    Exchange,
    FilterUnderTest,
    LogLine,
    Message,
    OnlySimulated,
    OutgoingCall,
    RuleBroken,
)
from proxy_wasm.testing.simulation import Simulation
from proxy_wasm.testing.streams import SimulatedStream
from proxy_wasm.testing.worker import Worker

__all__ = [
    "ConfigurationRefused",
    "Exchange",
    "FilterUnderTest",
    "LogLine",
    "Message",
    "OnlySimulated",
    "OutgoingCall",
    "RuleBroken",
    "SimulatedCall",
    "SimulatedGrpcCall",
    "SimulatedHttpCall",
    "SimulatedStream",
    "Simulation",
    "Worker",
]
