"""Shared data as Envoy has it, with a hook before every access, so that a test can let other workers in between."""

from collections.abc import Callable


class SharedData:
    """Setting with the number 0 overwrites; a missing key is inserted whatever the number; numbers are counted up from 1."""

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self.writes = 0
        self.between: Callable[[], None] | None = None
        self._next = 1

    def get(self, key: bytes) -> tuple[bytes, int] | None:
        self._let_others_in()
        return self.values.get(key)

    def set(self, key: bytes, value: bytes, cas: int) -> bool:
        self._let_others_in()
        there = self.values.get(key)
        if there is not None and cas and cas != there[1]:
            return False
        self.values[key] = (value, self._next)
        self._next += 1
        self.writes += 1
        return True

    def _let_others_in(self) -> None:
        hook, self.between = self.between, None
        if hook is not None:
            try:
                hook()
            finally:
                self.between = self.between or hook
