"""Columns to linked tables: GPU work <- launch <- operator <- label, step and Python frame.

GPU work is joined to its launch on `correlation`, not on the trace's `ac2g` arrows, some of which have no partner. A
launch belongs to the operator with its external id, or else to the innermost one around it on its thread. A backward
operator belongs to the forward one with its sequence number.
"""

import itertools
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.documents.note import note
from steptrace.documents.quality import LeftOutStep, OptimizerSteps, StepSource
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace import records, tables
from steptrace.trace.columns import (
    Columns,
    Mask,
    around,
    by_name,
    in_order,
    nearest,
    parents,
    references,
    row_with,
    sort_nesting,
    take,
    text,
)
from steptrace.trace.decode import MISSING, input_bytes
from steptrace.trace.model import Trace, check
from steptrace.trace.read import RawTrace, read_raw
from steptrace.trace.scan import LISTS

#: The most optimizers of one class that a step is taken to have. Each may step several times in it.
_MOST_OPTIMIZERS: Final = 4


def read_trace(path: str | Path) -> Trace:
    """Read one Kineto trace (`.json` or `.json.gz`, any size) into linked tables.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or no trace.
        TruncatedTraceError: its end is missing. Such a file is rejected: its last steps would look too fast.
    """
    return link(read_raw(Path(path)))


def link(raw: RawTrace) -> Trace:
    """Make the tables of a trace with all links between them. Empties `raw.columns`."""
    names = pd.Index(raw.names, dtype=object)
    keys, (labels, ops, frames, calls) = _sort_host(raw)
    gpu = _sort_gpu(raw)
    calls = _without_inner_calls(calls, gpu, names)

    gpu, of_no_gpu = _on_known_devices(gpu, calls)
    gpu, early, left_out = records.mend_early_starts(gpu, calls, names)
    if left_out + of_no_gpu:
        raw.notes.append(note("impossible_events", events=left_out + of_no_gpu, kind="gpu"))
    cut = records.cut_stale_ends(gpu, calls, names, host=_reach([labels, ops, frames, calls]))
    launch = row_with(calls["correlation"], gpu["correlation"])
    linked = launch >= 0
    marked, steps_from, optimizer_steps = _steps(labels, ops, names)
    host = [_without_marks(labels, names), ops, frames]
    steps, missing = _recorded_steps(marked, host, calls, gpu, launch, names)
    if missing.left_out:
        gpu = _work_of_kept_steps(gpu, calls, launch, missing.left_out, steps)
        labels, ops, frames, calls = (_outside_of(events, missing.left_out) for events in (labels, ops, frames, calls))
        launch = row_with(calls["correlation"], gpu["correlation"])
        linked = launch >= 0
    call_step = step_of(calls["ts"], steps)
    gpu_step = _step_of_work(gpu, linked, steps)
    gpu_step[linked] = call_step[launch[linked]]
    _extend_to_gpu(steps, gpu_step[linked], gpu["end"][linked])

    op_parent = parents(ops)
    in_backward = by_name(ops["name"], names, naming.is_backward)
    backward = nearest(op_parent, (ops["forward_thread"] > 0) | in_backward) >= 0
    threads = tables.threads_table(raw, keys, _training(ops, calls, backward, steps, len(keys)))
    call_op = _op_of_calls(calls, ops)
    launches = tables.launches_table(calls, names, call_op, call_step)
    meta, rank = tables.meta_and_rank(raw, missing._replace(cut=cut, starts=early), steps_from, optimizer_steps)
    kernels = tables.kernels_table(gpu, names, launch, gpu_step, meta)
    trace = Trace(
        rank=rank,
        window=(0, max(int(c["end"].max()) for c in (labels, ops, frames, calls, gpu) if len(c["end"]))),
        meta=meta,
        threads=threads,
        steps=steps,
        ops=tables.host_table(
            "ops",
            ops,
            names,
            **{name: text(ops[name], names) for name in LISTS},
            parent=references(op_parent),
            backward=backward,
            forward=references(_forward_ops(ops, op_parent)),
            label=references(around(labels, ops)),
            frame=references(around(frames, ops)),
            step=references(step_of(ops["ts"], steps)),
        ),
        launches=launches,
        kernels=kernels,
        collectives=tables.collectives_table(
            raw.collectives, kernels, gpu["collective"], {**ops, "parent": op_parent}, (call_op, names), launches
        ),
        syncs=tables.find_syncs(launches, calls["kind"], kernels, steps, threads),
        frames=tables.host_table("frames", frames, names, parent=references(parents(frames))),
        labels=tables.host_table(
            "labels",
            labels,
            names,
            parent=references(parents(labels)),
            bytes=_input_bytes(labels, names),
            step=references(step_of(labels["ts"], steps)),
        ),
        memory=tables.memory_table(raw.columns.pop("memory")),
    )
    return check(trace)


