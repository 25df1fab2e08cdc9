"""The tests of the examples, with what was built of them."""

import pytest
from unit.wasm_sdk.test_examples import *  # noqa: F403

pytestmark = pytest.mark.heavy
