"""Routers that are made up and real edges in front of them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .fake_router import FakeRouter
from .faulty_router import FaultyRouter
from .running_edge import Caller, Edge


@pytest.fixture(scope="session")
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mcprun-edge-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder(sockets: Path) -> Path:
    """A folder in it for one test."""
    return Path(tempfile.mkdtemp(dir=sockets))


@pytest.fixture(scope="session")
def router(sockets: Path) -> Iterator[FakeRouter]:
    """A router that does what it should."""
    router = FakeRouter(sockets)
    router.start()
    yield router
    router.close()


@pytest.fixture(scope="session")
def shared_edge(sockets: Path, router: FakeRouter) -> Iterator[Edge]:
    """The edge in front of `router`."""
    edge = Edge(sockets, router_http=f"unix:{router.http_path}", router_grpc=f"unix:{router.grpc_path}")
    yield edge
    assert edge.stop() == 0


@pytest.fixture
def edge(shared_edge: Edge, router: FakeRouter) -> Iterator[Edge]:
    """The same, which must have lived through the test and serve after it."""
    pid = shared_edge.envoy.pid
    yield shared_edge
    assert shared_edge.envoy.pid == pid
    with shared_edge.channel() as channel:
        assert Caller(channel).unary("Echo")(b"alive", timeout=5) == b"alive"


@pytest.fixture
def caller(edge: Edge) -> Iterator[Caller]:
    """A gRPC client of it."""
    with edge.channel() as channel:
        yield Caller(channel)


@pytest.fixture(scope="session")
def faulty_router(sockets: Path) -> Iterator[FaultyRouter]:
    """A router that breaks the rules."""
    router = FaultyRouter(sockets)
    yield router
    router.close()


@pytest.fixture(scope="session")
def shared_faulty_edge(tmp_path_factory: pytest.TempPathFactory, sockets: Path, faulty_router: FaultyRouter) -> Iterator[Edge]:
    """The edge in front of `faulty_router`; nothing listens at the router's gRPC address."""
    folder = Path(tempfile.mkdtemp(dir=sockets))
    edge = Edge(folder, router_http=f"unix:{faulty_router.http_path}", router_grpc=f"unix:{folder}/nothing.sock")
    yield edge
    assert edge.stop() == 0


@pytest.fixture
def faulty_edge(shared_faulty_edge: Edge) -> Iterator[Edge]:
    """The same, which must have lived through the test and serve after it."""
    pid = shared_faulty_edge.envoy.pid
    yield shared_faulty_edge
    assert shared_faulty_edge.envoy.pid == pid
    with shared_faulty_edge.channel() as channel:
        assert Caller(channel).unary("Ok")(b"x", timeout=5) == b"ok"
