"""What the commands take and print: values of options; text and tables for a person, or JSON for a program."""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from steptrace.errors import SteptraceError, next_step_of
from steptrace.format import printable, rough_duration

#: A year.
_MOST_MINUTES = 525_600


#: Seconds between two lines on how far a command is.
_EVERY_S: Final = 5.0


def _whole(text: str, least: int) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= least:
            return value
    raise argparse.ArgumentTypeError(f"invalid number '{text}': expected a whole number >= {least}")


positive = partial(_whole, least=1)
not_negative = partial(_whole, least=0)


def minutes(text: str) -> float:
    """A time above 0, in minutes."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) <= _MOST_MINUTES:
            return value
    raise argparse.ArgumentTypeError(f"invalid number '{text}': expected minutes above 0, such as 30 or 0.5")


def gpu_names(text: str) -> tuple[str, ...]:
    """The value of `--gpu`."""
    return tuple(name.strip() for name in text.split(","))


def batches(text: str) -> tuple[int, ...]:
    """The value of `--batch`, ascending: the last is the largest."""
    return tuple(sorted({positive(number.strip()) for number in text.split(",")}))


def show(arguments: argparse.Namespace, document: Any, text: str) -> None:
    """Print a command's result: `document` with `--json`, else `text`. Paths become text."""
    print(json.dumps(document, indent=2, default=str) if arguments.json else printable(text), flush=True)  # noqa: T201


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"steptrace: warning: {printable(text)}", file=sys.stderr)  # noqa: T201


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Turn what keeps from writing to a place into a `SteptraceError` about it."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        named = Path(os.fsdecode(error.filename)) if error.filename is not None else place
        where = named if named.is_relative_to(place) else place
        next_step = next_step_of(error)
        raise SteptraceError(f"cannot be written ({reason})", where=where, next_step=next_step) from error


def say(line: str) -> None:
    """A line on stderr on how far a program is that was started."""
    print(f"steptrace: {line}", file=sys.stderr, flush=True)  # noqa: T201


class Progress:
    """Says on stderr how many of many things are done, once they have taken a while.

    Args:
        what: what is counted: `traces read`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """To be called after each: `done` of `total`."""
        now = time.monotonic()
        if done < total and now - self._said >= _EVERY_S:
            self._said = now
            left_s = (now - self._began) / done * (total - done)
            say(f"{done} of {total} {self._what}, about {rough_duration(left_s)} left; Ctrl-C ends it")


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, indented by two; columns as wide as their longest cell, the last one as it comes."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in (head, *rows)
    ]
