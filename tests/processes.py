"""Processes of others, as a test waits for what becomes of them."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], object], seconds: float = 900.0) -> None:
    """Return once the condition holds; fail the test where it takes longer."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether there is no such process, or only its exit code is left (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
