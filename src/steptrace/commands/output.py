"""What commands write: text for a person or JSON for a program, colours and progress on a terminal only."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

from steptrace.terminal import printable

Colour = Literal["red", "yellow", "green", "bold"]

_CODES: Final[dict[Colour, str]] = {"red": "31", "yellow": "33", "green": "32", "bold": "1"}
_CLEAR_LINE: Final = "\r\x1b[K"


def add_json(command: argparse.ArgumentParser) -> None:
    """Add `--json`, which every command has."""
    command.add_argument("--json", action="store_true", help="print JSON on standard output, and nothing else")


def show(arguments: argparse.Namespace, document: Any, text: str) -> None:
    """Print a command's result: `document` with `--json`, else `text`. Paths become text."""
    print(json.dumps(document, indent=2, default=str) if arguments.json else printable(text), flush=True)  # noqa: T201


def coloured(text: str, colour: Colour, stream: TextIO) -> str:
    """`text` in a colour if `stream` is a terminal that shows colours."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if _is_terminal(stream) and "NO_COLOR" not in os.environ else text


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"{coloured('steptrace: warning:', 'yellow', sys.stderr)} {printable(text)}", file=sys.stderr)  # noqa: T201


@contextmanager
def progress() -> "Iterator[Progress]":
    """A line on stderr that says what is being done; it is gone at the end, and never there but on a terminal."""
    line = Progress(sys.stderr)
    try:
        yield line
    finally:
        line.clear()


class Progress:
    """One line of a terminal, written again and again."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if _is_terminal(stream) else None

    def say(self, text: str) -> None:
        """Replace the line."""
        if self._stream is not None:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
            self._stream.write(_CLEAR_LINE + printable(text)[: width - 1])
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._stream is not None:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
