"""Reading one JSON object field by field: right values, defaults, and errors that say where, what was expected and what came."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprun_filter.fields import MAX_DEPTH, Fields, fail, is_plain, load

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
READERS: dict[str, Callable[[Fields], Any]] = {
    "integer": lambda fields: fields.integer("f", 5, 1, 9),
    "number": lambda fields: fields.number("f", 0.5, 0.0, 1.0),
    "boolean": lambda fields: fields.boolean("f", True),
    "text": lambda fields: fields.text("f", "some", 1, 5),
    "one_of": lambda fields: fields.one_of("f", "a", ("a", "b")),
    "header": lambda fields: fields.header("f", b"x-a"),
    "object": lambda fields: fields.object("f").values,
    "objects": lambda fields: [one.values for one in fields.objects("f", 2)],
    "texts": lambda fields: fields.texts("f", 2),
}
GOOD: list[tuple[str, Any, Any]] = [
    *(("integer", value, value) for value in (1, 9)),
    ("integer", 3.0, 3),
    *(("number", value, float(value)) for value in (0, 1, 0.25)),
    *(("boolean", value, value) for value in (True, False)),
    *(("text", value, value) for value in ("a", "ü€ 🙂", "12345")),
    ("one_of", "b", "b"),
    ("header", "X-Tenant", b"x-tenant"),
    ("header", "h" * 128, b"h" * 128),
    *(("object", value, value) for value in ({}, {"a": 1})),
    *(("objects", value, value) for value in ([], [{"a": 1}, {}])),
    *(("texts", value, value) for value in ([], ["a", "b" * 255])),
]
BAD: list[tuple[str, Any, str, str]] = [
    *(("integer", value, "f", "a whole number from 1 to 9") for value in (0, 10, 1.5, True, "3", [], {}, 2**80, float("inf"))),
    *(("number", value, "f", "a number from 0 to 1") for value in (-0.01, 1.01, True, "0.5", [0.5])),
    *(("boolean", value, "f", "true or false") for value in (0, 1, "true", [])),
    *(("text", value, "f", "text of 1 to 5 plain characters") for value in ("", "123456", "a\n", "\x7f", "\0", "\ud800", 5, ["a"])),
    *(("one_of", value, "f", "one of a, b") for value in ("c", "", "A", 1, [], {"a": 1})),
    *(("header", value, "f", "a header's name") for value in ("", "h" * 129, "a b", "a:", ":path", "ü", "\u212a", "a\n", 5)),
    *(("object", value, "f", "an object") for value in ([], "a", 5, True)),
    *(("objects", value, "f", "a list") for value in ({}, "a", 5)),
    ("objects", [{}, {}, {}], "f", "at most 2 entries"),
    ("objects", [{}, 5], "f[1]", "an object"),
    *(("texts", value, "f", "a list of at most 2 texts") for value in ("a", {}, ["a", "b", "c"])),
    *(("texts", ["a", value], "f[1]", "text of 1 to 255 plain characters") for value in ("", "b" * 256, "\n", 5, None)),
]


@pytest.mark.parametrize(("reader", "value", "expected"), GOOD)
def test_a_good_value_is_read(reader: str, value: Any, expected: Any) -> None:
    fields = Fields({"f": value}, "")
    found = READERS[reader](fields)
    assert (found, type(found)) == (expected, type(expected))
    fields.done()


@pytest.mark.parametrize(("reader", "value", "where", "expected"), BAD)
def test_a_bad_value_is_told(reader: str, value: Any, where: str, expected: str) -> None:
    with pytest.raises(ValueError, match="expected") as raised:
        READERS[reader](Fields({"f": value}, ""))
    assert str(raised.value).startswith(f"{where}: expected {expected}, got ")
    with pytest.raises(ValueError, match="expected") as raised:
        READERS[reader](Fields({"f": value}, "above[3]"))
    assert str(raised.value).startswith(f"above[3].{where}: expected ")


@pytest.mark.parametrize("reader", READERS)
@given(value=VALUES)
def test_any_value_is_read_or_told(reader: str, value: Any) -> None:
    fields = Fields({"f": value}, "")
    try:
        READERS[reader](fields)
    except ValueError as error:
        assert type(error) is ValueError
        assert str(error).startswith("f")
        assert len(str(error)) < 400
    fields.done()


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_there_or_null_is_the_default(reader: str) -> None:
    absent, null = READERS[reader](Fields({}, "")), READERS[reader](Fields({"f": None}, ""))
    assert absent == null
    assert not Fields({"f": None}, "").has("f")


@pytest.mark.parametrize("read", [lambda f: f.number("f", None, 0, 1), lambda f: f.text("f", None, 0, 9), lambda f: f.header("f", None)])
def test_what_has_no_default_must_be_there(read: Callable[[Fields], Any]) -> None:
    for values in ({}, {"f": None}):
        with pytest.raises(ValueError, match=r"^f: expected .*, got null$"):
            read(Fields(dict(values), ""))


def test_what_nobody_read_is_told_with_what_there_is() -> None:
    fields = Fields({"b": 1, "other": 2}, "above")
    fields.integer("b", 0, 0, 9)
    fields.boolean("a", True)
    with pytest.raises(ValueError, match=r"^above\.other: expected no such field \(there are a, b\), got 2$"):
        fields.done()


@given(st.text(max_size=400), VALUES)
@example("tenants.a\nb\x7f\ud800", "\x7f\n")
def test_an_error_is_one_short_line(path: str, came: object) -> None:
    with pytest.raises(ValueError, match="expected") as raised:
        fail(path, "something", came)
    assert len(str(raised.value)) < 320
    assert str(raised.value).isascii()
    assert str(raised.value).isprintable()


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_json_is_loaded_as_it_was_written(values: dict[str, Any]) -> None:
    raw = json.dumps(values).encode()
    try:
        assert load(raw) == values
    except ValueError as error:
        # Not everything that Python writes is JSON, and some numbers are too long.
        assert any(told in str(error) for told in ("finite numbers", "20 digits"))


def test_depth_counts_outside_of_text_alone() -> None:
    assert load(b'{"a": "' + b"[" * 100 + b'"}') == {"a": "[" * 100}
    assert load(b'{"a": "\\"' + b"{" * 100 + b'"}') == {"a": '"' + "{" * 100}
    deep = b'{"a":' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1)
    assert load(deep)
    with pytest.raises(ValueError, match=f"at most {MAX_DEPTH} levels"):
        load(b'{"a":' + deep + b"}")


@given(st.text())
def test_plain_text_can_be_encoded_and_has_no_controls(text: str) -> None:
    if is_plain(text):
        text.encode()
        assert not any(ord(character) < 32 or ord(character) == 127 for character in text)