def _on_known_devices(gpu: Columns, calls: Columns) -> tuple[Columns, int]:
    """The activities with the GPU that they ran on, and how many were left out.

    A negative number is no GPU where others have one. Work that a call launched is then that of the only GPU, if there
    is one only; any other is left out.
    """
    unknown = gpu["device"] < 0
    known = np.unique(gpu["device"][~unknown])
    if not unknown.any() or not len(known):
        return gpu, 0
    launched = row_with(calls["correlation"], gpu["correlation"]) >= 0
    ours = unknown & launched & (len(known) == 1)
    gone = unknown & ~ours
    gpu["device"] = np.where(ours, known[0], gpu["device"])
    return in_order(gpu, np.flatnonzero(~gone)), int(gone.sum())


def _without_marks(labels: Columns, names: pd.Index) -> Columns:
    """Start and end of the labels that do not mark the profiler's steps."""
    marks = by_name(labels["name"], names, lambda name: naming.step_index(name) is not None)
    return {name: labels[name][~marks] for name in ("ts", "end")}


def _by_step(times: Ints, steps: pd.DataFrame) -> Ints:
    """How many of these instants lie in each step."""
    return np.bincount(step_of(times, steps) + 1, minlength=len(steps) + 1)[1:]


def _recorded_steps(
    steps: pd.DataFrame,
    host: Sequence[Columns],
    calls: Columns,
    gpu: Columns,
    launch: Ints,
    names: pd.Index,
) -> tuple[pd.DataFrame, records.Records]:
    """The steps with complete records, and the records that are missing.

    Args:
        steps: the steps, in order of time.
        host: the host's other events, without the profiler's labels of steps.
        calls: the calls into the runtime.
        gpu: the GPU's activities, in order of start.
        launch: the row of the call that launched each activity, -1 if unknown.
        names: the text of each name's number.
    """
    copies = records.copies_without_work(calls, gpu, launch, names)
    launches = records.launching(calls, names) | copies
    call_step = step_of(calls["ts"], steps)
    partly = records.partly_lost(calls, gpu, launch, names, call_step)
    lost = records.lost_launches(calls, gpu, launch, names) | partly | copies
    gpu_step = step_of(gpu["ts"], steps)
    alone, alone_step = records.without_call(calls, gpu, launch, call_step, gpu_step, len(steps))
    gaps = records.gaps_before(steps, [*host, calls, gpu])
    events = np.sum([_by_step(columns["ts"], steps) for columns in (*host, calls, gpu)], axis=0)
    empty = records.empty_steps(steps, events, [*host, calls, gpu])
    if not lost.any() and not alone.any() and not gaps.any() and not empty.any():
        return steps, records.Records()
    broken = empty | records.cut_off(~empty, events) if empty.any() else empty
    kept, whole = slice(0, len(steps)), not lost.any()
    calls_whole = bool(alone.sum() <= records.LOST_SHARE * len(alone))
    if len(steps):
        found = False
        # Where calls are missing here and there, those that wait may be missing in any step.
        if not calls_whole and records.place_of(alone) != "scattered":
            in_steps = alone_step[alone]
            unlaunched = np.bincount(in_steps[in_steps >= 0], minlength=len(steps))
            called = _by_step(calls["ts"], steps)
            of_step = np.bincount(call_step[launches & (call_step >= 0)], minlength=len(steps))
            uncalled = broken | (unlaunched > records.LOST_SHARE * (of_step + unlaunched))
            uncalled |= records.cut_off(~uncalled, called)
            kept, found = records.complete_steps(gaps, call_step, lost, launches, uncalled)
            calls_whole, whole = found, found
        if not found:  # figures of the GPU do not need the calls
            kept, complete = records.complete_steps(gaps, call_step, lost, launches, broken)
            whole = complete or not lost.any()
    elif len(gpu["ts"]) and lost.any():
        whole = records.span_is_complete(calls["ts"], lost, launches)
    left_out = pd.concat([steps.iloc[: kept.start], steps.iloc[kept.stop :]])
    return steps.iloc[kept].reset_index(drop=True), records.Records(
        lost=tuple(records.lost_records(calls, names, lost, launches, partly)),
        left_out=tuple(LeftOutStep(*map(int, row)) for row in left_out[["index", "ts", "host_dur"]].to_numpy()),
        without_call=int(alone.sum()),
        gaps=int(gaps.sum()),
        empty=int(empty.sum()),
        whole=whole and (len(gpu["ts"]) > 0 or not lost.any()),
        calls_whole=calls_whole,
    )


