"""How runs and checks ended, for the rules on failures."""

from collections.abc import Iterable
from typing import Annotated

from msgspec.structs import replace

from steptrace.documents.base import Document, field
from steptrace.documents.run import ProcessError, RunResult


class RunEnding(Document, frozen=True, kw_only=True):
    """How one run ended."""

    repeat: Annotated[int, field("Number of the run, from 0.")]
    error: Annotated[ProcessError | None, field("How it failed, with the last line of its log; null if unknown.")]


def endings_of(runs: Iterable[RunResult]) -> tuple[RunEnding, ...]:
    """How these runs ended."""
    return tuple(RunEnding(repeat=run.repeat, error=with_last_line(run.error)) for run in runs)


def with_last_line(error: ProcessError | None) -> ProcessError | None:
    """An error with only the last line of its log."""
    return None if error is None else replace(error, log_tail=error.log_tail[-1:])


def ending_in_words(error: ProcessError | None) -> str:
    """How a process ended, with its error, or with the last line of its log if it names none."""
    if error is None:
        return "failed"
    ending = ", ".join(filter(None, [error.status, error.ending]))
    reason = error.error or next(reversed(error.log_tail), None)
    return ending + (f": {reason}" if reason else "")


def runs_in_words(endings: Iterable[RunEnding]) -> tuple[str, ...]:
    """A line for each run."""
    return tuple(f"run {ending.repeat}: {ending_in_words(ending.error)}" for ending in endings)
