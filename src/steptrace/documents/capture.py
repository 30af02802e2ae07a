"""What is read again of a capture.json, the record that `steptrace.recording` writes beside a trace."""

from pathlib import Path
from typing import Final

import msgspec

_END: Final = ".json.gz"


class Unprofiled(msgspec.Struct, frozen=True):
    """The unprofiled steps before a trace, in ns, and the machine's load average with its number of CPUs."""

    median_ns: int
    step_ns: list[int]
    load_average: float
    cpus: int


class Capture(msgspec.Struct, frozen=True):
    """A trace's record; `unprofiled` is None where no steps were timed before it."""

    unprofiled: Unprofiled | None


def capture_of(trace: Path) -> Capture | None:
    """The record beside a trace; None without one that can be read, as any file may have its name."""
    name = f"{trace.name.replace('trace', 'capture', 1).removesuffix(_END)}.json"
    try:
        content = trace.with_name(name).read_bytes() if trace.name.endswith(_END) and "trace" in trace.name else b""
        return msgspec.json.decode(content, type=Capture)
    except (OSError, ValueError):
        return None
