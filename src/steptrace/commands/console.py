"""The commands' options and output: values of options; text and tables for a person, or JSON for a program."""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.errors import SteptraceError, next_step_of
from steptrace.format import printable, rough_duration
from steptrace.words.lines import Look, TextLine

#: The longest time that an option takes: a year.
_MOST_MINUTES: Final = 525_600
#: More GB/s than any link has, so a larger number is in another unit.
_MOST_GB_PER_S: Final = 1e5
#: Seconds between two lines of progress.
_EVERY_S: Final = 5.0
#: The time in seconds after which the time left is known well enough for a warning.
_KNOWN_S: Final = 2.0
#: A warning is worth it if this many seconds are left.
_LONG_S: Final = 60.0


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


def bandwidth(text: str) -> float:
    """A bandwidth above 0 in GB/s, as bytes per second."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < _MOST_GB_PER_S:
            return 1e9 * value
    raise argparse.ArgumentTypeError(f"invalid number '{text}': expected GB/s above 0, such as 25 or 450")


def gpu_names(text: str) -> tuple[str, ...]:
    """The names in the value of `--gpu`, separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def batches(text: str) -> tuple[int, ...]:
    """The numbers in the value of `--batch`, ascending."""
    return tuple(sorted({positive(number.strip()) for number in text.split(",")}))


def show(arguments: argparse.Namespace, document: Any, text: str | Sequence[str | TextLine]) -> None:
    """Print a command's result: `document`, one of `documents.command_answers`, with `--json`, and otherwise `text`.

    Lines with a role have a colour on a terminal.
    """
    end_status()
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(document), indent=2), flush=True)  # noqa: T201
        return
    lines = [text] if isinstance(text, str) else text
    shown = (_in_colour(line) if isinstance(line, TextLine) else printable(line) for line in lines)
    print("\n".join(shown), flush=True)  # noqa: T201


#: How a terminal shows lines by role: bold for the answer, green for what to do, pale for notes.
_LOOKS: Final[Mapping[Look, str]] = {"answer": "1", "first": "1;32", "note": "2"}


def _in_colour(line: TextLine) -> str:
    look = _LOOKS.get(line.look)
    text = printable(line.text)
    return text if look is None or not has_colour(sys.stdout) else f"\x1b[{look}m{text}\x1b[0m"


def has_colour(stream: Any) -> bool:
    """Whether a stream is a terminal, and colours are not switched off by NO_COLOR (https://no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream is not None and bool(stream.isatty())  # a closed stream is None


_status_shown = False


def status(text: str) -> None:
    """Show progress on a terminal, in a line that the next one replaces; do nothing if stderr is no terminal."""
    global _status_shown
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print(f"\r\x1b[2Ksteptrace: {printable(text)}", end="", file=sys.stderr, flush=True)  # noqa: T201
        _status_shown = True


def end_status() -> None:
    """Remove the line that `status` shows, if there is one."""
    global _status_shown
    if _status_shown:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)  # noqa: T201
        _status_shown = False


def warn(text: str) -> None:
    """Print a warning on stderr."""
    end_status()
    print(f"steptrace: warning: {printable(text)}", file=sys.stderr)  # noqa: T201


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Turn an operating system's error while writing to `place` into a `SteptraceError` that names the file."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        named = Path(os.fsdecode(error.filename)) if error.filename is not None else place
        where = named if named.is_relative_to(place) else place
        next_step = next_step_of(error)
        raise SteptraceError(f"cannot be written ({reason})", where=where, next_step=next_step) from error


def say(line: str) -> None:
    """Print the progress of a started program to stderr."""
    end_status()
    print(f"steptrace: {line}", file=sys.stderr, flush=True)  # noqa: T201


class Progress:
    """Prints progress to stderr: on a terminal at once, elsewhere once it takes a while.

    Args:
        what: what is counted, such as `traces read`.
        shorter: how to make it shorter; printed once, as a warning, as soon as more than a minute is left.
    """

    def __init__(self, what: str, *, shorter: str | None = None) -> None:
        self._what = what
        self._shorter = shorter
        self._began = self._last_line = time.monotonic()
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        """Call this after each thing that is done, with their number and the number of all."""
        now = time.monotonic()
        self._first = self._first or (now, done)
        since, before = self._first
        # The first one takes longer than the others, since processes are started for it.
        each_s = (now - since) / (done - before) if done > before else (now - self._began) / done
        left_s = each_s * (total - done)
        if self._shorter is not None and now - since >= _KNOWN_S and left_s > _LONG_S:
            warn(f"{total} {self._what} will take about {rough_duration(left_s)}: {self._shorter}")
            self._shorter = None
        if done < total:
            status(f"{done} of {total} {self._what}")
        if done < total and now - self._last_line >= _EVERY_S:
            self._last_line = now
            say(f"{done} of {total} {self._what}, about {rough_duration(left_s)} left; Ctrl-C ends it")
