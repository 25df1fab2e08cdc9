"""Three replicas of a router behind one edge with its filter, of two worker threads."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .guarded_edge import GuardedEdge
from .replica import Behaviour, Replica


@pytest.fixture(scope="session")
def replicas() -> Iterator[list[Replica]]:
    """The replicas, in the order of their nodes' names router-1, router-2, router-3."""
    made = [Replica(f"router-{number}") for number in (1, 2, 3)]
    yield made
    for replica in made:
        replica.close()


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mcprun-filter-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_edge(folder: Path, replicas: list[Replica]) -> Iterator[GuardedEdge]:
    """The edge, for all tests of a run: its filter takes seconds to load."""
    edge = GuardedEdge(folder, replicas)
    yield edge
    edge.close()


@pytest.fixture
def edge(shared_edge: GuardedEdge, replicas: list[Replica]) -> Iterator[GuardedEdge]:
    """The same, with the test's own policy set back and all replicas well; it must live through the test."""
    for replica in replicas:
        replica.behaviour = Behaviour()
        replica.requests.clear()
        replica.grpc_calls = 0
    pid = shared_edge.process.envoy.pid
    yield shared_edge
    assert shared_edge.process.envoy.pid == pid
    for replica in replicas:
        replica.behaviour = Behaviour()
    shared_edge.reset_policy()


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    """A model that no other test speaks of, and so breakers that no other test has touched."""
    return f"{request.node.name.replace('[', '.').replace(']', '')[-80:].lstrip('_.-')}.{time.monotonic_ns() % 10**6}"
