"""Real GPU traces, which are no part of this repository: a folder beside the checkout, or $STEPTRACE_TRACES."""

import os
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from steptrace.analysis import load_trace
from steptrace.trace.model import Trace

TRACES: Final = Path(os.environ.get("STEPTRACE_TRACES") or Path(__file__).parents[2] / "shared" / "traces")
NAMES: Final = sorted(path.name for path in TRACES.glob("*.json.gz"))

needs_traces = pytest.mark.skipif(
    not NAMES, reason=f"no recorded traces in {TRACES}: set STEPTRACE_TRACES to their folder"
)


def recorded(name: str) -> Path:
    """The file of a recorded trace; skips the test where there is none."""
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name} in {TRACES}: set STEPTRACE_TRACES to the folder of recorded traces")
    return path


@cache
def trace_of(name: str) -> Trace:
    """A recorded trace, read once for all tests of a process, which leave it as it is."""
    return load_trace(recorded(name.removesuffix(".json.gz")))


#: Small traces rebuilt from public reports, in a folder beside that of the recorded traces.
CASES: Final = TRACES.parent / "cases" / "traces"


def case(name: str, file: str = "trace.json") -> Path:
    """The file of a trace of a public report; skips the test where there is none."""
    path = CASES / name / file
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path


def case_trace(name: str, file: str = "trace.json") -> Trace:
    """A trace of a public report."""
    return load_trace(case(name, file))
