"""The breakers of a fleet: when nodes are isolated, for how long, and how they come back. All times are simulated."""

import pytest

from mcprun_filter.breaker import (
    CLOSED,
    CONSECUTIVE,
    HALF_OPEN,
    LAPSED,
    OPEN,
    PROBE_FAILED,
    PROBES_LOST,
    RATIO,
    RECOVERED,
    Thresholds,
)
from mcprun_filter.fleet import MAX_NODES, Fleet

T0 = 1_790_000_000_000
A, B, C, D = b"router-a", b"router-b", b"router-c", b"router-d"


def fleet(*nodes: bytes, **thresholds: float) -> Fleet:
    return Fleet(Thresholds(**thresholds), nodes or (A, B, C))  # type: ignore[arg-type]


def state(of: Fleet, node: bytes) -> int:
    breaker = of.breakers.get(node)
    return CLOSED if breaker is None else breaker.state


def fail(of: Fleet, node: bytes, now: int, times: int) -> None:
    for _ in range(times):
        of.record(node, now, failed=1, generation=of.generation(node))


def isolate(of: Fleet, node: bytes, now: int) -> None:
    fail(of, node, now, of.thresholds.consecutive_failures + 1)
    assert state(of, node) == OPEN


def recover(of: Fleet, node: bytes, now: int) -> None:
    for token in range(of.thresholds.probe_successes):
        generation = of.claim(node, now, token)
        assert generation is not None
        assert of.finish(node, now, token, ok=True, generation=generation)
    assert state(of, node) == CLOSED


def mixed(of: Fleet, node: bytes, now: int, *, failed: int, total: int) -> None:
    """Spreads the failures so that no two follow each other; the last outcome is a success."""
    for index in range(failed):
        of.record(node, now, failed=1, generation=0)
        of.record(node, now, ok=1 if index < failed - 1 else total - 2 * failed + 1, generation=0)


# When it opens


def test_the_sixth_failure_in_a_row_opens_and_the_fifth_does_not() -> None:
    them = fleet()
    fail(them, A, T0, 5)
    assert state(them, A) == CLOSED
    fail(them, A, T0, 1)
    assert state(them, A) == OPEN
    (transition,) = them.transitions
    assert (transition.node, transition.before, transition.after, transition.reason) == (A, CLOSED, OPEN, CONSECUTIVE)
    assert (transition.text, transition.length, transition.generation) == ("6 failures in a row", 30_000, 1)


def test_a_lone_node_is_isolated_for_less_since_nobody_else_can_take_its_requests() -> None:
    for nodes, lengths in (([A], [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]), ([A, B], [30_000, 60_000, 120_000])):
        them = Fleet(Thresholds(lone_isolation_seconds=1), nodes)
        now = T0
        fail(them, A, now, 6)
        for length in lengths:
            assert them.transitions[-1].length == length
            now += length
            generation = them.claim(A, now, 1)
            assert generation is not None
            them.finish(A, now, 1, ok=False, generation=generation)


def test_a_success_ends_a_row_of_failures() -> None:
    them = fleet()
    fail(them, A, T0, 5)
    them.record(A, T0, ok=1, generation=0)
    fail(them, A, T0, 5)
    assert state(them, A) == CLOSED


def test_tallied_successes_belong_to_the_window_and_end_no_row_of_failures() -> None:
    them = fleet()
    fail(them, A, T0, 5)
    them.record(A, T0, tallied=100, generation=0)
    assert them.breakers[A].totals(T0, them.thresholds) == (100, 5)
    fail(them, A, T0, 1)
    assert state(them, A) == OPEN


def test_sixteen_of_a_hundred_open_and_fifteen_do_not() -> None:
    for failed, expected in ((15, CLOSED), (16, OPEN)):
        them = fleet(min_requests=100)
        mixed(them, A, T0, failed=failed, total=100)
        assert state(them, A) == expected
    assert them.transitions[0].reason == RATIO
    assert them.transitions[0].text == "16 of 100 requests in the window failed"


