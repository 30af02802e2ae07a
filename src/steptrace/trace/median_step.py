"""Which step stands for a trace: the one that a picture shows and an excerpt keeps."""

import numpy as np

from steptrace.trace.model import Trace


def median_step(trace: Trace) -> int | None:
    """The row of the median step by time; steps without GPU work do not count where others have some.

    Of an even number it is the shorter of the two in the middle, so that it is a step that ran. None without steps.
    """
    if len(trace.steps) == 0:
        return None
    working = np.unique(trace.kernels["step"].dropna().to_numpy(dtype=np.int64))
    rows = working if len(working) else np.arange(len(trace.steps))
    by_time = np.argsort(trace.steps["dur"].to_numpy()[rows], kind="stable")
    return int(rows[by_time[(len(rows) - 1) // 2]])
