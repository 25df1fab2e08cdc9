"""What can go wrong with a build, by who has to act."""


class BuildError(Exception):
    """A build cannot go on; the text says what to do."""

    exit_code = 1


class ApplicationError(BuildError):
    """The filter's own code failed while it was imported; the text is its traceback."""

    exit_code = 3


class ToolError(BuildError):
    """A tool is missing, cannot be installed, or failed. `said` is all that it wrote on standard error."""

    exit_code = 4

    def __init__(self, text: str, *, said: str = "") -> None:
        super().__init__(text)
        self.said = said


class FormatError(BuildError):
    """Bytes are not the WebAssembly that they should be, or not of the version that this build knows."""

    exit_code = 5


class HoldoutFailed(BuildError):
    """A module that was cut by a profile fails where it was not trained; nothing was written."""

    exit_code = 6
