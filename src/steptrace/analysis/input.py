"""Whether steps wait for their data: time in the loader's `__next__`, and the part of it that counts.

PyTorch labels every `__next__` of a DataLoader. For a loop without one that sets our labels, the wait is `data` less
the `copy data` inside. Waiting while the GPU still works costs nothing: with a GPU only waits with the GPU idle count,
without one all of them.

Thresholds are the TensorFlow Profiler's: input-bound moderately from 5 % of the step time on, highly from 20 %.
"""

import statistics
from typing import Any, Literal

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import activity
from steptrace.analysis.common.registry import part, table
from steptrace.analysis.steps import Alike, steps_alike, unprofiled_steps
from steptrace.documents.input import Input, InputVerdict, InputWaitOfStep
from steptrace.documents.run import Unprofiled
from steptrace.documents.table import frame_of, rows
from steptrace.intervals import Ints, Spans
from steptrace.limits import HIGH_SHARE, MODERATE_SHARE
from steptrace.trace.columns import counted, ended_before, map_names, references, spans_of
from steptrace.trace.model import Trace, on_training, once
from steptrace.trace.names import LOADER_LABEL

_DATA = "data"
_COPY = "copy data"


def verdict_on(share: float | None) -> InputVerdict | None:
    """The verdict for a share (0 to 1) of the step time spent waiting for data; None for an unknown share."""
    if share is None:
        return None
    if share >= HIGH_SHARE:
        return "high"
    if share >= MODERATE_SHARE:
        return "moderate"
    return "none"


@table("input_waits", InputWaitOfStep)
@once
def input_waits(trace: Trace) -> pd.DataFrame:
    """The waits of each step (table `input_waits`); empty without signs of a loader.

    A step here is the host's `ProfilerStep#N`, since the host waits. Waits outside the steps do not count.
    """
    waits = _waits(trace)
    if waits is None:
        return frame_of(InputWaitOfStep)
    _, begun, waiting = waits
    start, end = _bounds(trace)
    whole = len(trace.steps) == 0
    idle_wait = None
    if trace.device is not None:
        idle = intervals.subtract(waiting, activity(trace).busy)
        idle_wait = intervals.measure_within(idle, start, end)
    return frame_of(
        InputWaitOfStep,
        {
            "step": references(np.array([-1]) if whole else np.arange(len(start))),
            "index": counted(np.array([-1])) if whole else trace.steps["index"].to_numpy(),
            "host_ns": end - start,
            "waits": np.searchsorted(begun, end, side="left") - np.searchsorted(begun, start, side="left"),
            "wait_ns": intervals.measure_within(waiting, start, end),
            "gpu_idle_wait_ns": idle_wait,
        },
    )


@part("input")
def waits_for_input(trace: Trace) -> Input:
    """`input_wait` with the unprofiled steps that were recorded beside the trace."""
    return input_wait(trace, unprofiled_steps(trace), steps_alike(trace))


def input_wait(trace: Trace, unprofiled: Unprofiled | None = None, kinds: Alike | None = None) -> Input:
    """The waits of all steps (sums of the table `input_waits`) and of each; None if the trace cannot show them.

    With a GPU the window is from the first step's start to the end of the last step's work. Without one it is the steps
    on the host.

    Args:
        trace: the trace.
        unprofiled: the steps before it. Where their waits were recorded the share is theirs.
        kinds: the kinds of the profiled steps. Without such waits each counts as often as it comes.
    """
    device = trace.device
    signs = _waits(trace)
    table = input_waits(trace)
    start, end = _bounds(trace) if device is None else trace.steps_span
    steps = len(trace.steps) or None
    window_ns = int(np.sum(end - start))
    waits = None
    wait_ns = None
    idle_ns = None
    if signs is not None:
        waits = int(table["waits"].sum())
        wait_ns = int(table["wait_ns"].sum())
        idle_ns = None if device is None else int(table["gpu_idle_wait_ns"].sum())
    counted_ns = wait_ns if idle_ns is None else idle_ns
    share = None if counted_ns is None or not window_ns else counted_ns / window_ns
    if kinds is not None and len(kinds.kinds) > 1 and len(kinds.of_kind) == len(table):
        counted = kinds.mean(table["wait_ns" if idle_ns is None else "gpu_idle_wait_ns"].tolist())
        length = kinds.mean(kinds.profiled)
        share = share if counted is None or not length else counted / length
    before = _unprofiled(unprofiled)
    # Of waits of unprofiled steps the part counts that had the GPU idle in profiled ones.
    if device is None:
        part = 1.0
    elif idle_ns is None or not wait_ns:
        part = None
    else:
        part = idle_ns / wait_ns
    if before is not None and part is not None and before[1]:
        share = part * before[0] / before[1]
    return Input(
        source=None if signs is None else signs[0],
        steps=steps,
        window_ns=window_ns,
        waits=waits,
        wait_ns=wait_ns,
        gpu_idle_wait_ns=idle_ns,
        counted_ns=counted_ns,
        share=share,
        verdict=verdict_on(share),
        by_step=rows(table, InputWaitOfStep) if steps else (),
        unprofiled_wait_ns=None if before is None else round(before[0]),
        unprofiled_step_ns=None if before is None else round(before[1]),
    )


def _unprofiled(unprofiled: Unprofiled | None) -> tuple[float, float] | None:
    """The mean wait of an unprofiled step, and its mean length, in ns; None where no waits were recorded."""
    if unprofiled is None or not unprofiled.wait_ns or len(unprofiled.wait_ns) != len(unprofiled.step_ns):
        return None
    return statistics.mean(unprofiled.wait_ns), statistics.mean(unprofiled.step_ns)


@once
def _waits(trace: Trace) -> tuple[Literal["loader", "label"], Ints, Spans] | None:
    """The source of the waits, their starts (sorted) and their union; None without signs of a loader."""
    loader = _labelled(trace, lambda name: bool(LOADER_LABEL.match(name)))
    if len(loader):
        return "loader", np.sort(loader[:, 0]), intervals.union(loader)
    data, copy = (_labelled(trace, lambda name, label=label: name == label) for label in (_DATA, _COPY))
    if len(data) == 0 or len(copy) == 0:
        return None
    return "label", np.sort(data[:, 0]), intervals.subtract(intervals.union(data), intervals.union(copy))


def _labelled(trace: Trace, wanted: Any) -> Spans:
    """The spans of wanted labels on training threads; of nested ones only the outer."""
    labels = trace.labels
    rows = labels[map_names(labels["name"], wanted) & on_training(trace, labels)].sort_values(
        ["thread", "ts", "dur"], ascending=[True, True, False], kind="stable"
    )
    # By time and not by the labels' nesting, which is wrong for a label that crosses the boundary of a step.
    spans = spans_of(rows)
    return spans[spans[:, 1] > ended_before(rows, ["thread"])]


def _bounds(trace: Trace) -> tuple[Ints, Ints]:
    """Start and end of each step on the host, or of the trace without steps."""
    if len(trace.steps) == 0:
        first, last = trace.window
        return np.array([first]), np.array([last])
    start = trace.steps["ts"].to_numpy()
    return start, start + trace.steps["host_dur"].to_numpy()
