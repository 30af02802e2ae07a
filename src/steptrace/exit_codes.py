"""What the exit code of a command says. The table in docs/reference/commands.md is generated from it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    NOT_HELD = 1
    ERROR = 2
    INTERRUPTED = 130  # as a shell says it of a process that SIGINT has ended
    NO_READER = 141  # likewise of SIGPIPE

    @property
    def meaning(self) -> str:
        """What it says, for a table."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.NOT_HELD: "done, but something does not hold: over budget, the program ended early, no study can run",
    ExitCode.ERROR: "not done: bad input, or a file that cannot be read or written; "
    "a message on standard error says what to do",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.NO_READER: "the program that reads its output ended first, such as `head`",
}