def _reach(events: Sequence[Columns]) -> tuple[int, int] | None:
    """The first start and the last end of events of some kinds, None without any."""
    spans = [(int(columns["ts"].min()), int(columns["end"].max())) for columns in events if len(columns["end"])]
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def _in_any(times: Ints, left_out: Sequence[LeftOutStep]) -> Mask:
    """A mask of the instants that lie in a step that was left out."""
    starts = np.array([step.start_ns for step in left_out], dtype=np.int64)
    lengths = np.array([step.dur_ns for step in left_out], dtype=np.int64)
    return intervals.contains(intervals.union(intervals.spans(starts, starts + lengths)), times)


def _outside_of(events: Columns, left_out: Sequence[LeftOutStep]) -> Columns:
    """The host's events without those that begin in a step that was left out."""
    return in_order(events, np.flatnonzero(~_in_any(events["ts"], left_out)))


def _work_of_kept_steps(
    gpu: Columns, calls: Columns, launch: Ints, left_out: Sequence[LeftOutStep], steps: pd.DataFrame
) -> Columns:
    """The GPU's work without that of steps that were left out.

    Work of an earlier step that still runs in the first kept one stays: it keeps the GPU busy there.
    """
    begun = np.where(launch >= 0, take(calls["ts"], launch), gpu["ts"])
    gone = _in_any(begun, left_out)
    first = int(steps["ts"].iloc[0])
    gone &= (begun > first) | (gpu["end"] <= first)
    return in_order(gpu, np.flatnonzero(~gone))


def _sort_host(raw: RawTrace) -> tuple[list[tuple[Any, Any]], tuple[Columns, ...]]:
    """The host's threads in a fixed order; the columns of labels, operators, frames and calls, parents before children.

    The profiler's own numbering orders what starts and ends together.
    """
    host = [columns for kind, columns in raw.columns.items() if kind != "gpu"]
    on_host = np.zeros(len(raw.threads), dtype=bool)
    for columns in host:
        on_host[columns["thread"]] = True
    used = np.flatnonzero(on_host)
    written = [raw.threads[code] for code in used]
    numbers_first = [[(0, part, "") if isinstance(part, int) else (1, 0, str(part)) for part in key] for key in written]
    order = sorted(range(len(used)), key=numbers_first.__getitem__)
    place = np.full(len(raw.threads), -1, dtype=np.int64)
    place[used[order]] = np.arange(len(used))
    for columns in host:
        columns["thread"] = place[columns["thread"]]
    keys = [written[i] for i in order]
    kinds = {"label": "external_id", "op": "external_id", "frame": "python_id", "call": "correlation"}
    return keys, tuple(sort_nesting(raw.columns.pop(kind), number) for kind, number in kinds.items())


