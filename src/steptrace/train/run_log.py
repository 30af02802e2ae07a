"""The output of a supervised child: kept in a file, its progress told, its end remembered for the status."""

import os
import re
import sys
import time
from collections import deque
from pathlib import Path

from steptrace.progress import BRIEF
from steptrace.terminal import printable

#: Until then a run is not said to have come anywhere, where others say how it ends.
_SOON_S = 10.0
_PROGRESS = re.compile(r"\S.* \d+/\d+\s*\Z")


class Log:
    """A child's output: everything to the file, progress to stderr, the end kept for the status.

    Where `brief` is set only what takes long says how far it has come: whoever watches is told the rest by others.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._file = path.open("wb")
        self._label = label
        self.brief = bool(os.environ.get(BRIEF))
        self._says_from = time.monotonic() + (_SOON_S if self.brief else 0)
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=400)

    @property
    def lines(self) -> list[str]:
        """The last lines, without line ends."""
        return list(self._lines)

    def write(self, content: bytes) -> None:
        """Take some more of the output."""
        self._file.write(content)
        self._file.flush()
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._line(line)

    def close(self) -> None:
        """Take what is left without a line end."""
        if self._rest:
            self._line(self._rest)
        self._file.close()

    def say(self, text: str) -> None:
        """One line of progress for whoever watches."""
        say(self._label, text)

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if text.strip():
            self._lines.append(text)
        if _PROGRESS.fullmatch(text) and time.monotonic() >= self._says_from:
            self.say(text.strip())


def say(label: str, text: str) -> None:
    """One line of progress on stderr."""
    sys.stderr.write(printable(f"{label}: {text}\n"))
    sys.stderr.flush()
