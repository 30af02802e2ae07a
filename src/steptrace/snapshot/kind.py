"""Tells a memory snapshot from a trace. Every `analyze` asks it, so it imports nothing that only snapshots need."""

from pathlib import Path
from typing import Final

from steptrace.files import open_file

#: The first byte of a pickle of protocol 2 or newer. JSON and gzip begin otherwise.
_PICKLE: Final = b"\x80"


def is_snapshot(path: Path) -> bool:
    """Whether a file is a pickle by its first byte, as snapshots are; traces are JSON."""
    try:
        with open_file(path) as file:
            return file.read(1) == _PICKLE
    except OSError:
        return False
