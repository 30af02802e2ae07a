"""The events in each lane of the picture of a step: threads, runtime calls, waits, idle gaps, streams.

`steptrace.analysis.timeline.measure` defines the lanes, and makes boxes of the events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from steptrace.analysis.common.call_tree import depths
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.idle import idle_gaps
from steptrace.analysis.syncs import sync_costs
from steptrace.format import plural
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, map_names, marks_steps, nearest, row_numbers, start_end, take
from steptrace.trace.model import Trace, median_step

#: Most threads and streams with a lane; a training rank has few that work.
MOST_THREADS, MOST_STREAMS = 5, 8
#: Levels of labels, and of operators without and with a GPU, whose lanes show the rest.
_LABEL_LEVELS, _OP_LEVELS, _OP_LEVELS_WITH_GPU = 2, 2, 1


@dataclass(frozen=True)
class Shown:
    """The time that the picture shows, in ns since the trace's first event.

    `step` is the row of the step, None where all of the trace is shown; `host_end` is when the host left the step,
    whose work on the GPU can go on until `end`.
    """

    step: int | None
    start: int
    end: int
    host_end: int | None


@dataclass(frozen=True)
class Lane:
    """A lane with its events: one row an event, `level`, `kind`, `name`, `start`, `end`, cut off at the edges."""

    kind: str
    name: str
    events: pd.DataFrame


def shown_time(trace: Trace) -> Shown:
    """The median step by time, or the whole trace."""
    row = median_step(trace)
    if row is None:
        return Shown(None, trace.window[0], max(trace.window[1], trace.window[0] + 1), None)
    step = trace.steps.iloc[row]
    start = int(step["ts"])
    return Shown(row, start, start + max(int(step["dur"]), 1), start + int(step["host_dur"]))


def lanes_of(trace: Trace) -> tuple[list[Lane], list[str]]:
    """The lanes from top to bottom, without empty ones; how many threads and streams there is no lane for."""
    time, with_gpu = shown_time(trace), trace.device is not None
    lanes, more_threads = _threads(trace, time, _OP_LEVELS_WITH_GPU if with_gpu else _OP_LEVELS)
    lanes += [_calls(trace, time), _syncs(sync_costs(trace), time)]
    more_streams = 0
    if with_gpu:
        streams, more_streams = _streams(trace, time)
        lanes += [_idle(idle_gaps(trace), time), *streams]
    left_out = [plural(more, what) for more, what in ((more_threads, "thread"), (more_streams, "stream")) if more]
    return [lane for lane in lanes if len(lane.events)], left_out


def _events(rows: pd.DataFrame, level: Ints, kind: Sequence[str], name: Sequence[str], time: Shown) -> pd.DataFrame:
    """Events of a lane, from rows of a table of the trace with `ts` and `dur` that lie within the time shown."""
    ts, end = start_end(rows)
    texts = {column: pd.Series(list(values), dtype=object) for column, values in (("kind", kind), ("name", name))}
    cut = {"start": np.maximum(ts, time.start), "end": np.minimum(end, time.end)}
    return pd.DataFrame({"level": np.asarray(level, dtype=np.int64), **texts, **cut})


def _chosen(table: pd.DataFrame, time: Shown, wanted: Mask | None = None) -> Ints:
    """Rows of the events that overlap the time shown, or are a point in it."""
    ts, end = start_end(table)
    inside = (ts < time.end) & ((end > time.start) | (ts >= time.start))
    rows: Ints = np.flatnonzero(inside if wanted is None else inside & wanted).astype(np.int64)
    return rows


def _threads(trace: Trace, time: Shown, op_levels: int) -> tuple[list[Lane], int]:
    """The host threads with labels or operators in the time shown, and how many more there are."""
    # Without the marks of steps, and without the autograd engine's wrappers, which hide their nodes.
    labels, label_level = _outermost(trace.labels, time, ~marks_steps(trace.labels), _LABEL_LEVELS)
    nodes = map_names(trace.ops["name"], lambda name: not name.startswith(naming.ENGINE))
    ops, op_level = _outermost(trace.ops, time, nodes, op_levels)
    columns = ["ts", "dur", "thread", "name"]
    rows = pd.concat([trace.labels[columns].iloc[labels], trace.ops[columns].iloc[ops]])
    is_op, thread = np.repeat([False, True], [len(labels), len(ops)]), rows["thread"].to_numpy()
    names = rows["name"].astype(str).tolist()
    kinds = [_kind(name, "op" if op else "label") for name, op in zip(names, is_op, strict=True)]
    events = _events(rows, np.concatenate([label_level, op_level]), kinds, names, time)
    lanes = []
    present = _order(trace, time, thread, events)
    for number in present[:MOST_THREADS]:
        own = thread == number
        part, ops_here = events[own].copy(), is_op[own]
        # Operators stand below as many levels of labels as this thread has.
        above = int(part["level"][~ops_here].max()) + 1 if (~ops_here).any() else 0
        part["level"] += np.where(ops_here, above, 0)
        lanes.append(Lane("host", _thread_name(trace, time, number), part))
    return lanes, len(present) - len(lanes)


def _kind(name: str, usual: str) -> str:
    if naming.LOADER_LABEL.match(name):
        return "loader"
    return "comm" if naming.is_collective_op(name) or name.startswith("gloo:") else usual


def _outermost(table: pd.DataFrame, time: Shown, own: Mask, levels: int) -> tuple[Ints, Ints]:
    """Rows of the `own` events of a table that are shown, with less than `levels` of them around, and how many are."""
    parent = row_numbers(table["parent"])
    level = depths(take(nearest(parent, own), parent))
    rows = _chosen(table, time, own & (level < levels))
    return rows, level[rows]


def _order(trace: Trace, time: Shown, thread: Ints, events: pd.DataFrame) -> list[int]:
    """The threads in the order of their lanes."""
    length = (events["end"] - events["start"]).to_numpy()
    total = np.bincount(thread, weights=length, minlength=len(trace.threads))
    training = trace.threads["training"].to_numpy(dtype=bool)
    marks = -1 if time.step is None else int(trace.steps["thread"].iloc[time.step])
    present = [int(number) for number in np.unique(thread)]
    return sorted(present, key=lambda number: (number != marks, not training[number], -total[number], number))


def _thread_name(trace: Trace, time: Shown, number: int) -> str:
    """The thread's role, if the trace shows it, and its id."""
    row = trace.threads.iloc[number]
    given = row["name"] if isinstance(row["name"], str) else "thread"
    role = f"host, {given}"
    if time.step is not None and int(trace.steps["thread"].iloc[time.step]) == number:
        role = "host, training thread"
    elif row["training"] and bool(trace.ops["backward"].to_numpy()[trace.ops["thread"].to_numpy() == number].any()):
        role = "host, autograd thread"
    elif _runs(trace, number, "_pin_memory_loop"):
        role = "host, pin-memory thread"
    return role if row["tid"] in role else f"{role} ({row['tid']})"


