"""Parts of the examples that only their own classes show."""

from collections.abc import Callable
from types import ModuleType

from proxy_wasm import ErrorPolicy

Load = Callable[[str], ModuleType]


def test_the_api_key_filter_refuses_when_its_own_code_fails(example: Load) -> None:
    assert example("api_key").ApiKeyStream.on_error is ErrorPolicy.REFUSE


def test_brackets_in_strings_do_not_hide_how_deep_a_body_is(example: Load) -> None:
    nesting = example("body_rewrite").nesting
    assert nesting(b'["]",' * 300 + b"1" + b"]" * 300) == 300
    assert nesting(rb'["\"[[[[", {"a[": []}]') == 3
