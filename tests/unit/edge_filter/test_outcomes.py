"""What a request's end says of its node, for whatever a node answers and a client asks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprun_filter import outcomes
from mcprun_filter.outcomes import (
    ANSWERED,
    DC,
    DR,
    FAILED,
    NOTHING,
    OF_CLIENT,
    OF_ENVOY,
    OK,
    RESETS,
    SI,
    TIMEOUTS,
    UC,
    UT,
    classify,
    grpc_code,
    grpc_timeout,
    http_code,
    verdict,
)

FAILING = (2, 4, 8, 13, 14)
"""UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE."""


@pytest.mark.parametrize("status", range(200, 600))
def test_every_5xx_is_a_failure_and_every_other_status_an_answer(status: int) -> None:
    expected = OK if status < 400 else ANSWERED if status < 500 else FAILED
    assert classify(status=status, answered=True)[0] == expected


@pytest.mark.parametrize("code", range(17))
def test_a_grpc_status_counts_even_under_http_200(code: int) -> None:
    expected = FAILED if code in FAILING else NOTHING if code == 1 else ANSWERED if code else OK
    assert classify(status=200, grpc_status=code, answered=True)[0] == expected


@pytest.mark.parametrize("code", [-1, 17, 99, 2**31, -(2**63)])
def test_a_number_that_is_no_grpc_status_is_a_failure(code: int) -> None:
    assert classify(status=200, grpc_status=code, answered=True) == (FAILED, "grpc-unknown")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"flags": UT}, (FAILED, "timeout")),
        ({"flags": UC}, (FAILED, "reset")),
        ({"flags": UC, "status": 503}, (FAILED, "reset")),
        ({"flags": UC, "status": 200, "answered": True}, (FAILED, "reset")),
        ({"flags": DC}, (NOTHING, "client-left")),
        ({"flags": DR, "status": 200, "answered": True}, (NOTHING, "client-left")),
        ({"flags": DC, "status": 500, "answered": True}, (FAILED, "http-5xx")),
        # The client gave up, and had waited for as long as it had said.
        ({"flags": DC, "deadline": 1.0, "elapsed": 1.0}, (FAILED, "timeout")),
        ({"flags": DC, "deadline": 1.0, "elapsed": 0.99}, (FAILED, "timeout")),
        ({"flags": DC, "deadline": 1.0, "elapsed": 0.5}, (NOTHING, "client-left")),
        ({"flags": DC, "deadline": 0.01, "elapsed": 5.0}, (NOTHING, "client-left")),
        # So short a time that no node could have answered.
        ({"flags": UT, "deadline": 0.01}, (NOTHING, "hasty-client")),
        ({"status": 504, "answered": True, "deadline": 0.01}, (NOTHING, "hasty-client")),
        ({"status": 500, "answered": True, "deadline": 0.01}, (FAILED, "http-5xx")),
        ({"status": 200, "grpc_status": 4, "answered": True, "deadline": 0.01}, (NOTHING, "hasty-client")),
        ({"status": 200, "grpc_status": 14, "answered": True, "deadline": 0.01}, (FAILED, "grpc-unavailable")),
        # Idle streams: who was it that stalled?
        ({"flags": SI}, (FAILED, "timeout")),
        ({"flags": SI, "request_complete": False}, (NOTHING, "idle")),
        ({"flags": SI, "status": 200, "answered": True}, (NOTHING, "idle")),
        ({"flags": SI, "status": 503, "answered": True}, (FAILED, "http-5xx")),
        # A quota of the caller's is the caller's.
        ({"status": 429, "answered": True, "quota": True}, (ANSWERED, "quota")),
        ({"status": 503, "answered": True, "quota": True}, (ANSWERED, "quota")),
        ({"status": 200, "grpc_status": 8, "answered": True, "quota": True}, (ANSWERED, "quota")),
        ({"status": 200, "grpc_status": 8, "answered": True}, (FAILED, "grpc-resource-exhausted")),
        ({}, (NOTHING, "unanswered")),
        ({"status": 200}, (NOTHING, "unanswered")),
        ({"answered": True}, (NOTHING, "unanswered")),
    ],
)
def test_ends_of_requests(end: dict[str, object], expected: tuple[int, str]) -> None:
    assert classify(**end) == expected  # type: ignore[arg-type]


ends = st.fixed_dictionaries(
    {},
    optional={
        "status": st.none() | st.integers(-1, 2**31),
        "grpc_status": st.none() | st.integers(-(2**31), 2**31),
        "flags": st.integers(0, 2**40),
        "elapsed": st.floats(-1e9, 1e9),
        "deadline": st.none() | st.floats(0, 1e12),
        "shortest_deadline": st.floats(0, 3600),
        "answered": st.booleans(),
        "request_complete": st.booleans(),
        "quota": st.booleans(),
    },
)


@given(ends)
def test_every_end_is_one_outcome_with_a_reason(end: dict[str, object]) -> None:
    outcome, why = classify(**end)  # type: ignore[arg-type]
    assert outcome in (NOTHING, OK, ANSWERED, FAILED)
    assert why.replace("-", "").isalnum()
    assert verdict(outcome) is {NOTHING: None, OK: True, ANSWERED: True, FAILED: False}[outcome]
    flags = end.get("flags", 0)
    assert isinstance(flags, int)
    if flags & OF_ENVOY:
        assert outcome == NOTHING
    elif flags & (TIMEOUTS | RESETS):
        assert outcome in (FAILED, NOTHING)
        assert outcome == FAILED or why == "hasty-client"
    if outcome == OK:
        assert end.get("answered")
        assert not flags & (OF_ENVOY | TIMEOUTS | RESETS | OF_CLIENT)
        assert not end.get("grpc_status")
        assert end.get("status") is None or int(str(end["status"])) < 400


def test_no_two_kinds_of_flags_overlap_and_all_are_known() -> None:
    # A request that was delayed on purpose goes on as any other.
    kinds = (OF_ENVOY, TIMEOUTS, RESETS, OF_CLIENT, SI, outcomes.DI)
    assert sum(kinds) == (1 << 29) - 1


FLAGS = "LH UH UT LR UR UF UC UO NR DI FI RL UAEX RLSE DC URX SI IH DPE UMSDR RFCF NFCF DT UPE NC OM DF DO DR".split()  # noqa: SIM905  as Envoy has it
BY_NODE = {"UT", "LR", "UR", "UF", "UC", "URX", "SI", "UMSDR", "UPE"}


@pytest.mark.parametrize(("bit", "flag"), list(enumerate(FLAGS)), ids=FLAGS)
def test_each_of_envoys_flags_alone_says_whose_fault_it_was(bit: int, flag: str) -> None:
    assert getattr(outcomes, flag) == 1 << bit
    assert classify(flags=1 << bit)[0] == (FAILED if flag in BY_NODE else NOTHING)
    # What Envoy answers by itself has a status, and is no answer of a node's.
    expected = FAILED if flag in BY_NODE or flag in ("DI", "DC", "DR") else NOTHING
    assert classify(flags=1 << bit, status=503, answered=True)[0] == expected


# Headers

UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@given(st.integers(0, 99_999_999), st.sampled_from(sorted(UNITS)))
def test_a_grpc_timeout_is_so_many_of_its_unit(number: int, unit: str) -> None:
    assert grpc_timeout(f"{number}{unit}".encode()) == pytest.approx(number * UNITS[unit])


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"S",
        b"1",
        b"10",
        b"1s",
        b"1h",
        b"-1S",
        b"+1S",
        b" 1S",
        b"1 S",
        b"1.5S",
        b"1e3S",
        b"1_0S",
        b"123456789S",
        b"\xb2S",
        b"1\xff",
    ],
)
def test_what_is_no_grpc_timeout_is_none(value: bytes | None) -> None:
    assert grpc_timeout(value) is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, None),
        (b"0", 0),
        (b"00", 0),
        (b"14", 14),
        (b"16", 16),
        (b"17", 2),
        (b"99", 2),
        (b"014", 2),
        (b"-1", 2),
        (b"", 2),
        (b"x", 2),
        (b"\xff", 2),
    ],
)
def test_a_grpc_status_that_is_no_number_of_grpcs_is_unknown(value: bytes | None, code: int | None) -> None:
    assert grpc_code(value) == code


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"200", 200),
        (b"599", 599),
        (b"099", 99),
        (b"20", None),
        (b"2000", None),
        (b"+20", None),
        (b"2_0", None),
        (b"\xb2\xb2\xb2", None),
        (None, None),
    ],
)
def test_a_status_is_three_digits(value: bytes | None, code: int | None) -> None:
    assert http_code(value) == code


@given(st.binary(max_size=12) | st.text("0123456789HMSmun+-_. ", max_size=10).map(str.encode))
def test_any_header_is_read_as_a_number_or_as_none(value: bytes) -> None:
    seconds = grpc_timeout(value)
    assert seconds is None or 0 <= seconds <= 99_999_999 * 3600
    code = grpc_code(value)
    assert code is not None
    assert 0 <= code <= 16
    status = http_code(value)
    assert status is None or 0 <= status <= 999
    assert outcomes.classify(status=status, grpc_status=code, answered=True, deadline=seconds)[0] in range(4)