def _without_inner_calls(calls: Columns, gpu: Columns, names: pd.Index) -> Columns:
    """The calls without those that are a part of another one: the driver's launch inside the runtime's, and its waits.

    A launch inside a launch is one launch, and so is a wait inside a wait, and a copy inside a copy with its waits. The
    work of the inner call is that of the outer one.
    """
    if len(calls["ts"]) == 0:
        return calls
    kind = by_name(calls["name"], names, _kind_of_call, object)
    parent = parents(calls)
    of_parent = np.append(kind, "")[parent]
    sync_copy = np.append(by_name(calls["name"], names, naming.is_sync_copy), False)[parent]
    inner = (kind != "") & (parent >= 0) & ((kind == of_parent) | ((kind == "wait") & sync_copy))
    # In traces of whole microseconds a call may seem to begin before the one before it has ended.
    begins, ends = calls["ts"] - calls["ts"][parent], calls["end"][parent] - calls["end"]
    # Two calls of one name at the same time are two calls, unless they are one record that is written twice.
    other = (calls["name"] != calls["name"][parent]) | (calls["correlation"] == calls["correlation"][parent])
    inner &= ((begins > 0) & (ends > 0)) | ((begins == 0) & (ends == 0) & (calls["dur"] > 0) & other)
    if not inner.any():
        return calls
    # Work finds its launch by number: where only the inner call has one, the outer call gets it.
    lends = inner & (calls["correlation"] > 0) & (calls["correlation"][parent] <= 0)
    calls["correlation"] = calls["correlation"].copy()
    calls["correlation"][parent[lends]] = calls["correlation"][lends]
    outer = nearest(parent, ~inner)
    launch = row_with(calls["correlation"], gpu["correlation"])
    moved = (launch >= 0) & inner[np.maximum(launch, 0)]
    moved &= calls["correlation"][outer[np.maximum(launch, 0)]] > 0
    gpu["correlation"] = np.where(moved, calls["correlation"][outer[np.maximum(launch, 0)]], gpu["correlation"])
    return in_order(calls, np.flatnonzero(~inner))


def _kind_of_call(name: str) -> str:
    """Whether a call launches, copies or waits; empty for any other."""
    if naming.launch_kind(name) is not None:
        return "launch"
    if naming.wait_scope(name) is not None:
        return "wait"
    return "copy" if naming.is_async_copy(name) or naming.is_sync_copy(name) else ""


def step_of(times: Ints, steps: pd.DataFrame) -> Ints:
    """Row of the step whose host label holds each instant, -1 outside the steps."""
    if len(steps) == 0:
        return np.full(len(times), -1, dtype=np.int64)
    starts = steps["ts"].to_numpy()
    ends = starts + steps["host_dur"].to_numpy()
    row = np.searchsorted(starts, times, side="right").astype(np.int64) - 1
    return np.where((row >= 0) & (times < ends[np.maximum(row, 0)]), row, -1)


def _input_bytes(labels: Columns, names: pd.Index) -> Ints:
    """Input bytes of the host's collectives, by their labels; `MISSING` for other labels."""
    sizes = np.full(len(labels["ts"]), MISSING, dtype=np.int64)
    for row in np.flatnonzero(by_name(labels["name"], names, lambda name: naming.host_collective(name) is not None)):
        sizes[row] = input_bytes(names[labels["sizes"][row]], names[labels["types"][row]])
    return sizes


