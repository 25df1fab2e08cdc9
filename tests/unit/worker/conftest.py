"""A batcher for workers to attach to."""

from collections.abc import AsyncIterator

import pytest

from .gateway import Gateway


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    await gateway.start()
    yield gateway
    await gateway.stop()
