"""The tests of the examples, with what was built of them."""

from unit.wasm_sdk.test_examples import *  # noqa: F403