def _step_of_work(gpu: Columns, linked: Mask, steps: pd.DataFrame) -> Ints:
    """The step of GPU work without a launch, by its start.

    Work that the host launched before the recording has no step.
    """
    step = step_of(gpu["ts"], steps)
    for device in np.unique(gpu["device"][linked]):
        on_device = gpu["device"] == device
        rows = np.flatnonzero(on_device)
        step[rows[records.launched_before(gpu["ts"][rows], linked[rows])]] = -1
    return step


def _steps(
    labels: Columns, ops: Columns, names: pd.Index
) -> tuple[pd.DataFrame, StepSource | None, OptimizerSteps | None]:
    """The steps in order of time, and which labels mark them: the profiler's, or PyTorch's own if there are none.

    The last value says how optimizer steps make steps, if these mark them.
    """
    steps = _marked_steps(labels, names)
    if len(steps):
        return steps, "profiler", None
    thread, starts, ends, together = _steps_of_optimizer(labels, ops, names)
    if len(starts):
        return _as_steps(thread, starts, ends), "optimizer", together
    thread, starts, ends = _steps_of_loader(labels, names)
    return (_as_steps(thread, starts, ends), "loader", None) if len(starts) else (steps, None, None)


def _as_steps(thread: int, starts: Ints, ends: Ints) -> pd.DataFrame:
    columns = {"index": np.arange(len(starts)), "ts": starts, "dur": ends - starts, "host_dur": ends - starts}
    return pd.DataFrame(columns | {"thread": np.full(len(starts), thread)}).astype("int64")


def _labels_of_loop(labels: Columns, wanted: Mask) -> tuple[int, Ints, Ints]:
    """The thread with most of the labels, and the labels' starts and ends there in order; of nested ones the outer."""
    rows = np.flatnonzero(wanted)
    if len(rows) == 0:
        return 0, rows, rows
    thread = int(np.bincount(labels["thread"][rows]).argmax())
    rows = rows[labels["thread"][rows] == thread]
    rows = rows[np.lexsort((-labels["end"][rows], labels["ts"][rows]))]
    reach = np.maximum.accumulate(labels["end"][rows])
    rows = rows[np.append(True, labels["ts"][rows][1:] >= reach[:-1])]
    return thread, labels["ts"][rows], labels["end"][rows]


def _steps_of_optimizer(
    labels: Columns, ops: Columns, names: pd.Index
) -> tuple[int, Ints, Ints, OptimizerSteps | None]:
    """Thread, starts and ends of the steps from one optimizer step's end to the next one's, and how these make steps.

    A step may have several optimizers. Where a loader is waited for, it ends with the last one before the next wait;
    else with that of `_last_of_each_step`. Optimizers of one class are told apart by the backward passes before their
    steps (`_period`). The first step begins with its wait for the loader, and does not count without one: its start is
    unknown.
    """
    is_step = by_name(labels["name"], names, naming.OPTIMIZER_STEP.match)
    thread, begun, ends = _labels_of_loop(labels, is_step)
    of_loader, waits, _ = _labels_of_loop(labels, by_name(labels["name"], names, naming.LOADER_LABEL.match))
    none = np.empty(0, dtype=np.int64)
    if len(ends) == 0:
        return thread, none, none, None
    together: OptimizerSteps | None = None
    waits = waits if of_loader == thread else none
    if len(waits):
        until = np.append(begun[1:], np.iinfo(np.int64).max)
        last = np.searchsorted(waits, ends) < np.searchsorted(waits, until)
        last[-1] = True
        ends = ends[last]
    else:
        rows = np.flatnonzero(is_step & (labels["thread"] == thread))
        rows = rows[np.argsort(labels["ts"][rows], kind="stable")]
        kind = labels["name"][rows[np.searchsorted(labels["ts"][rows], begun)]]
        ends_step = None
        if (kind == kind[0]).all():
            passes = _backward_passes(ops, names, ends)
            updates = set(np.flatnonzero(names.isin(naming.UPDATES_GRADIENT)).tolist())
            together = _period(passes, updates)
            kind = np.arange(len(ends)) % (together.count or 1)
            ends_step = _last_of_rarest(passes, together.count or 1)
        ends = ends[_last_of_each_step(kind, begun, ends) if ends_step is None else ends_step]
    first = waits[:1][waits[:1] < begun[0]]
    starts = np.concatenate([first, ends[:-1]])
    return thread, starts, ends[len(ends) - len(starts) :], together


