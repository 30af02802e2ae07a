"""The errors a person can meet, each saying what went wrong, where, what was expected and what to do next.

The command line turns any of them into one message on stderr and exit code 2; a traceback is a defect of steptrace.
"""

import difflib
import errno
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, TextIO

from steptrace.exit_codes import ExitCode

_STDERR: Final = 2
#: The environment variable that names a file for the message by which a started process ends. Who started it reads the
#: message there, not in the log, where it would be mixed with the output.
MESSAGE_VARIABLE: Final = "STEPTRACE_MESSAGE"


class SteptraceError(Exception):
    """Base of all errors that are addressed to a person.

    Args:
        what: what went wrong, one sentence without a full stop.
        where: the file, key or table concerned.
        expected: what would have been right.
        next_step: what to do about it.
    """

    def __init__(
        self, what: str, *, where: str | Path | None = None, expected: str | None = None, next_step: str | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = expected
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what if self.where is None else f"{self.where}: {self.what}"]
        if self.expected:
            parts.append(f"expected: {self.expected}")
        if self.next_step:
            parts.append(f"next: {self.next_step}")
        return "\n  ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments survive the trip between processes only if they are named here.
        return _rebuild, (type(self), self.what, self.where, self.expected, self.next_step)


def _rebuild(
    cls: type[SteptraceError], what: str, where: str | None, expected: str | None, next_step: str | None
) -> SteptraceError:
    return cls(what, where=where, expected=expected, next_step=next_step)


class ConfigError(SteptraceError):
    """A configuration file, an override or a name in it is wrong.

    Args:
        what: as of every error, and so are `where`, `expected` and `next_step`.
        keys: the names that lead to the wrong value in a composed configuration, so that its file can be found.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | Path | None = None,
        expected: str | None = None,
        next_step: str | None = None,
        keys: tuple[object, ...] = (),
    ) -> None:
        super().__init__(what, where=where, expected=expected, next_step=next_step)
        self.keys = keys


class TraceError(SteptraceError):
    """A trace file cannot be read."""


class TruncatedTraceError(TraceError):
    """A trace file ends before its JSON does."""


class RecordError(SteptraceError):
    """A run's files are missing or contradict each other."""


class SchemaError(SteptraceError):
    """A table does not fit the type of its rows."""


class TrainError(SteptraceError):
    """A training cannot start or go on."""


class PredictError(SteptraceError):
    """Syncs cannot be predicted here."""


class CaptureError(SteptraceError):
    """A running process cannot be captured."""


class LaunchError(SteptraceError):
    """A program that was started cannot be measured or followed."""


def near(name: str, options: Iterable[str]) -> str:
    """Return "did you mean 'x'?" if one of `options` is close to `name`, and otherwise the list of options."""
    names = sorted(options)
    choices = f"choose one of: {', '.join(names)}" if names else "none is defined"
    return meant(name, names, likeness=0.6) or choices


def meant(name: str, options: Iterable[str], *, likeness: float = 0.8) -> str | None:
    """Return "did you mean 'x'?" if one of `options` is close to `name`: by `difflib`, from 0 to 1 for the same."""
    close = difflib.get_close_matches(name, sorted(options), n=1, cutoff=likeness)
    return f"did you mean '{close[0]}'?" if close else None


def exit_with(main: Callable[[], int]) -> NoReturn:
    """End a program with the exit code of its `main`, or of its error: see `code_of`."""
    sys.exit(code_of(main))


def code_of(main: Callable[[], int], *, say: Callable[[str], object] | None = None) -> int:
    """Call a program's `main` and return its exit code; an error addressed to a person is a message on stderr.

    If the environment variable `MESSAGE_VARIABLE` names a file, the message is written there, too.

    Args:
        main: returns the exit code.
        say: prints an error; default: on stderr, after `error: `.

    Returns:
        `ExitCode.ERROR` after a `SteptraceError`, or an `OSError` such as a full disk, which is told with the file's
        name; `INTERRUPTED` after Ctrl-C, `NO_READER` where the reader of the output has gone.
    """
    keep_standard_error()
    say = say or (lambda text: sys.stderr.write(f"error: {text}\n"))

    def end_with(message: str) -> None:
        say(message)
        if file := os.environ.get(MESSAGE_VARIABLE):
            with suppress(OSError), Path(file).open("w", encoding="utf-8", errors="replace") as kept:
                kept.write(message)

    try:
        code = main()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SteptraceError as error:
        if sys.stdout is not None:
            with suppress(OSError):
                sys.stdout.flush()  # both may be one file, in which the error comes last
        end_with(str(error))
    except KeyboardInterrupt:
        say("interrupted")
        return ExitCode.INTERRUPTED
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.filename is not None:  # such as a full disk, or a name that is too long
            end_with(str(SteptraceError(reason, where=os.fsdecode(error.filename), next_step=next_step_of(error))))
            return ExitCode.ERROR
        # What is left in a buffer would be written again, and fail again, at the exit.
        _discard(sys.stdout)
        if error.errno == errno.EPIPE:  # its reader has seen enough, as `head` has
            _discard(sys.stderr)
            return ExitCode.NO_READER
        say(f"the output cannot be written ({reason})")
    return ExitCode.ERROR


def next_step_of(error: OSError) -> str | None:
    """What to do about an error of the system, if there is a plain answer."""
    return "free space on this disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None


def keep_standard_error() -> None:
    """Open the null device in the place of a closed standard error.

    Python would print errors on standard output instead, and the next file that is opened would get what libraries
    write to standard error.
    """
    try:
        os.fstat(_STDERR)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != _STDERR:
            os.dup2(null, _STDERR)
            os.close(null)
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115 - a descriptor, as long as the process


def _discard(output: TextIO | None) -> None:
    if output is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
