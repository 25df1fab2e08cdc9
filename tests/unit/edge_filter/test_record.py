"""The record of a fleet in shared data: what is written is read, and what is damaged begins anew."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun_filter.breaker import CLOSED, OPEN, REASONS, Breaker, Thresholds
from mcprun_filter.fleet import LATEST, MAX_NODE_NAME, MAX_NODES, Fleet
from mcprun_filter.record import INITIAL, MAX_LEASES, MAX_SECONDS, decode, encode

T0 = 1_790_000_000_000
THRESHOLDS = Thresholds()
BYTE, SHORT, WORD, LONG = (st.integers(0, 2 ** (8 * size) - 1) for size in (1, 2, 4, 8))
HEADER = struct.Struct("<HBBIQ")
SUM = struct.Struct("<I")


@st.composite
def breakers(draw: st.DrawFn, name: bytes) -> Breaker:
    """Any values that a record can hold."""
    breaker = Breaker(name)
    breaker.state = draw(st.integers(0, 2))
    breaker.reason = draw(st.integers(0, len(REASONS) - 1))
    breaker.count = draw(BYTE)
    breaker.successes, breaker.lost = draw(SHORT), draw(SHORT)
    for field in ("consecutive", "generation", "length", "first", "second"):
        setattr(breaker, field, draw(WORD))
    breaker.since, breaker.seen = draw(LONG), draw(LONG)
    for _ in range(draw(st.integers(0, 3) | st.just(MAX_LEASES))):
        breaker.leases += (draw(LONG), draw(LONG))
    for _ in range(draw(st.integers(0, 3) | st.just(MAX_SECONDS))):
        breaker.window += (draw(WORD), draw(WORD), draw(WORD))
    return breaker


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    fleet = Fleet(THRESHOLDS)
    fleet.base_generation = draw(WORD)
    fleet.seen = draw(LONG)
    for name in draw(st.lists(st.binary(min_size=1, max_size=MAX_NODE_NAME), max_size=3, unique=True)):
        fleet.breakers[name] = draw(breakers(name))
    return fleet


def told(fleet: Fleet) -> object:
    nodes = [[getattr(breaker, field) for field in Breaker.__slots__] for breaker in fleet.breakers.values()]
    return fleet.base_generation, fleet.seen, nodes


def is_fresh(fleet: Fleet) -> bool:
    return (fleet.base_generation, fleet.seen, fleet.breakers) == (0, 0, {})


def used(fleet: Fleet, now: int) -> None:
    """All that a worker does with a fleet. Nothing of it may raise, and what comes of it can be written."""
    for name in (*fleet.breakers, b"new"):
        generation = fleet.generation(name)
        fleet.hot(name, now)
        fleet.record(name, now, failed=3, tallied=1, generation=generation)
        fleet.claim(name, now, 1)
        fleet.finish(name, now, 1, ok=False, generation=fleet.generation(name))
    fleet.touch(now)
    fleet.choose(now)
    fleet.status(now)
    assert encode(decode(encode(fleet), THRESHOLDS)) == encode(fleet)
    assert set(decode(encode(fleet), THRESHOLDS).breakers) == set(fleet.breakers)


@given(fleets())
def test_what_is_written_is_read(fleet: Fleet) -> None:
    raw = encode(fleet)
    assert told(decode(raw, THRESHOLDS)) == told(fleet)
    assert encode(decode(raw, THRESHOLDS)) == raw


def test_the_thresholds_and_nodes_are_those_of_today() -> None:
    fleet = Fleet(THRESHOLDS, (b"a",))
    fleet.record(b"a", T0, failed=6, generation=0)
    today = Thresholds(probes=9)
    read = decode(encode(fleet), today, (b"a", b"b"))
    assert (read.thresholds, read.nodes) == (today, (b"a", b"b"))
    assert read.breakers[b"a"].state == OPEN
    assert (read.changed, read.transitions, read.withheld) == (False, [], [])


def test_the_initial_record_is_a_fresh_fleet() -> None:
    assert encode(Fleet(THRESHOLDS)) == INITIAL
    assert is_fresh(decode(INITIAL, THRESHOLDS))


def test_the_largest_fleet_is_written_and_read() -> None:
    fleet = Fleet(THRESHOLDS)
    for number in range(MAX_NODES):
        assert fleet.record(b"%0128d" % number, T0, ok=1, generation=0)
    assert told(decode(encode(fleet), THRESHOLDS)) == told(fleet)


def test_of_more_probes_and_seconds_than_a_record_holds_the_latest_are_kept() -> None:
    fleet = Fleet(THRESHOLDS)
    breaker = fleet.breakers[b"a"] = Breaker(b"a")
    breaker.leases = list(range(2 * MAX_LEASES + 4))
    breaker.window = list(range(3 * MAX_SECONDS + 6))
    read = decode(encode(fleet), THRESHOLDS).breakers[b"a"]
    assert read.leases == breaker.leases[4:]
    assert read.window == breaker.window[6:]


def isolated() -> bytes:
    fleet = Fleet(THRESHOLDS)
    fleet.record(b"a", T0, failed=6, generation=0)
    fleet.record(b"b", T0, ok=3, failed=1, generation=0)
    fleet.claim(b"a", T0 + 40_000, 7)
    return encode(fleet)


def test_any_bit_that_turns_is_seen() -> None:
    raw = isolated()
    for at in range(len(raw)):
        for bit in range(8):
            damaged = raw[:at] + bytes((raw[at] ^ 1 << bit,)) + raw[at + 1 :]
            assert is_fresh(decode(damaged, THRESHOLDS)), (at, bit)


def test_a_record_that_is_cut_or_too_long_is_seen() -> None:
    raw = isolated()
    for size in range(len(raw)):
        assert is_fresh(decode(raw[:size], THRESHOLDS))
    assert is_fresh(decode(raw + b"\0", THRESHOLDS))
    assert is_fresh(decode(raw + raw, THRESHOLDS))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_fresh_fleet(raw: bytes) -> None:
    fleet = decode(raw, THRESHOLDS)
    assert is_fresh(fleet)
    used(fleet, T0)


def sealed(body: bytes, *, count: int) -> bytes:
    """A record whose checksum is right and whose body may be anything."""
    magic, version, *_ = HEADER.unpack_from(INITIAL)
    header = HEADER.pack(magic, version, count, 3, T0)
    return header + SUM.pack(zlib.crc32(body, zlib.crc32(header))) + body


def test_what_the_next_test_seals_is_read() -> None:
    raw = isolated()
    read = decode(sealed(raw[HEADER.size + SUM.size :], count=2), THRESHOLDS)
    assert (set(read.breakers), read.base_generation) == ({b"a", b"b"}, 3)
    assert is_fresh(decode(sealed(raw[HEADER.size + SUM.size :], count=1), THRESHOLDS))
    assert is_fresh(decode(sealed(raw[HEADER.size + SUM.size :], count=3), THRESHOLDS))


def test_a_node_that_stands_twice_and_states_that_there_are_not_are_seen() -> None:
    fleet = Fleet(THRESHOLDS)
    fleet.record(b"a", T0, failed=6, generation=0)
    body = encode(fleet)[HEADER.size + SUM.size :]
    assert not is_fresh(decode(sealed(body, count=1), THRESHOLDS))
    assert is_fresh(decode(sealed(body + body, count=2), THRESHOLDS))
    # The fourth byte of a node is its state, the fifth the reason for it.
    assert is_fresh(decode(sealed(body[:3] + b"\x03" + body[4:], count=1), THRESHOLDS))
    assert is_fresh(decode(sealed(body[:4] + bytes((len(REASONS),)) + body[5:], count=1), THRESHOLDS))


@given(st.binary(max_size=200), st.integers(0, 255))
def test_a_body_that_nobody_wrote_raises_nothing(body: bytes, count: int) -> None:
    fleet = decode(sealed(body, count=count), THRESHOLDS)
    assert len(fleet.breakers) in (0, count)
    used(fleet, T0)


@given(fleets(), st.sampled_from([0, T0, 2**63, 2**64 - 1]) | LONG)
def test_any_values_that_a_record_can_hold_can_be_used(fleet: Fleet, now: int) -> None:
    used(fleet, now)


@pytest.mark.parametrize("now", [0, T0, LATEST - 20 * 301_000])
@given(fleet=fleets())
def test_whatever_was_recorded_a_node_that_is_well_comes_back(now: int, fleet: Fleet) -> None:
    """No state isolates a node for ever, whatever the clock was when it began and is now."""
    for breaker in fleet.breakers.values():
        # What is recorded happened before the record was written, and leases were given until then.
        breaker.since = min(breaker.since, fleet.seen)
        breaker.leases[1::2] = [min(until, fleet.seen + THRESHOLDS.lease_ms) for until in breaker.leases[1::2]]
    for name, breaker in fleet.breakers.items():
        for turn in range(20):
            # Isolations are bounded by five minutes, and leases by ten seconds.
            at = now + turn * 301_000
            generation = fleet.claim(name, at, turn)
            if generation is not None:
                fleet.finish(name, at, turn, ok=True, generation=generation)
            if breaker.state == CLOSED:
                break
        assert breaker.state == CLOSED