def _backward_passes(ops: Columns, names: pd.Index, ends: Ints) -> list[bytes]:
    """What tells backward passes apart, of each time between two optimizer steps: how often each node ran."""
    rows = np.flatnonzero(by_name(ops["name"], names, naming.is_backward))
    place = np.searchsorted(ends, ops["ts"][rows], side="left")
    rows, place = rows[(place > 0) & (place < len(ends))], place[(place > 0) & (place < len(ends))]
    order = np.lexsort((ops["name"][rows], place))
    nodes = np.split(ops["name"][rows][order], np.searchsorted(place[order], np.arange(2, len(ends))))
    return [of_pass.astype(np.int64).tobytes() for of_pass in nodes][: len(ends) - 1]


def _period(passes: Sequence[bytes], updates: Container[int]) -> OptimizerSteps:
    """After how many optimizer steps of one class the backward passes repeat: a step of training has so many.

    Each optimizer steps once in a period, or several times in a row, as the critic of a Wasserstein GAN does before its
    generator. Then two whole periods must be seen, and the passes must be of different networks: of other numbers of
    parameters, or neither with all nodes of the other. A loss that is added now and then is not. Where passes differ
    and no such period fits, how optimizer steps make steps is not known.

    Args:
        passes: the nodes of the backward pass before each optimizer step but the first.
        updates: the numbers of the nodes that add a gradient to a parameter's.
    """
    kinds = len(set(passes))
    if kinds <= 1:
        return OptimizerSteps(1)
    count = _repeats_after(passes)
    if count == len(passes) or kinds > _MOST_OPTIMIZERS:
        return OptimizerSteps(None)
    period = passes[:count]
    changes = sum(before != after for before, after in zip(period, [*period[1:], period[0]], strict=True))
    in_runs = changes == kinds and len(passes) >= 2 * count - 1
    distinct = in_runs and all(_of_two(*pair, updates) for pair in itertools.combinations(set(period), 2))
    return OptimizerSteps(count if kinds == count or distinct else None)


def _repeats_after(values: Sequence[bytes]) -> int:
    """The shortest period of some values; their number without one (prefix function of Knuth, Morris and Pratt)."""
    border = [0] * len(values)
    for place in range(1, len(values)):
        length = border[place - 1]
        while length and values[length] != values[place]:
            length = border[length - 1]
        border[place] = length + (values[length] == values[place])
    return len(values) - border[-1]


def _of_two(one: bytes, other: bytes, updates: Container[int]) -> bool:
    """Whether two backward passes are those of two networks (`_period`)."""
    first, second = (Counter(np.frombuffer(nodes, dtype=np.int64).tolist()) for nodes in (one, other))
    parameters = [sum(count for node, count in nodes.items() if node in updates) for nodes in (first, second)]
    return parameters[0] != parameters[1] or not (first <= second or second <= first)


def _last_of_rarest(passes: Sequence[bytes], count: int) -> Mask | None:
    """A mask of the optimizer steps that end a step where some optimizer steps several times in it; else None.

    They are the last of the one with fewest steps: a generator follows its critic.

    Args:
        passes: the nodes of the backward pass before each optimizer step but the first.
        count: how many optimizer steps a step has.
    """
    often = Counter(passes[:count])
    if count == 1 or len(often) == count:
        return None
    rarest = min(often, key=often.__getitem__)
    period = [passes[(place - 1) % count] for place in range(count)]  # of the optimizer steps, the first one included
    last = next(place for place in range(count) if period[place] == rarest != period[(place + 1) % count])
    ends_step: Mask = np.arange(len(passes) + 1) % count == last
    return ends_step


