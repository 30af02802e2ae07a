"""Calls of the host, and operators, that the profiler has lost though no GPU work shows it.

Calls that wait can be lost, and nothing on the GPU shows it. What must hold a wait does: an operator that copies a
result to the host and reads it, `torch.cuda.synchronize` among the Python functions, and CUPTI's own record of a wait.
Where the wait is missing there, others may be missing where nothing shows it. A copy to pageable memory counts as a
sync without its wait.

Work at the start without a call was launched before the recording, or its calls were lost. Operators that launch work
whenever they run, and run before all recorded calls, tell the two apart.
"""

from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, Mask, around, by_name, row_with
from steptrace.trace.records import LAUNCH_COVERAGE

#: The share of the GPU's early work without a call that operators without a call must explain. Judged.
_EXPLAINED: Final = 0.1
#: Of so many launches by PyTorch's profiler some call waits: at least its own, at its end. Judged.
_MANY_LAUNCHES: Final = 100
#: From so many runs of an operator it is known whether it launches work each time.
_FEWEST_RUNS: Final = 2


class Waits(NamedTuple):
    """The places that must hold a call that waits, in order of time.

    `ts` is their start, `lost` a mask of those without such a call, and `uncounted` of those without any sync.
    """

    ts: Ints
    lost: Mask
    uncounted: Mask


#: No such place.
NO_WAITS: Final = Waits(np.empty(0, dtype=np.int64), np.empty(0, dtype=bool), np.empty(0, dtype=bool))


def must_wait(  # noqa: PLR0913 - the columns that it compares
    calls: Columns, gpu: Columns, launch: Ints, names: pd.Index, ops: Columns, frames: Columns, waits: Columns
) -> Waits:
    """The places that must hold a call that waits.

    Args:
        calls: the calls into the runtime.
        gpu: the GPU's activities.
        launch: the row of the call that launched each activity, -1 if unknown.
        names: the text of each name's number.
        ops: the operators.
        frames: the Python functions.
        waits: CUPTI's records of waits: `name` and `correlation`.
    """
    if not len(calls["ts"]):  # then nothing is known of calls
        return NO_WAITS
    waiting = by_name(calls["name"], names, naming.waits)
    to_host = np.zeros(len(calls["ts"]), dtype=bool)
    copies = (launch >= 0) & by_name(gpu["name"], names, lambda name: naming.copy_direction(name) == "DtoH")
    to_host[launch[copies]] = True
    counted = np.zeros(len(calls["ts"]), dtype=bool)
    counted[launch[(launch >= 0) & by_name(gpu["name"], names, naming.is_pageable_copy)]] = True
    found = [NO_WAITS]
    for nested, judge, needed in ((ops, naming.reads_result, to_host), (frames, naming.is_waiting_frame, None)):
        rows = np.flatnonzero(by_name(nested["name"], names, judge))
        if needed is not None:
            rows = rows[_calls_within(nested, rows, calls, needed) > 0]
        lost = _calls_within(nested, rows, calls, waiting) == 0
        found.append(Waits(nested["ts"][rows], lost, lost & (_calls_within(nested, rows, calls, counted) == 0)))
    if waits:
        rows = np.flatnonzero(by_name(waits["name"], names, naming.is_wait_record) & (waits["correlation"] > 0))
        lost = row_with(calls["correlation"], waits["correlation"][rows]) < 0
        found.append(Waits(waits["ts"][rows], lost, lost))
    ts, lost, uncounted = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(ts, kind="stable")
    return Waits(ts[order], lost[order], uncounted[order])


