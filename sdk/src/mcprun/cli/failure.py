"""How commands end when they do not end well."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `mcprun`, the same for every command."""

    OK = 0
    FAILED = 1
    """It was tried and did not work, such as a request that the mesh refused."""
    USAGE = 2
    """The command line or a file of the user's is wrong."""
    UNREACHABLE = 3
    """No mesh answers."""
    PORT_TAKEN = 4
    """The mesh cannot listen where it should."""
    ALREADY_RUNNING = 5
    """The mesh of this workspace runs already."""
    INTERRUPTED = 130
    """Ctrl-C."""


EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage or a mistake in a file, 3 no mesh answers, "
    "4 the port is taken, 5 the mesh of this workspace runs already."
)


class CommandFailed(Exception):
    """Ends a command. `lines` are written to standard error."""

    def __init__(self, code: ExitCode, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.code = code
        self.lines = lines