def _last_of_each_step(kind: Ints, begun: Ints, ends: Ints) -> Mask:
    """A mask of the optimizer steps that end a step of training, where several kinds of optimizers take turns.

    The kinds that come about equally often are of one step: for matrices and for vectors, of a generator and of its
    critic. The last of them is the one after which most time passes, since a forward and a backward pass follow. Rarer
    kinds end no step.
    """
    kinds, often = np.unique(kind, return_counts=True)
    together = kinds[often >= often.max() - 1]
    counted = np.flatnonzero(np.isin(kind, together))
    before, after = kind[counted[:-1]], begun[counted[1:]] - ends[counted[:-1]]
    usual = [np.median(after[before == one]) if (before == one).any() else np.inf for one in together]
    ends_step: Mask = kind == together[int(np.argmax(usual))]
    return ends_step


def _steps_of_loader(labels: Columns, names: pd.Index) -> tuple[int, Ints, Ints]:
    """Thread, starts and ends of the steps from one wait for the loader to the next; the last wait begins none."""
    thread, waits, _ = _labels_of_loop(labels, by_name(labels["name"], names, naming.LOADER_LABEL.match))
    return thread, waits[:-1], waits[1:]


def _marked_steps(labels: Columns, names: pd.Index) -> pd.DataFrame:
    """The steps that the profiler marked. A step that is marked on several threads belongs to the first of them."""
    index = by_name(labels["name"], names, lambda name: -1 if (n := naming.step_index(name)) is None else n, np.int64)
    rows = np.flatnonzero(index >= 0)
    rows = rows[np.lexsort((labels["thread"][rows], labels["ts"][rows]))]
    marks = pd.DataFrame(
        {
            "index": index[rows],
            "ts": labels["ts"][rows],
            "dur": labels["dur"][rows],
            "host_dur": labels["dur"][rows],
            "thread": labels["thread"][rows],
        }
    )
    marks = _in_turn(marks)
    if marks["index"].is_unique:
        return marks
    # Two windows of one profiler may have the same numbers; overlapping marks are one step on several threads.
    ends = (marks["ts"] + marks["dur"]).groupby(marks["index"]).cummax()
    same_step = marks["ts"] < ends.groupby(marks["index"]).shift()
    return marks[~same_step].reset_index(drop=True).astype("int64")


def _in_turn(marks: pd.DataFrame) -> pd.DataFrame:
    """The marks without those of a second profiler: a step ends before the next one of its thread begins.

    A mark around several others is no step. Of two that share at least half of their time the first one is kept. A mark
    that reaches a little into the next one ends where that begins.

    Args:
        marks: the marks of steps, in order of time.
    """
    starts, lengths = marks["ts"].to_numpy(), marks["dur"].to_numpy().copy()
    thread = marks["thread"].to_numpy()
    if not (np.diff(starts) < lengths[:-1]).any():
        return marks
    kept: list[int] = []
    for number in np.unique(thread):
        rows = np.flatnonzero(thread == number)
        begins, ends = starts[rows], starts[rows] + lengths[rows]
        inside = np.searchsorted(begins, ends, side="left") - np.arange(len(rows)) - 1
        last: int | None = None
        for place, row in enumerate(rows.tolist()):
            within = ends[place + 1 : place + 1 + int(inside[place])] <= ends[place]
            if np.count_nonzero(within) > 1:
                continue
            if last is not None and starts[row] < starts[last] + lengths[last]:
                shared = min(starts[last] + lengths[last], starts[row] + lengths[row]) - starts[row]
                if 2 * shared >= min(lengths[last], lengths[row]):
                    continue
                lengths[last] = starts[row] - starts[last]
            kept.append(row)
            last = row
    marks = marks.assign(dur=lengths, host_dur=lengths).loc[sorted(kept)]
    return marks.reset_index(drop=True)


