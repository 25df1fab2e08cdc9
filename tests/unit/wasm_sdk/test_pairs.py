"""Encoded header maps."""

from hypothesis import example, given
from hypothesis import strategies as st

from proxy_wasm import pairs

PAIRS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=12)


@given(PAIRS)
def test_what_is_encoded_decodes_to_the_same(items: list[tuple[bytes, bytes]]) -> None:
    assert pairs.decode(pairs.encode(items)) == items


def test_the_layout_is_that_of_the_abi() -> None:
    assert pairs.encode([(b"a", b"bc")]) == b"\1\0\0\0" + b"\1\0\0\0\2\0\0\0" + b"a\0bc\0"
    assert pairs.encode([]) == b"\0\0\0\0"


@given(PAIRS, st.data())
def test_input_that_is_cut_off_gives_the_pairs_that_are_whole(items: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    encoded = pairs.encode(items)
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    # Lengths come first: once they are cut off, the names and values are too.
    found = pairs.decode(cut)
    assert found == items[: len(found)]


@given(st.binary(max_size=200))
@example(b"\xff\xff\xff\xff")
@example(b"\1\0\0\0\xff\xff\xff\xff\xff\xff\xff\xffabc")
def test_no_bytes_raise(encoded: bytes) -> None:
    for name, value in pairs.decode(encoded):
        assert len(name) + len(value) <= len(encoded)
