"""The parts of a step's critical path as marks of an excerpt, for a trace viewer."""

from collections.abc import Sequence
from typing import Final

from steptrace.analysis.critical_path import critical_paths
from steptrace.trace.columns import row_numbers
from steptrace.trace.excerpt import Mark
from steptrace.trace.model import Trace

#: What the parts of the path say in a trace viewer, by their class.
_WORDS: Final = {
    "host": "host runs",
    "loader": "host waits for the loader",
    "sync": "sync returns",
    "launch": "launch to start",
    "queue": "GPU work before it",
}


def critical_path_marks(trace: Trace, row: int) -> Sequence[Mark]:
    """The parts of the critical path of a step, in order; a part of GPU work has the work's name.

    Args:
        trace: the trace.
        row: the step's row in the table of steps.
    """
    path = critical_paths(trace)
    path = path[row_numbers(path["step"]) == row]
    kernels = trace.kernels["name"]
    marks = []
    for ts, dur, kind, kernel in zip(path["ts"], path["dur"], path["class"], row_numbers(path["kernel"]), strict=True):
        what = f"{_WORDS.get(kind, kind)}: {kernels.iloc[kernel]}" if kernel >= 0 else _WORDS.get(kind, kind)
        marks.append(Mark(int(ts), int(dur), what))
    return marks
