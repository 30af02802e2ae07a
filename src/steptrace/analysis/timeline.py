"""The picture of one step: boxes in lanes of host threads, syncs, idle gaps and streams.

The step is the median one of the trace; without steps all of the trace is shown. Events in that time are shown,
whichever step launched them, cut off at its edges. On the host, where threads train or communicate, labels stand above
operators; syncs are named by their site, and idle gaps of the analysed GPU by the work after them.

A picture has some thousand columns of pixels, and a step can have a hundred thousand events. So events shorter than
`window / RESOLUTION` of one kind and level share a box with those that begin in the same cell of `CELL` such lengths;
it says how many they are, and their time. With more than `MOST_BOXES` boxes that length is doubled until there are
fewer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from steptrace.analysis.common.call_tree import depths
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.idle import idle_gaps
from steptrace.analysis.syncs import sync_costs
from steptrace.documents.timeline import Lane, Timeline
from steptrace.format import plural
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, map_names, marks_steps, nearest, row_numbers, start_end, take
from steptrace.trace.model import Trace, median_step, on_training

#: Events shorter than this part of the time shown are indistinguishable in a picture.
RESOLUTION: Final = 1000
CELL: Final = 4
MOST_BOXES: Final = 500
#: Most streams with a lane.
MOST_STREAMS: Final = 8
#: Levels of labels, and of operators without and with a GPU, whose lanes show the rest.
_LABEL_LEVELS, _OP_LEVELS, _OP_LEVELS_WITH_GPU = 2, 2, 1
_LONGEST_NAME: Final = 100


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


#: A lane's kind, its name, and a row for each of its events: `level`, `kind`, `name`, `start`, `end`; times count from
#: the start of the time shown.
Events = tuple[str, str, pd.DataFrame]


def shown_time(trace: Trace) -> Shown:
    """The median step by time, or the whole trace."""
    row = median_step(trace)
    if row is None:
        return Shown(None, trace.window[0], max(trace.window[1], trace.window[0] + 1), None)
    step = trace.steps.iloc[row]
    start = int(step["ts"])
    return Shown(row, start, start + max(int(step["dur"]), 1), start + int(step["host_dur"]))


def shown_timeline(trace: Trace) -> Timeline | None:
    """The picture for summary.json; None without events.

    Boxes are columns, lane by lane; `what` is the index in `names` and `kinds`.
    """
    time = shown_time(trace)
    lanes, more_streams = lanes_of(trace, time)
    if not lanes:
        return None
    events = pd.concat([own.assign(lane=number) for number, (_, _, own) in enumerate(lanes)], ignore_index=True)
    shorter_than = max((time.end - time.start) // RESOLUTION, 1)
    boxes = merge(events, shorter_than)
    while len(boxes) > MOST_BOXES and shorter_than <= time.end - time.start:
        shorter_than *= 2
        boxes = merge(events, shorter_than)
    what, pairs = pd.factorize(pd.MultiIndex.from_frame(boxes[["kind", "name"]]))
    columns = boxes[["start_ns", "dur_ns", "level", "events", "time_ns"]].assign(what=what)
    shown = []
    for number, (kind, name, _) in enumerate(lanes):
        own = columns[(boxes["lane"] == number).to_numpy()]
        values = {str(column): tuple(values.tolist()) for column, values in own.items()}
        shown.append(Lane(kind=kind, name=name, **values))
    return Timeline(
        step=None if time.step is None else int(trace.steps["index"].iloc[time.step]),
        span_ns=time.end - time.start,
        host_ns=None if time.host_end is None else time.host_end - time.start,
        left_out=(plural(more_streams, "stream"),) if more_streams else (),
        kinds=tuple(str(kind) for kind, _ in pairs),
        names=tuple(str(name)[:_LONGEST_NAME] for _, name in pairs),
        lanes=tuple(shown),
    )


def merge(events: pd.DataFrame, shorter_than: int) -> pd.DataFrame:
    """The boxes of events: `lane`, `level`, `kind`, `name` of the longest, `start_ns`, `dur_ns` to the end of the last,
    how many `events`, and `time_ns`, their summed length.

    Events of one lane, level and kind share a box if they are shorter than `shorter_than` and begin in the same cell
    of `CELL * shorter_than`.
    """
    dur = events["end"] - events["start"]
    alone = -1 - np.arange(len(events))
    cell = np.where(dur < shorter_than, events["start"] // (CELL * shorter_than), alone)
    longest_first = events.assign(cell=cell, dur=dur).sort_values(["dur", "start"], ascending=[False, True])
    groups = longest_first.groupby(["lane", "level", "kind", "cell"])
    sums = {"start_ns": ("start", "min"), "end": ("end", "max"), "events": ("dur", "size"), "time_ns": ("dur", "sum")}
    boxes = groups.agg(name=("name", "first"), **sums).reset_index()
    boxes["dur_ns"] = boxes["end"] - boxes["start_ns"]
    return boxes.sort_values(["lane", "level", "start_ns", "dur_ns", "kind"], kind="stable", ignore_index=True)


def lanes_of(trace: Trace, time: Shown) -> tuple[list[Events], int]:
    """The lanes from top to bottom, without empty ones, and how many streams there is no lane for."""
    lanes, more_streams = [*_threads(trace, time), _syncs(sync_costs(trace), time)], 0
    if trace.device is not None:
        streams, more_streams = _streams(trace, time)
        lanes += [_idle(idle_gaps(trace), time), *streams]
    return [lane for lane in lanes if len(lane[2])], more_streams


def _events(
    rows: pd.DataFrame, kind: Sequence[str], name: Sequence[str], time: Shown, level: Ints | int = 0
) -> pd.DataFrame:
    """Events of a lane, from rows of a table of the trace with `ts` and `dur` that lie within the time shown."""
    ts, end = (np.clip(instants, time.start, time.end) - time.start for instants in start_end(rows))
    texts = {column: pd.Series(list(values), dtype=object) for column, values in (("kind", kind), ("name", name))}
    return pd.DataFrame({"level": np.broadcast_to(level, len(rows)).astype(np.int64), **texts, "start": ts, "end": end})


def _chosen(table: pd.DataFrame, time: Shown, wanted: Mask) -> Ints:
    """Rows of the wanted events that overlap the time shown, or are a point in it."""
    ts, end = start_end(table)
    rows: Ints = np.flatnonzero((ts < time.end) & ((end > time.start) | (ts >= time.start)) & wanted).astype(np.int64)
    return rows


def _threads(trace: Trace, time: Shown) -> list[Events]:
    """The threads that train or communicate in the time shown; the one that marks the steps is the first."""
    # Without the marks of steps, and without the autograd engine's wrappers, which hide their nodes.
    labels, label_level = _outermost(trace, trace.labels, time, ~marks_steps(trace.labels), _LABEL_LEVELS)
    nodes = map_names(trace.ops["name"], lambda name: not name.startswith(naming.ENGINE))
    levels = _OP_LEVELS if trace.device is None else _OP_LEVELS_WITH_GPU
    ops, op_level = _outermost(trace, trace.ops, time, nodes, levels)
    columns = ["ts", "dur", "thread", "name"]
    rows = pd.concat([trace.labels[columns].iloc[labels], trace.ops[columns].iloc[ops]])
    is_op, thread = np.repeat([False, True], [len(labels), len(ops)]), rows["thread"].to_numpy()
    names = rows["name"].astype(str).tolist()
    kinds = [_kind(name, "op" if op else "label") for name, op in zip(names, is_op, strict=True)]
    events = _events(rows, kinds, names, time, np.concatenate([label_level, op_level]))
    marks = None if time.step is None else int(trace.steps["thread"].iloc[time.step])
    lanes = []
    for number in sorted({int(one) for one in thread}, key=lambda one: (one != marks, one)):
        own = thread == number
        part, ops_here = events[own].copy(), is_op[own]
        # Operators stand below as many levels of labels as this thread has.
        above = int(part["level"][~ops_here].max()) + 1 if (~ops_here).any() else 0
        part["level"] += np.where(ops_here, above, 0)
        role = "training thread" if number == marks else "thread"
        lanes.append(("host", f"host, {role} {trace.threads['tid'].iloc[number]}", part))
    return lanes


def _kind(name: str, usual: str) -> str:
    if naming.LOADER_LABEL.match(name):
        return "loader"
    return "comm" if _is_communication(name) else usual


def _is_communication(name: str) -> bool:
    return naming.is_collective_op(name) or name.startswith("gloo:")


def _outermost(trace: Trace, table: pd.DataFrame, time: Shown, own: Mask, levels: int) -> tuple[Ints, Ints]:
    """Rows of a table's `own` events that are shown, with less than `levels` of them around, and how many are."""
    parent = row_numbers(table["parent"])
    level = depths(take(nearest(parent, own), parent))
    shown = on_training(trace, table) | map_names(table["name"], _is_communication)
    rows = _chosen(table, time, own & (level < levels) & shown)
    return rows, level[rows]


