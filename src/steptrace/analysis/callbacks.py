"""The time of callbacks around a step, and how long the GPU is idle meanwhile."""

import re
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.gaps import gap_causes
from steptrace.analysis.common.registry import table_part
from steptrace.documents.subjects.callbacks import Callback
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints
from steptrace.trace.columns import map_names, nearest, row_numbers, start_end, take
from steptrace.trace.model import Trace, on_training, once
from steptrace.trace.names import parse_frame

#: How Lightning (`[pl][profile][Callback]EarlyStopping.on_train_batch_end`), transformers (`on_step_end`), Keras
#: (`on_train_batch_end`) and fastai (`after_batch`) name them.
_CALLBACK: Final = re.compile(r"(?:^|[ .:\]])(?:on_(?:\w+_)?(?:batch|step)_(?:begin|start|end)|after_(?:batch|step))$")


def _is_callback(name: str) -> bool:
    return _CALLBACK.search(name) is not None


@table_part("callbacks")
@once
def callbacks(trace: Trace) -> pd.DataFrame:
    """Callbacks by their function or label (table `callbacks`), the longest in all first.

    Labels count only in a trace whose Python frames show no callback, as both tell of the same calls.
    """
    for events in (trace.frames, trace.labels):
        called = map_names(events["name"], _is_callback) & on_training(trace, events)
        if called.any():
            return _callbacks_table(trace, events, np.flatnonzero(called))
    return frame_of(Callback)


def _callbacks_table(trace: Trace, events: pd.DataFrame, rows: Ints) -> pd.DataFrame:
    start, end = (times[rows] for times in start_end(events))
    host_ns = end - start
    idle_ns = np.zeros_like(host_ns) if trace.device is None else _idle_ns(trace, start, end)
    around = _called_by(events, rows)
    inner = around >= 0
    own_host, own_idle = host_ns.copy(), idle_ns.copy()
    np.subtract.at(own_host, around[inner], host_ns[inner])
    np.subtract.at(own_idle, around[inner], idle_ns[inner])
    calls: Any = {"name": events["name"].iloc[rows].astype(str).to_numpy(), "host_ns": own_host, "idle_ns": own_idle}
    groups = pd.DataFrame(calls).groupby("name", sort=False)
    table = groups.agg(
        count=("host_ns", "size"), longest_ns=("host_ns", "max"), host_ns=("host_ns", "sum"), idle_ns=("idle_ns", "sum")
    ).reset_index()
    if trace.device is None:
        table["idle_ns"] = None
    frames = [parse_frame(name) for name in table["name"]]
    table = table.assign(
        file=pd.Series([None if frame is None else frame.file for frame in frames], dtype=object),
        line=pd.array([None if frame is None else frame.line for frame in frames], dtype="Int64"),
        function=[name if frame is None else frame.function for name, frame in zip(table["name"], frames, strict=True)],
    )
    ordered = table.drop(columns="name").sort_values("host_ns", ascending=False, kind="stable")
    return frame_of(Callback, ordered)


def _idle_ns(trace: Trace, start: Ints, end: Ints) -> Ints:
    """How long the GPU is idle in each call, between its first and its last work."""
    gaps, _ = gap_causes(trace)
    return intervals.measure_within(gaps, start, end)


def _called_by(events: pd.DataFrame, rows: Ints) -> Ints:
    """For each call the index of the nearest call around it, among these calls; -1 without one."""
    wanted = np.zeros(len(events), dtype=bool)
    wanted[rows] = True
    parent = row_numbers(events["parent"])
    around = take(nearest(parent, wanted), parent)[rows]
    positions = np.full(len(events) + 1, -1, dtype=np.int64)
    positions[rows] = np.arange(len(rows))
    return positions[around]
