"""How long to wait before a process is started again."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Doubles from `first_seconds` to `most_seconds`, and starts over once a process ran for `healthy_seconds`."""

    clock: Callable[[], float]
    """Monotonic, in seconds."""
    first_seconds: float = 0.1
    most_seconds: float = 10.0
    healthy_seconds: float = 30.0
    deaths_in_a_row: int = 0
    """Deaths since it last ran for `healthy_seconds`."""
    _started: float = field(default=0.0, init=False)

    def started(self) -> None:
        """The process was started now."""
        self._started = self.clock()

    def died(self) -> float:
        """The process died now. Returns the seconds to wait before it is started again."""
        if self.clock() - self._started >= self.healthy_seconds:
            self.deaths_in_a_row = 0
        self.deaths_in_a_row += 1
        # The exponent is bounded: a process that dies for days must not overflow a float.
        return min(self.most_seconds, self.first_seconds * 2.0 ** min(self.deaths_in_a_row - 1, 32))