def without_operator(calls: Columns, launch: Ints, ops: Columns, labels: Columns) -> tuple[int, int]:
    """How many of the calls that launched work name an operator that the trace does not hold, and how many name one.

    Traces up to 2023 name others than their own: nothing is known where most named ones are missing, or where a call is
    not made within the operator that it names.

    Args:
        calls: the calls into the runtime.
        launch: the row of the call that launched each activity of the GPU, -1 if unknown.
        ops: the operators.
        labels: the labels, which calls may name as well.
    """
    rows = np.unique(launch[launch >= 0])
    rows = rows[calls["external_id"][rows] > 0]
    wanted = calls["external_id"][rows]
    op = row_with(ops["external_id"], wanted)
    missing = (op < 0) & (row_with(labels["external_id"], wanted) < 0)
    if not missing.any() or 2 * np.count_nonzero(missing) > len(rows) or not (op >= 0).any():
        return 0, len(rows)
    found = rows[op >= 0]
    op = op[op >= 0]
    running = (ops["ts"][op] <= calls["ts"][found]) & (calls["ts"][found] < ops["end"][op])
    return (int(missing.sum()) if running.mean() >= LAUNCH_COVERAGE else 0), len(rows)


def has_no_wait(calls: Columns, names: pd.Index) -> bool:
    """Whether none of many calls waits, not even that of PyTorch's profiler at its end.

    Such a trace is an excerpt, or its calls that wait were lost. A few calls say nothing.
    """
    launches = by_name(calls["name"], names, lambda name: naming.launch_kind(name) is not None)
    if np.count_nonzero(launches) < _MANY_LAUNCHES:
        return False
    return not by_name(calls["name"], names, naming.waits).any()


def _calls_within(nested: Columns, rows: Ints, calls: Columns, wanted: Mask) -> Ints:
    """How many of the wanted calls begin within each of some events of the host, on its thread."""
    count = np.zeros(len(rows), dtype=np.int64)
    if not len(rows):
        return count
    of_call = np.flatnonzero(wanted)
    of_call = of_call[np.lexsort((calls["ts"][of_call], calls["thread"][of_call]))]
    by_thread = np.argsort(nested["thread"][rows], kind="stable")
    threads, first = np.unique(nested["thread"][rows[by_thread]], return_index=True)
    begins, ends = (np.searchsorted(calls["thread"][of_call], threads, side=side) for side in ("left", "right"))
    for begin, end, here in zip(begins, ends, np.split(by_thread, first[1:]), strict=True):
        times = calls["ts"][of_call[begin:end]]
        begun = np.searchsorted(times, nested["ts"][rows[here]], side="left")
        count[here] = np.searchsorted(times, nested["end"][rows[here]], side="left") - begun
    return count


def first_calls_lost(ops: Columns, calls: Columns, launch: Ints) -> bool:
    """Whether the first of the host's calls are missing, so that early work without a call was launched by them.

    Then operators that launch work whenever they run later on run before all recorded calls as well, and so often that
    they explain a part of the GPU's early work without a call. The rest may have been launched before the recording.

    Args:
        ops: the operators.
        calls: the calls into the runtime.
        launch: the row of the call that launched each of the GPU's activities, in order of their start; -1 if unknown.
    """
    linked = launch >= 0
    if not linked.any() or not len(ops["ts"]) or linked[0]:
        return False
    # A thread that launches nothing, such as a loader's, runs the same operators on the CPU.
    launching_threads = np.unique(calls["thread"][np.unique(launch[linked])])
    early = (ops["end"] <= int(calls["ts"].min())) & np.isin(ops["thread"], launching_threads)
    if not early.any():
        return False
    op = around(ops, calls)
    launched = np.bincount(launch[linked], minlength=len(op))
    runs = np.unique(op[(op >= 0) & (launched > 0)])
    names = int(ops["name"].max()) + 1
    later = np.bincount(ops["name"][~early], minlength=names)
    launching = np.bincount(ops["name"][runs], minlength=names)
    work = np.bincount(ops["name"][op[op >= 0]], weights=launched[op >= 0], minlength=names)
    always = (later >= _FEWEST_RUNS) & (launching >= LAUNCH_COVERAGE * later)
    names_of_early = ops["name"][early]
    work_of_call = np.where(always, work / np.maximum(later, 1), 0.0)
    return bool(work_of_call[names_of_early].sum() >= _EXPLAINED * np.argmax(linked))
