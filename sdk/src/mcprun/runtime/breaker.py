"""Circuit breakers around the calls to another service, by pybreaker, with their state as a metric."""

from collections.abc import Iterator
from contextlib import contextmanager

import pybreaker
from prometheus_client import Counter, Gauge

from mcprun.errors import Unavailable
from mcprun.runtime.logs import get_logger
from mcprun.runtime.metrics import REGISTRY

_STATES = {"closed": 0, "half-open": 1, "open": 2}
_state = Gauge(
    "mcprun_breaker_state",
    "State of the circuit breaker around a dependency: 0 closed, 1 half-open, 2 open",
    ["dependency"],
    registry=REGISTRY,
)
_refused = Counter(
    "mcprun_breaker_refused_total", "Calls that were refused because the breaker was open", ["dependency"], registry=REGISTRY
)
_log = get_logger(__name__)


class _Report(pybreaker.CircuitBreakerListener):  # type: ignore[misc]
    def state_change(
        self,
        cb: pybreaker.CircuitBreaker,
        old_state: pybreaker.CircuitBreakerState | None,
        new_state: pybreaker.CircuitBreakerState,
    ) -> None:
        state = new_state.name
        _state.labels(cb.name).set(_STATES[state])
        _log.warning("circuit breaker changed state", dependency=cb.name, state=state)


class Breaker:
    """Opens after `fail_max` failures in a row; after `reset_seconds` it lets one call through to see.

    Raises `Unavailable` with a retry hint at once while it is open.
    """

    def __init__(self, dependency: str, *, fail_max: int = 5, reset_seconds: float = 2.0) -> None:
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=fail_max,
            reset_timeout=reset_seconds,
            name=dependency,
            listeners=[_Report()],
            throw_new_error_on_trip=False,
        )
        self._dependency = dependency
        self._reset_seconds = reset_seconds
        _state.labels(dependency).set(0)

    @property
    def state(self) -> str:
        """closed, half-open or open."""
        return str(self._breaker.current_state)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Counts the block's exceptions as failures and its end as a success."""
        try:
            with self._breaker.calling():
                yield
        except pybreaker.CircuitBreakerError:
            raise self._unavailable() from None

    def refusal(self) -> Unavailable:
        """The error of a call that is not even tried because the breaker is open; counted."""
        _refused.labels(self._dependency).inc()
        return self._unavailable()

    def _unavailable(self) -> Unavailable:
        return Unavailable(
            f"the {self._dependency} is unavailable; calls to it are suspended for up to {self._reset_seconds:g} s",
            retry_after=self._reset_seconds,
        )