def _extend_to_gpu(steps: pd.DataFrame, gpu_step: Ints, gpu_end: Ints) -> None:
    """Lengthen each step to the end of the last GPU work that was launched in it."""
    starts = steps["ts"].to_numpy()
    ends = starts + steps["host_dur"].to_numpy()
    inside = gpu_step >= 0
    np.maximum.at(ends, gpu_step[inside], gpu_end[inside])
    steps["dur"] = ends - starts


def _sort_gpu(raw: RawTrace) -> Columns:
    """GPU activities by start. Missing devices and streams are taken from the row's pid and tid."""
    gpu = raw.columns.pop("gpu")
    for column, part in (("device", 0), ("stream", 1)):
        values = gpu[column]
        written = np.array([key[part] if isinstance(key[part], int) else 0 for key in raw.threads], dtype=np.int64)
        gpu[column] = np.where(values == MISSING, written[gpu["thread"]], values)
    gpu["end"] = gpu["ts"] + gpu["dur"]
    order = np.lexsort((gpu["name"], gpu["correlation"], gpu["end"], gpu["stream"], gpu["device"], gpu["ts"]))
    return in_order(gpu, order)


def _op_of_calls(calls: Columns, ops: Columns) -> Ints:
    """The row of the operator that made each call: by its id if that operator is running then, or by containment."""
    by_id = row_with(ops["external_id"], calls["external_id"])
    contained = around(ops, calls)
    op = np.maximum(by_id, 0)
    if len(ops["ts"]) == 0:
        return contained
    # Traces up to 2023 repeat ids of other operators: use an id only if its operator is running on that thread.
    running = (by_id >= 0) & (ops["thread"][op] == calls["thread"])
    running &= (ops["ts"][op] <= calls["ts"]) & (calls["ts"] < ops["end"][op])
    return np.where(running, by_id, contained)


def _forward_ops(ops: Columns, parent: Ints) -> Ints:
    """Row of the forward operator of each operator run by the backward pass, -1 elsewhere.

    Forward operators have the number of the next autograd node, so several in a row can share it: the last to start
    before the backward one made the node. Operators called by a backward operator inherit its forward operator.
    """
    numbered = np.flatnonzero((ops["sequence"] >= 0) & (ops["sequence"] != MISSING))
    is_backward = ops["forward_thread"][numbered] > 0
    order = np.lexsort((is_backward, ops["ts"][numbered], ops["sequence"][numbered]))
    numbered, is_backward = numbered[order], is_backward[order]
    last_forward = np.maximum.accumulate(np.where(is_backward, -1, np.arange(len(numbered)))) if len(order) else order
    matches = last_forward >= 0
    matches[matches] = ops["sequence"][numbered[matches]] == ops["sequence"][numbered[last_forward[matches]]]
    forward = np.full(len(parent), -1, dtype=np.int64)
    matched = is_backward & matches
    forward[numbered[matched]] = numbered[last_forward[matched]]
    return take(forward, nearest(parent, forward >= 0))


def _training(ops: Columns, calls: Columns, backward: Mask, steps: pd.DataFrame, count: int) -> Mask:
    """A mask of the training threads: those with steps, and those that run a backward pass.

    Without steps, or if the thread with the steps does nothing else, every thread with operators counts, too, or
    without any every thread that calls the GPU's runtime.
    """
    working = np.zeros(count, dtype=bool)
    working[ops["thread"] if len(ops["thread"]) else calls["thread"]] = True
    training = np.zeros(count, dtype=bool)
    training[steps["thread"].to_numpy()] = True
    if not (training & working).any():
        return working | training
    training[ops["thread"][backward]] = True
    return training
