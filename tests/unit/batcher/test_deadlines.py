"""Deadlines can be taken back, and what was taken back costs no memory for long."""

from hypothesis import given
from hypothesis import strategies as st

from mcprun_batcher.deadlines import Deadlines


def test_the_due_ones_come_out_in_order_and_once() -> None:
    deadlines = Deadlines()
    deadlines.add(1, 3.0)
    deadlines.add(2, 1.0)
    deadlines.add(3, 2.0)
    assert deadlines.next() == 1.0
    assert deadlines.due(2.0) == [2, 3]
    assert deadlines.due(2.0) == []
    assert deadlines.next() == 3.0


def test_a_million_far_deadlines_that_are_taken_back_are_forgotten() -> None:
    deadlines = Deadlines()
    for key in range(100_000):
        deadlines.add(key, 1e9)
        deadlines.discard(key)
        if key % 10_000 == 0:
            deadlines.check_integrity()
    assert len(deadlines) == 0
    assert deadlines.next() is None
    deadlines.check_integrity()


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "due"]), st.integers(0, 20), st.integers(0, 50))))
def test_it_behaves_like_a_dictionary_that_is_searched(steps: list[tuple[str, int, int]]) -> None:
    deadlines, model = Deadlines(), dict[int, int]()
    for step, key, time in steps:
        if step == "add" and key not in model:
            deadlines.add(key, time)
            model[key] = time
        elif step == "discard":
            deadlines.discard(key)
            model.pop(key, None)
        elif step == "due":
            expected = sorted((when, key) for key, when in model.items() if when <= time)
            assert deadlines.due(time) == [key for _, key in expected]
            for _, due in expected:
                del model[due]
        deadlines.check_integrity()
        assert deadlines.next() == (min(model.values()) if model else None)
