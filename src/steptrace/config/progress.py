"""Reports progress on stderr while a plan takes long."""

import sys
import time
from typing import Final

#: Seconds to the first line, and from one line to the next.
_FIRST_S: Final = 3.0
_EVERY_S: Final = 10.0


class PlanProgress:
    """Counts finished pieces of work, and prints the count from time to time.

    Args:
        done: the noun and participle of the line, such as "configurations composed".
    """

    def __init__(self, done: str) -> None:
        self._done = done
        self._count = 0
        self._next = time.monotonic() + _FIRST_S

    def look(self) -> None:
        """Count one more piece; print a line if the last one was long ago."""
        self._count += 1
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            sys.stderr.write(f"steptrace: planning: {self._count} {self._done}\n")
            sys.stderr.flush()
