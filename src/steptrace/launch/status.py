"""A program's progress in one line: `warm-up 10/10, timed 12/30, no step for 40 s`."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from steptrace.launch.settings import PROGRESS

#: Seconds after which a line is printed within a phase, too.
_EVERY_S: Final = 30.0
#: Seconds from which a wait is mentioned.
_LONG_S: Final = 5.0


class StatusLine:
    """Prints the program's progress, which its probe writes into a folder.

    Args:
        out: the probe's folder.
        show: gets each line.
    """

    def __init__(self, out: Path, show: Callable[[str], object]) -> None:
        self.out, self._file, self._show = out, out / PROGRESS, show
        self._text, self._over = "", 0
        self._changed_at = self._shown_at = time.monotonic()

    def look(self) -> None:
        """Read the progress; print it at the end of a phase, or if nothing was printed for long."""
        now, text = time.monotonic(), self._text
        with suppress(OSError):
            text = self._file.read_text(encoding="utf-8")
        if text != self._text:
            self._text, self._changed_at = text, now
        counts = [phase.rpartition(" ")[2].split("/") for phase in text.split(", ") if phase]
        over = sum(done == total for done, total in counts)
        if over > self._over or now - self._shown_at >= _EVERY_S:
            self._over, self._shown_at = over, now
            self._show(self._line(now - self._changed_at))

    def _line(self, waiting_s: float) -> str:
        if not self._text:
            return f"no step yet after {waiting_s:.0f} s"
        waiting = f", no step for {waiting_s:.0f} s" if waiting_s >= _LONG_S else ""
        return f"{self._text}{waiting}"