@pytest.mark.parametrize("total", range(20, 2000, 20))
def test_the_bound_itself_never_opens_whatever_the_rounding(total: int) -> None:
    for ratio in (0.15, 0.35, 0.8):
        them = fleet(max_error_ratio=ratio, min_requests=total, consecutive_failures=10_000)
        failed = round(total * ratio)
        them.record(A, T0, ok=total - failed, failed=failed, generation=0)
        assert state(them, A) == CLOSED
        them = fleet(max_error_ratio=ratio, min_requests=total, consecutive_failures=10_000)
        them.record(A, T0, ok=total - failed - 1, failed=failed + 1, generation=0)
        assert state(them, A) == OPEN


def test_below_the_minimum_volume_no_ratio_opens() -> None:
    them = fleet()
    mixed(them, A, T0, failed=5, total=19)
    assert state(them, A) == CLOSED
    them.record(A, T0, ok=1, generation=0)
    assert state(them, A) == OPEN  # 5 of 20 is 25 %


def test_failures_leave_the_window_after_its_seconds() -> None:
    them = fleet()
    mixed(them, A, T0, failed=5, total=15)
    them.record(A, T0 + 9_000, ok=4, generation=0)
    assert them.breakers[A].totals(T0 + 9_000, them.thresholds) == (14, 5)
    them.record(A, T0 + 10_000, ok=20, generation=0)
    assert them.breakers[A].totals(T0 + 10_000, them.thresholds) == (24, 0)
    assert state(them, A) == CLOSED


def test_a_node_is_hot_while_a_failure_is_in_its_window_or_in_a_row() -> None:
    them = fleet()
    them.record(A, T0, ok=50, generation=0)
    assert not them.hot(A, T0)
    them.record(A, T0, failed=1, generation=0)
    assert them.hot(A, T0)
    them.record(A, T0, ok=1, generation=0)
    assert them.hot(A, T0 + 9_000)
    assert not them.hot(A, T0 + 10_000)
    assert not them.hot(B, T0)


# For how long


