"""The errors a person can meet, each saying what went wrong, where, what was expected and what to do next.

The command line turns any of them into one message on stderr and exit code 2; a traceback is a defect of steptrace.
"""

import difflib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn


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
    """A configuration file, an override or a name in it is wrong."""


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
    """Return "did you mean 'x'?" if one of `options` is close to `name`, else the list of options."""
    names = sorted(options)
    every = f"choose one of: {', '.join(names)}" if names else "none is defined"
    return meant(name, names, likeness=0.6) or every


def meant(name: str, options: Iterable[str], *, likeness: float = 0.8) -> str | None:
    """Return "did you mean 'x'?" if one of `options` is close to `name`: by `difflib`, from 0 to 1 for the same."""
    close = difflib.get_close_matches(name, sorted(options), n=1, cutoff=likeness)
    return f"did you mean '{close[0]}'?" if close else None


def exit_with(main: Callable[[], int]) -> NoReturn:
    """End a program with the exit code of its `main`; an error addressed to a person is a message and code 2."""
    try:
        sys.exit(main())
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
