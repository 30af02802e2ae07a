"""Communication that the host does itself: gloo's collectives on a CPU, each on a thread of its own.

PyTorch labels each one (`gloo:all_reduce`) on the thread that carries it out. What hides it is an operator on a thread
that does training work: where none runs, the training waits. On cores that both share, hidden work is not free.
Where the profiler recorded no operators, what was hidden is not known.
"""

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.intervals import Spans
from steptrace.trace.columns import judge_names, spans_of
from steptrace.trace.model import Trace, on_training
from steptrace.trace.names import host_collective, is_collective_op


def host_collectives(trace: Trace) -> pd.DataFrame:
    """The collectives that the host carried out, in order of time: the table `HOST_COLLECTIVES`."""
    labels = trace.annotations
    called = judge_names(labels["name"], host_collective, object)
    rows = np.flatnonzero(pd.notna(called))
    rows = rows[np.argsort(labels["ts"].to_numpy()[rows], kind="stable")]
    found = labels.iloc[rows]
    start, length = found["ts"].to_numpy(), found["dur"].to_numpy()
    compute = host_compute(trace)
    exposed = None if compute is None else length - intervals.measure_within(compute, start, start + length)
    return pd.DataFrame(
        {
            "annotation": rows.astype(np.int64),
            "collective": pd.Series(called[rows], dtype=object),
            "thread": found["thread"].to_numpy(),
            "step": found["step"].array,
            "ts": start,
            "dur_ns": length,
            "exposed_ns": pd.array([pd.NA] * len(rows) if exposed is None else exposed, dtype="Int64"),
            "bytes": found["bytes"].array,
        }
    )


def host_compute(trace: Trace) -> Spans | None:
    """When operators ran on threads that do training work, calls of collectives aside; in normal form.

    None if the trace holds no operator of such a thread, in its steps if it has any: the profiler did not record them.
    """
    ops = trace.ops
    training = on_training(trace, ops)
    recorded = training & ops["step"].notna().to_numpy() if len(trace.steps) else training
    if not recorded.any():
        return None
    rows = training & ~judge_names(ops["name"], is_collective_op)
    return intervals.union(spans_of(ops.loc[rows, ["ts", "dur"]]))