def _runs(trace: Trace, number: int, function: str) -> bool:
    """Whether a Python function of this name runs on the thread."""
    frames = trace.frames[trace.frames["thread"].to_numpy() == number]
    return any(function in str(name) for name in frames["name"].unique())


def _calls(trace: Trace, time: Shown) -> Lane:
    """Calls into the runtime: a level for each of the threads that do training work, the other threads below."""
    table = trace.launches
    rows = _chosen(table, time)
    launching = np.zeros(len(table), dtype=bool)
    launch = row_numbers(trace.kernels["launch"])
    launching[launch[launch >= 0]] = True
    thread = table["thread"].to_numpy()[rows]
    training = trace.threads["training"].to_numpy(dtype=bool)
    present = sorted({int(number) for number in thread}, key=lambda number: (not training[number], number))
    level = {number: min(place, 2) for place, number in enumerate(present)}
    kinds = np.where(launching[rows], "launch", "call").tolist()
    names = [str(name) for name in table["name"].iloc[rows]]
    levels = np.array([level[int(number)] for number in thread], dtype=np.int64)
    return Lane("calls", "calls into the GPU's runtime", _events(table.iloc[rows], levels, kinds, names, time))


def _syncs(costs: pd.DataFrame, time: Shown) -> Lane:
    """The counted syncs, named by their site."""
    rows = _chosen(costs, time, costs["counted"].to_numpy(dtype=bool))
    shown = costs.iloc[rows]
    names = [_site(*site) for site in zip(shown["file"], shown["line"], shown["op"], shown["kind"], strict=True)]
    level = np.zeros(len(rows), dtype=np.int64)
    return Lane("syncs", "syncs", _events(shown, level, ["sync"] * len(rows), names, time))


def _site(file: object, line: object, op: object, kind: object) -> str:
    what = op if isinstance(op, str) else str(kind)
    if not isinstance(file, str):
        return what
    return f"{Path(file).name}:{line} {what}" if isinstance(line, int | np.integer) else f"{Path(file).name} {what}"


def _idle(gaps: pd.DataFrame, time: Shown) -> Lane:
    """The gaps of the GPU, named by the work after them."""
    shown = gaps.iloc[_chosen(gaps, time)]
    ended = [
        op if isinstance(op, str) else name for op, name in zip(shown["op"], shown["name"].astype(str), strict=True)
    ]
    level = np.zeros(len(shown), dtype=np.int64)
    return Lane("idle", "GPU idle", _events(shown, level, [f"idle_{cause}" for cause in shown["cause"]], ended, time))


def _streams(trace: Trace, time: Shown) -> tuple[list[Lane], int]:
    """The GPU's busiest streams by number, and how many more there are."""
    device = trace.device
    table = trace.kernels
    rows = table.iloc[_chosen(table, time, (table["device"] == device).to_numpy())]
    short = {name: short_name(str(name)) for name in rows["name"].unique()}
    level = np.zeros(len(rows), dtype=np.int64)
    events = _events(rows, level, rows["kind"].astype(str).tolist(), [short[name] for name in rows["name"]], time)
    stream = rows["stream"].to_numpy()
    total = (events["end"] - events["start"]).groupby(stream).sum().sort_index().sort_values(kind="stable")
    busiest = sorted(total.index[-MOST_STREAMS:])
    lanes = [Lane("stream", f"GPU {device}, stream {number}", events[stream == number]) for number in busiest]
    return lanes, len(total) - len(lanes)