def test_isolation_doubles_with_each_repetition_up_to_its_bound() -> None:
    them = fleet()
    now = T0
    lengths = []
    for _ in range(7):
        isolate(them, A, now)
        lengths.append(them.breakers[A].length // 1000)
        assert not them.choose(now + them.breakers[A].length - 1).probing
        now += them.breakers[A].length
        assert them.choose(now).probing == (A,)
        recover(them, A, now)
    assert lengths == [30, 60, 120, 240, 300, 300, 300]


def test_isolation_shrinks_by_one_repetition_for_each_healthy_isolation_period() -> None:
    for healthy_seconds, expected in ((0, 240), (29, 240), (30, 120), (60, 60), (90, 30), (1000, 30)):
        them = fleet()
        now = T0
        for _ in range(3):
            isolate(them, A, now)
            now += them.breakers[A].length
            recover(them, A, now)
        now += healthy_seconds * 1000
        isolate(them, A, now)
        assert them.breakers[A].length == expected * 1000


def test_a_lower_bound_holds_for_isolations_that_began_before() -> None:
    them = fleet(isolation_seconds=3000, max_isolation_seconds=3000)
    isolate(them, A, T0)
    them.thresholds = Thresholds(max_isolation_seconds=60)
    assert them.claim(A, T0 + 59_999, 1) is None
    assert them.claim(A, T0 + 60_000, 1) == 1


# How it comes back


def test_probes_at_once_are_bounded_and_three_successes_close() -> None:
    them = fleet()
    isolate(them, A, T0)
    now = T0 + 30_000
    assert [them.claim(A, now, token) for token in range(4)] == [1, 1, 1, None]
    assert them.choose(now).probing == ()
    assert them.finish(A, now, 0, ok=True, generation=1)
    assert them.claim(A, now, 3) == 1
    assert them.finish(A, now, 1, ok=True, generation=1)
    assert state(them, A) == HALF_OPEN
    assert them.finish(A, now, 2, ok=True, generation=1)
    assert state(them, A) == CLOSED
    assert [(t.before, t.after, t.reason) for t in them.transitions[1:]] == [(OPEN, HALF_OPEN, LAPSED), (HALF_OPEN, CLOSED, RECOVERED)]
    assert them.choose(now).usable == (A, B, C)


def test_one_failed_probe_isolates_again_for_twice_as_long() -> None:
    them = fleet()
    isolate(them, A, T0)
    now = T0 + 30_000
    for token in range(3):
        them.claim(A, now, token)
    assert them.finish(A, now, 0, ok=True, generation=1)
    assert them.finish(A, now, 1, ok=False, generation=1)
    assert state(them, A) == OPEN
    assert them.transitions[-1].reason == PROBE_FAILED
    assert them.transitions[-1].text == "a probe failed after 1 that succeeded"
    assert them.breakers[A].length == 60_000
    assert not them.finish(A, now, 2, ok=True, generation=1)
    assert state(them, A) == OPEN


def test_a_lapsed_lease_frees_its_slot() -> None:
    them = fleet()
    isolate(them, A, T0)
    now = T0 + 30_000
    for token in range(3):
        them.claim(A, now, token)
    them.finish(A, now, 0, ok=True, generation=1)
    them.claim(A, now + 5_000, 3)
    assert them.claim(A, now + 9_999, 4) is None
    assert them.claim(A, now + 10_000, 4) == 1
    assert them.claim(A, now + 10_000, 5) == 1
    assert them.claim(A, now + 10_000, 6) is None


def test_a_probe_without_a_verdict_frees_its_slot_and_decides_nothing() -> None:
    them = fleet(probes=1)
    isolate(them, A, T0)
    now = T0 + 30_000
    them.claim(A, now, 1)
    assert not them.finish(A, now, 1, ok=None, generation=1)
    assert state(them, A) == HALF_OPEN
    assert them.choose(now).probing == (A,)


def test_a_node_whose_probes_were_all_lost_is_left_alone_for_as_long_as_last_time() -> None:
    them = fleet()
    isolate(them, A, T0)
    now = T0 + 30_000
    for token in range(3):
        them.claim(A, now, token)
    now += 10_000
    assert them.choose(now).probing == ()
    assert them.claim(A, now, 9) is None
    assert state(them, A) == OPEN
    assert them.transitions[-1].reason == PROBES_LOST
    assert them.transitions[-1].text == "3 probes were lost and none was answered"
    assert them.claim(A, now + 29_999, 10) is None
    assert them.claim(A, now + 30_000, 10) is not None


def test_a_slow_node_recovers_by_the_late_answers_of_probes_given_up_for_lost() -> None:
    them = fleet()
    isolate(them, A, T0)
    now = T0 + 30_000
    generations = [them.claim(A, now, token) for token in range(3)]
    them.touch(now + 10_000)
    assert state(them, A) == OPEN
    for token, generation in enumerate(generations):
        assert generation is not None
        assert them.finish(A, now + 15_000, token, ok=True, generation=generation)
    assert state(them, A) == CLOSED


def test_a_late_failure_of_a_probe_given_up_for_lost_prolongs_nothing() -> None:
    them = fleet(probes=1)
    isolate(them, A, T0)
    them.claim(A, T0 + 30_000, 1)
    them.touch(T0 + 40_000)
    since = them.breakers[A].since
    assert not them.finish(A, T0 + 45_000, 1, ok=False, generation=1)
    assert them.breakers[A].since == since


def test_late_answers_from_before_do_not_count() -> None:
    them = fleet()
    isolate(them, A, T0)
    assert not them.record(A, T0, ok=1, generation=0)
    assert not them.record(A, T0, failed=1, generation=1)  # in panic: its probes speak for it
    recover(them, A, T0 + 30_000)
    assert them.generation(A) == 2
    for generation in (0, 1, 3):
        assert not them.record(A, T0 + 30_000, failed=100, generation=generation)
        assert not them.finish(A, T0 + 30_000, 1, ok=False, generation=generation)
    assert them.record(A, T0 + 30_000, failed=1, generation=2)


def test_an_answer_to_a_probe_of_an_earlier_isolation_does_not_count() -> None:
    them = fleet(probes=2)
    isolate(them, A, T0)
    them.claim(A, T0 + 30_000, 1)
    them.claim(A, T0 + 30_000, 2)
    them.finish(A, T0 + 30_000, 1, ok=False, generation=1)
    now = T0 + 90_000
    assert them.claim(A, now, 3) == 2
    assert not them.finish(A, now, 2, ok=True, generation=1)
    assert them.breakers[A].successes == 0


def test_closed_and_unknown_nodes_have_no_probes() -> None:
    them = fleet()
    them.record(A, T0, ok=1, generation=0)
    assert them.claim(A, T0, 1) is None
    assert them.claim(D, T0, 1) is None
    assert not them.finish(D, T0, 1, ok=True, generation=0)


# Cap and panic


@pytest.mark.parametrize(
    ("nodes", "ratio", "isolable"),
    [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (10, 0.5, 5), (10, 0.34, 3), (3, 0.01, 1), (3, 1.0, 3), (3, 0.0, 0)],
)
def test_the_cap_bounds_how_many_nodes_are_isolated_at_once(nodes: int, ratio: float, isolable: int) -> None:
    names = tuple(b"n%d" % index for index in range(nodes))
    them = fleet(*names, max_isolated_ratio=ratio)
    for name in names:
        fail(them, name, T0, 8)
    assert sum(state(them, name) == OPEN for name in names) == isolable
    assert len(set(them.withheld)) == nodes - isolable


def test_a_node_held_back_by_the_cap_is_isolated_by_its_next_failure_once_there_is_room() -> None:
    them = fleet(A, B)
    isolate(them, A, T0)
    fail(them, B, T0, 10)
    assert state(them, B) == CLOSED
    recover(them, A, T0 + 30_000)
    fail(them, B, T0 + 30_000, 1)
    assert state(them, B) == OPEN


def test_nodes_that_are_configured_no_more_use_up_nothing_of_the_cap() -> None:
    them = fleet(A, B, C, D)
    isolate(them, A, T0)
    isolate(them, B, T0)
    them.nodes = (C, D)
    assert them.choose(T0).total == 2
    isolate(them, C, T0)


def test_panic_uses_all_nodes_when_fewer_than_its_share_are_usable() -> None:
    for ratio, panic in ((0.0, False), (0.25, False), (0.26, True), (0.5, True)):
        them = fleet(A, B, C, D, max_isolated_ratio=1.0, panic_ratio=ratio)
        for name in (A, B, C):
            isolate(them, name, T0)
        choice = them.choose(T0)
        assert choice.panic is panic
        assert choice.usable == ((A, B, C, D) if panic else (D,))
        assert not choice.refused


def test_a_single_node_is_isolated_by_default_and_its_callers_told_when_to_come_back() -> None:
    them = fleet(A)
    isolate(them, A, T0)
    choice = them.choose(T0 + 100)
    assert choice.refused
    assert not choice.panic
    assert choice.retry_after_seconds == 30
    assert them.choose(T0 + 29_999).retry_after_seconds == 1
    assert not them.choose(T0 + 30_000).refused


def test_when_none_of_many_is_left_the_shortest_wait_is_told() -> None:
    them = fleet(A, B, max_isolated_ratio=1.0, panic_ratio=0.0)
    isolate(them, A, T0)
    isolate(them, B, T0 + 10_000)
    choice = them.choose(T0 + 12_000)
    assert choice.refused
    assert (choice.isolated, choice.total, choice.retry_after_seconds) == (2, 2, 18)


def test_while_all_probes_are_under_way_the_wait_is_until_a_lease_lapses() -> None:
    them = fleet(A, probes=1)
    isolate(them, A, T0)
    them.claim(A, T0 + 30_000, 1)
    choice = them.choose(T0 + 32_500)
    assert choice.refused
    assert choice.retry_after_seconds == 8


def test_a_fleet_that_knows_no_nodes_refuses_nothing() -> None:
    them = Fleet(Thresholds())
    choice = them.choose(T0)
    assert (choice.usable, choice.refused, choice.panic) == ((), False, False)
    isolate(them, A, T0)
    assert them.choose(T0).refused


# Clocks


@pytest.mark.parametrize("step", [-86_400_000, -3_600_000, -25_000, -2_001])
def test_a_clock_that_steps_back_prolongs_no_isolation_when_touched_each_second(step: int) -> None:
    them = fleet(A)
    isolate(them, A, T0)
    elapsed = 0
    offset = 0
    while them.claim(A, T0 + elapsed + offset, 1) is None:
        them.touch(T0 + elapsed + offset)
        elapsed += 1_000
        if elapsed == 20_000:
            offset = step
    assert 29_000 <= elapsed <= 33_000  # a second between touches, two of tolerance


def test_a_step_back_that_nobody_noticed_is_put_right_by_the_first_claim() -> None:
    them = fleet(A)
    isolate(them, A, T0)
    back = T0 - 3_600_000
    assert them.choose(back).probing == (A,)
    assert them.claim(A, back, 1) is None
    assert them.changed
    assert them.choose(back).retry_after_seconds == 30
    assert them.claim(A, back + 30_000, 1) == 1


def test_a_step_forward_ends_isolations_early_and_later_steps_back_do_not_prolong_them() -> None:
    them = fleet(A)
    isolate(them, A, T0)
    ahead = T0 + 86_400_000
    assert them.claim(A, ahead, 1) == 1
    assert them.finish(A, ahead, 1, ok=False, generation=1)
    assert them.claim(A, T0 + 1_000, 2) is None
    assert them.choose(T0 + 1_000).retry_after_seconds == 60
    assert them.claim(A, T0 + 61_000, 3) == 2


def test_workers_that_write_out_of_order_by_a_little_are_no_step() -> None:
    them = fleet()
    them.record(A, T0 + 1_999, failed=1, generation=0)
    fail(them, A, T0, 5)
    assert state(them, A) == OPEN
    assert them.breakers[A].since == T0
    assert them.seen == T0 + 1_999


def test_touch_writes_nothing_while_no_node_is_isolated() -> None:
    them = fleet()
    them.record(A, T0, ok=1, generation=0)
    them.changed = False
    them.touch(T0 + 60_000)
    assert not them.changed


@pytest.mark.parametrize("now", [-1, 0, 1, 2**40, 2**63, 2**70])
def test_impossible_times_are_taken_as_the_nearest_possible(now: int) -> None:
    them = fleet(A)
    isolate(them, A, now)
    them.choose(now)
    them.claim(A, now, 1)
    them.touch(now)


# Room


def test_records_are_bounded_and_the_healthiest_unseen_for_longest_makes_room() -> None:
    them = Fleet(Thresholds(), ())
    for index in range(MAX_NODES):
        them.record(b"n%02d" % index, T0 + index, ok=1, generation=0)
    fail(them, b"n00", T0 + 100, 1)
    assert them.record(b"new", T0 + 200, ok=1, generation=0)
    assert len(them.breakers) == MAX_NODES
    assert b"n00" in them.breakers
    assert b"n01" not in them.breakers


def test_an_evicted_node_comes_back_with_a_generation_it_never_had() -> None:
    them = Fleet(Thresholds(max_isolated_ratio=1.0), ())
    isolate(them, b"old", T0)
    recover(them, b"old", T0 + 30_000)
    for index in range(MAX_NODES + 5):
        them.record(b"n%02d" % index, T0 + 2_000_000, ok=1, generation=them.generation(b"n%02d" % index))
    assert b"old" not in them.breakers
    assert them.generation(b"old") >= 3
    assert not them.record(b"old", T0 + 2_000_000, failed=9, generation=2)


def test_isolated_nodes_are_never_evicted() -> None:
    them = Fleet(Thresholds(max_isolated_ratio=1.0, consecutive_failures=0), ())
    for index in range(MAX_NODES):
        fail(them, b"n%02d" % index, T0, 1)
    assert not them.record(b"new", T0, ok=1, generation=0)
    assert all(breaker.state == OPEN for breaker in them.breakers.values())


@pytest.mark.parametrize("name", [b"", b"x" * 129])
def test_names_that_no_record_could_hold_are_not_recorded(name: bytes) -> None:
    them = Fleet(Thresholds(), ())
    assert not them.record(name, T0, failed=1, generation=0)


def test_status_says_of_every_node_its_state_since_when_and_why() -> None:
    them = fleet(A, B)
    isolate(them, A, T0)
    first, second = them.status(T0 + 10_000)
    assert first == {
        "node": "router-a",
        "state": "open",
        "since_milliseconds": T0,
        "reason": "consecutive-failures",
        "text": "6 failures in a row",
        "generation": 1,
        "isolations": 1,
        "isolation_left_milliseconds": 20_000,
        "consecutive_failures": 0,
        "window_ok": 0,
        "window_failed": 0,
        "probes_under_way": 0,
        "probe_successes": 0,
    }
    assert (second["node"], second["state"], second["reason"]) == ("router-b", "closed", "new")