def _syncs(costs: pd.DataFrame, time: Shown) -> Events:
    """The counted syncs, named by their site."""
    shown = costs.iloc[_chosen(costs, time, costs["counted"].to_numpy(dtype=bool))]
    names = [_site(*site) for site in zip(shown["file"], shown["line"], shown["op"], shown["kind"], strict=True)]
    return "syncs", "syncs", _events(shown, ["sync"] * len(shown), names, time)


def _site(file: object, line: object, op: object, kind: object) -> str:
    what = op if isinstance(op, str) else str(kind)
    if not isinstance(file, str):
        return what
    return f"{Path(file).name}:{line} {what}" if isinstance(line, int | np.integer) else f"{Path(file).name} {what}"


def _idle(gaps: pd.DataFrame, time: Shown) -> Events:
    """The gaps of the GPU, named by the work after them."""
    shown = gaps.iloc[_chosen(gaps, time, np.ones(len(gaps), dtype=bool))]
    ended = [op if isinstance(op, str) else str(name) for op, name in zip(shown["op"], shown["name"], strict=True)]
    return "idle", "GPU idle", _events(shown, [f"idle_{cause}" for cause in shown["cause"]], ended, time)


def _streams(trace: Trace, time: Shown) -> tuple[list[Events], int]:
    """The GPU's busiest streams by number, and how many more there are."""
    table = trace.kernels
    rows = table.iloc[_chosen(table, time, (table["device"] == trace.device).to_numpy())]
    short = {name: short_name(str(name)) for name in rows["name"].unique()}
    events = _events(rows, rows["kind"].astype(str).tolist(), [short[name] for name in rows["name"]], time)
    stream = rows["stream"].to_numpy()
    total = (events["end"] - events["start"]).groupby(stream).sum().sort_index().sort_values(kind="stable")
    busiest = sorted(total.index[-MOST_STREAMS:])
    lanes = [("stream", f"GPU {trace.device}, stream {number}", events[stream == number]) for number in busiest]
    return lanes, len(total) - len(lanes)
