"""Columns to linked tables: GPU work <- launch <- operator <- label, step and Python frame.

GPU work is joined to its launch on `correlation`, not on the trace's `ac2g` arrows, some of which have no partner. A
launch belongs to the operator with its external id, or else to the innermost one around it on its thread. A backward
operator belongs to the forward one with its sequence number.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from steptrace.documents.note import Note, note
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace import tables
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
from steptrace.trace.kept_steps import outside_of, recorded_steps, work_of_kept_steps
from steptrace.trace.lost_calls import NO_WAITS, must_wait, without_operator
from steptrace.trace.model import Trace, check
from steptrace.trace.read import RawTrace, read_raw
from steptrace.trace.records import launched_before
from steptrace.trace.scan import LISTS
from steptrace.trace.steps import extend_to_gpu, find_steps, step_of
from steptrace.trace.wrong_times import cut_stale_ends, mend_early_starts


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
    gpu, early, left_out = mend_early_starts(gpu, calls, names)
    if left_out + of_no_gpu:
        raw.notes.append(note("impossible_events", events=left_out + of_no_gpu, kind="gpu"))
    cut = cut_stale_ends(gpu, calls, names, host=_reach([labels, ops, frames, calls]))
    launch = row_with(calls["correlation"], gpu["correlation"])
    linked = launch >= 0
    marked, steps_from, optimizer_steps = find_steps(labels, ops, names)
    host = [_without_marks(labels, names), ops, frames]
    waits = NO_WAITS
    if all(map(naming.is_known_runtime, raw.runtimes)):
        waits = must_wait(calls, gpu, launch, names, ops, frames, _on_the_tables_clock(raw))
    unfinished = _unfinished_steps(marked, labels, names)
    raw.notes += _unfinished_note((labels, ops, frames), marked[unfinished])
    without, named = without_operator(calls, launch, ops, labels)
    steps, missing = recorded_steps(marked, host, calls, gpu, launch, names, waits, unfinished)
    missing = missing._replace(without_operator=without, named_operator=named)
    if missing.left_out:
        gpu = work_of_kept_steps(gpu, calls, launch, missing.left_out, steps)
        labels, ops, frames, calls = (outside_of(events, missing.left_out) for events in (labels, ops, frames, calls))
        launch = row_with(calls["correlation"], gpu["correlation"])
        linked = launch >= 0
    call_step = step_of(calls["ts"], steps)
    gpu_step = _step_of_work(gpu, linked, steps)
    gpu_step[linked] = call_step[launch[linked]]
    extend_to_gpu(steps, gpu_step[linked], gpu["end"][linked])

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

    A negative number names no GPU if other work has one. Work with such a number belongs to the trace's only GPU if a
    call launched it. It is left out if the trace has several GPUs, or if no call launched it.
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


def _on_the_tables_clock(raw: RawTrace) -> Columns:
    """CUPTI's records of waits with times as in the tables; empty without any."""
    waits = raw.waits
    return {**waits, "ts": waits["ts"] - raw.base_ns} if waits and len(waits["ts"]) else {}


def _unfinished_steps(steps: pd.DataFrame, labels: Columns, names: pd.Index) -> Mask:
    """A mask of the profiler's steps that were still running when the recording ended: their real end is not known."""
    running = np.flatnonzero(labels["unfinished"] == 1)
    marks = running[by_name(labels["name"][running], names, lambda name: naming.step_index(name) is not None)]
    return np.isin(steps["ts"].to_numpy(), labels["ts"][marks])


def _unfinished_note(events: Sequence[Columns], steps: pd.DataFrame) -> list[Note]:
    """A note on the host's events that were still running when the recording ended; none without any."""
    count = sum(int(np.count_nonzero(columns["unfinished"] == 1)) for columns in events)
    return [note("unfinished_events", events=count, steps=steps["index"].tolist())] if count else []


def _reach(events: Sequence[Columns]) -> tuple[int, int] | None:
    """The first start and the last end of events of some kinds, None without any."""
    spans = [(int(columns["ts"].min()), int(columns["end"].max())) for columns in events if len(columns["end"])]
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


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
    nested = [
        _once(sort_nesting(raw.columns.pop(kind), number), ("thread", "ts", "end", "name"), number, kind, raw)
        for kind, number in kinds.items()
    ]
    return keys, tuple(nested)


def _once(events: Columns, same: Sequence[str], number: str, kind: str, raw: RawTrace) -> Columns:
    """The events without those that repeat the one before them, its number too: a record that is written twice.

    Args:
        events: in an order in which repeated ones follow each other.
        same: the columns that must be equal.
        number: the column with the profiler's number of a record.
        kind: what they are, for the note on how many were left out.
        raw: the trace, which gets the note.
    """
    again = np.zeros(len(events["ts"]), dtype=bool)
    again[1:] = (events[number][1:] > 0) & (events["dur"][1:] > 0)
    for column in (*same, number):
        again[1:] &= events[column][1:] == events[column][:-1]
    if not again.any():
        return events
    raw.notes.append(note("repeated_events", events=int(again.sum()), kind=kind))
    return in_order(events, np.flatnonzero(~again))


def _without_inner_calls(calls: Columns, gpu: Columns, names: pd.Index) -> Columns:
    """The calls without those inside another one, such as the driver's launch inside the runtime's.

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
        step[rows[launched_before(gpu["ts"][rows], linked[rows])]] = -1
    return step


def _sort_gpu(raw: RawTrace) -> Columns:
    """GPU activities by start. Missing devices and streams are taken from the row's pid and tid."""
    gpu = raw.columns.pop("gpu")
    for column, part in (("device", 0), ("stream", 1)):
        values = gpu[column]
        written = np.array([naming.number_in(key[part]) for key in raw.threads], dtype=np.int64)
        gpu[column] = np.where(values == MISSING, written[gpu["thread"]], values)
    gpu["end"] = gpu["ts"] + gpu["dur"]
    order = np.lexsort((gpu["name"], gpu["correlation"], gpu["end"], gpu["stream"], gpu["device"], gpu["ts"]))
    return _once(in_order(gpu, order), ("ts", "end", "device", "stream", "name"), "correlation", "gpu", raw)


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
    numbered = numbered[order]
    is_backward = is_backward[order]
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
