"""Times of GPU work that cannot be right: starts before the launch, and ends long after the work was over.

Work of one stream runs in sequence. An end after the starts of several later launches of its stream is stale (AMD's
profiler writes such ends after a stall), and is cut at the next start. Few launches or none come after a stream's last
work: its end is stale if all of them lie within it, long before its end, or if the host has waited for it before.
Without any of these, it is stale if it ends after all other events and the work took a hundred times as long as any
other run of the same kernel. It is then cut to the longest of these. An end that was cut at the next start of a stream
that went on much later is cut to that length, too. Work of a kernel that ran once is compared with all the rest of the
recording. Work of collectives may wait that long.

A start long before the call that launched the work is as impossible: the work then began at that call, or at the end of
what its stream did before. If many starts are too early, the clocks of host and GPU disagree, and nothing is changed.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from steptrace.documents.quality import CutEnd
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, by_name, in_order, row_with

#: An end is stale if this number of later launches of the stream start before it. Launches that overlap by design
#: (programmatic dependent launch) overlap with the next one only.
STALE_OVER: Final = 3
#: If a larger share of a stream's ends is stale, its number stands for several streams, and no end is cut.
_MOST_STALE: Final = 0.1
#: Above this share of ends after the host's wait for them, or of starts before their launch, the clocks disagree.
_MOST_WAITED: Final = 0.5
#: Overlap that the resolution of old traces explains.
_TOLERANCE_NS: Final = 2_000
#: A time is too late, or too early, only by more than this: more than clocks of host and GPU differ by, and more than
#: launches overlap by design.
_LONG_NS: Final = 1_000_000
#: A stream's last work is too long only if it takes this many times as long as another run of its kernel with the same
#: grid (of a copy, with as many bytes). In the 16 shared traces of real GPUs the ratio is at most 11.
_TIMES_LONGER: Final = 100


def mend_early_starts(gpu: Columns, calls: Columns, names: pd.Index) -> tuple[Columns, tuple[CutEnd, ...], int]:
    """The activities with possible starts, which were changed, and how many were left out.

    An activity that began long before the call that launched it began at that call, or at the end of what its stream
    did before. One that also ended long before that call is left out.

    Args:
        gpu: the GPU's activities, in order of start.
        calls: the calls into the runtime.
        names: the text of each name's number.
    """
    launch = row_with(calls["correlation"], gpu["correlation"])
    linked = launch >= 0
    called = np.where(linked, calls["ts"][np.maximum(launch, 0)] if len(calls["ts"]) else 0, np.iinfo(np.int64).min)
    early = linked & (gpu["ts"] < called - _LONG_NS)
    if not early.any() or early.sum() > max(1, _MOST_STALE * linked.sum()):
        return gpu, (), 0
    gone = early & (gpu["end"] < called - _LONG_NS)
    rows = np.flatnonzero(linked & ~gone)
    rows = rows[np.lexsort((gpu["ts"][rows], called[rows], gpu["stream"][rows], gpu["device"][rows]))]
    start = np.where(early, called, gpu["ts"])
    before = np.full(len(start), np.iinfo(np.int64).min)
    follows = (gpu["stream"][rows][1:] == gpu["stream"][rows][:-1]) & (
        gpu["device"][rows][1:] == gpu["device"][rows][:-1]
    )
    before[rows[1:][follows]] = gpu["end"][rows[:-1][follows]]
    start[early] = np.minimum(np.maximum(start, before), gpu["end"])[early]
    cut = tuple(
        _cut_end(gpu, names, at, recorded_ns=gpu["dur"][at], kept_ns=gpu["end"][at] - start[at])
        for at in np.flatnonzero(early & ~gone).tolist()
    )
    mended = {**gpu, "ts": start, "dur": gpu["end"] - start}
    kept = np.flatnonzero(~gone)
    order = kept[np.argsort(start[kept], kind="stable")]
    return in_order(mended, order), cut, int(gone.sum())


def cut_stale_ends(
    gpu: Columns, calls: Columns, names: pd.Index, *, host: tuple[int, int] | None = None
) -> tuple[CutEnd, ...]:
    """Cut stale ends in `gpu` (in order of start), and say which they were.

    Args:
        gpu: the GPU's activities.
        calls: the calls into the runtime.
        names: the text of each name's number.
        host: the start of the first event of the host and the end of the last one, None without any.
    """
    recorded = gpu["dur"].copy()
    cut: dict[int, CutEnd] = {}
    streams = _streams(gpu)

    def keep_until(at: int, until: int) -> None:
        gpu["end"][at] = until
        gpu["dur"][at] = until - gpu["ts"][at]
        cut[at] = _cut_end(gpu, names, at, recorded_ns=recorded[at], kept_ns=gpu["dur"][at])

    for rows in streams:
        for row, until in _stale(gpu["ts"][rows], gpu["end"][rows], gpu["correlation"][rows]):
            keep_until(int(rows[row]), until)
    for at, until in _waited_for(gpu, calls, names):
        keep_until(at, until)
    if len(gpu["ts"]):
        last = np.array([rows[-1] for rows in streams])
        for at, until in _longer_than_others(gpu, np.fromiter(cut, dtype=np.int64), last, names, host):
            keep_until(at, until)
    return tuple(sorted(cut.values(), key=lambda lost: (lost.kept_ns - lost.recorded_ns, lost.name)))


def _cut_end(gpu: Columns, names: pd.Index, at: int, *, recorded_ns: int, kept_ns: int) -> CutEnd:
    """What is said of the activity in a row whose length was changed."""
    return CutEnd(
        name=str(names[gpu["name"][at]]),
        device=int(gpu["device"][at]),
        stream=int(gpu["stream"][at]),
        recorded_ns=int(recorded_ns),
        kept_ns=int(kept_ns),
    )


def _streams(gpu: Columns) -> list[Ints]:
    """The rows of each stream's activities, in order of start."""
    order = np.lexsort((gpu["ts"], gpu["stream"], gpu["device"]))
    key = np.column_stack([gpu["device"], gpu["stream"]])[order]
    return np.split(order, np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1)


def _longer_than_others(
    gpu: Columns, cut: Ints, last: Ints, names: pd.Index, host: tuple[int, int] | None
) -> Iterator[tuple[int, int]]:
    """Row and end of each activity that is stale, and took longer than any other run of its kernel.

    An activity that was cut is still too long if the next one of its stream came late. The last one of a stream is
    stale if it took far longer. One of a kernel that ran once is compared with all the rest of the recording.

    Args:
        gpu: the GPU's activities.
        cut: the rows that were cut.
        last: the row of the last one of each stream.
        names: the text of each name's number.
        host: the start of the first event of the host and the end of the last one, None without any.
    """
    last = last[~np.isin(last, cut)]
    rows = np.concatenate([cut, last])
    rows = rows[(gpu["dur"][rows] > _LONG_NS) & (gpu["collective"][rows] < 0)]
    rows = rows[~by_name(gpu["name"][rows], names, naming.is_collective_kernel)]
    if len(rows) == 0:
        return
    same = pd.DataFrame({"name": gpu["name"], "blocks": gpu["blocks"], "bytes": gpu["bytes"]})
    of_kernel = same.groupby(list(same.columns), dropna=False, sort=False).ngroup().to_numpy()
    comparable = np.ones(len(of_kernel), dtype=bool)
    comparable[rows] = False
    longest = np.zeros(int(of_kernel.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, of_kernel[comparable], gpu["dur"][comparable])
    starts, ends = [], []
    if comparable.any():
        starts, ends = [int(gpu["ts"][comparable].min())], [int(gpu["end"][comparable].max())]
    if host is not None:
        starts, ends = [*starts, host[0]], [*ends, host[1]]
    rest, stop = (max(ends) - min(starts), max(ends)) if ends else (0, 0)
    was_cut = np.isin(rows, cut)
    for at, is_stale in zip(rows.tolist(), was_cut.tolist(), strict=True):
        other = int(longest[of_kernel[at]])
        start = int(gpu["ts"][at])
        length = int(gpu["dur"][at])
        # A last work that ends within the recording contradicts nothing: kernels of a fixed grid may take any time.
        beyond = int(gpu["end"][at]) > stop
        if other and (is_stale or beyond) and length > (1 if is_stale else _TIMES_LONGER) * other + _LONG_NS:
            yield at, start + other
        # A recording that is shorter than what counts as long says nothing about how long its only work took.
        elif not (other or is_stale) and rest > _LONG_NS and length > _TIMES_LONGER * rest and stop > start:
            yield at, stop


def _waited_for(gpu: Columns, calls: Columns, names: pd.Index) -> list[tuple[int, int]]:
    """Row of each activity whose recorded end is long after the host has waited for it, and the wait's end.

    A wait for the device covers all work that was launched before the wait began, on whichever thread. A trace does not
    say which GPU or which stream a call waits for. So this is asked where there is one GPU, and of waits for a stream
    where there is one stream.
    """
    if len(gpu["ts"]) == 0 or len(np.unique(gpu["device"])) > 1:
        return []
    scopes = {"device", "stream"} if len(np.unique(gpu["stream"])) == 1 else {"device"}
    waits = np.flatnonzero(by_name(calls["name"], names, lambda name: naming.wait_scope(name) in scopes))
    if len(waits) == 0:
        return []
    waits = waits[np.argsort(calls["ts"][waits], kind="stable")]
    launch = row_with(calls["correlation"], gpu["correlation"])
    launched = np.where(launch >= 0, calls["ts"][launch] + calls["dur"][launch], gpu["ts"])
    first = np.searchsorted(calls["ts"][waits], launched, side="left")
    is_waited = (launch >= 0) & (first < len(waits))
    until = np.zeros(len(first), dtype=np.int64)
    wait = waits[first[is_waited]]
    until[is_waited] = calls["ts"][wait] + calls["dur"][wait]
    late = is_waited & (gpu["end"] > until + _LONG_NS) & (until > gpu["ts"])
    if late.sum() > max(1, _MOST_WAITED * is_waited.sum()):
        return []
    next_start = _next_starts(gpu)
    return [(int(at), int(min(until[at], next_start[at]))) for at in np.flatnonzero(late)]


def _next_starts(gpu: Columns) -> Ints:
    """The next start on the stream of each activity, after its own; the largest int64 for a stream's last."""
    following = np.full(len(gpu["ts"]), np.iinfo(np.int64).max)
    for rows in _streams(gpu):
        start = gpu["ts"][rows]
        place = np.searchsorted(start, start, side="right")
        following[rows] = np.append(start, np.iinfo(np.int64).max)[place]
    return following


def _stale(start: Ints, end: Ints, correlation: Ints) -> list[tuple[int, int]]:
    """Row and next start of each stale end of one stream, whose activities come in order of start."""
    over = np.searchsorted(start, end - _TOLERANCE_NS, side="left") - np.arange(len(start)) - 1
    rows = np.flatnonzero(over >= STALE_OVER)
    # Branches of a graph, which have one launch, may run at once. They do on this stream if some activity overlaps one
    # or two of the next ones.
    serial = not np.count_nonzero((over > 0) & (over < STALE_OVER))
    rows = rows[over[rows] - _of_one_launch(correlation, rows, over[rows]) >= STALE_OVER]
    after = rows + 1 if serial else _next_launch(correlation)[rows]
    found = list(zip(rows.tolist(), start[after].tolist(), strict=True))
    if (last := _last_stale(start, end, correlation)) is not None and last[0] not in dict(found):
        found.append(last)
    # Starts at the very same time say nothing of the end.
    found = [(row, until) for row, until in found if until > start[row]]
    return found if len(found) <= max(1, _MOST_STALE * len(start)) else []


def _of_one_launch(correlation: Ints, rows: Ints, following: Ints) -> Ints:
    """How many of the activities that follow each row, as many as `following` says, have its launch."""
    count = len(correlation)
    order = np.argsort(correlation, kind="stable")
    launch = np.zeros(count, dtype=np.int64)
    launch[order[1:]] = np.cumsum(np.diff(correlation[order]) != 0)
    places = np.sort(launch * count + np.arange(count))
    here = launch[rows] * count + rows
    return np.searchsorted(places, here + following, side="right") - np.searchsorted(places, here, side="right")


def _next_launch(correlation: Ints) -> Ints:
    """For each activity the next one of another launch, or the last activity if there is no such one."""
    last = len(correlation) - 1
    changes = np.append(np.flatnonzero(np.diff(correlation)) + 1, last)
    return changes[np.minimum(np.searchsorted(changes, np.arange(last + 1), side="right"), len(changes) - 1)]


def _last_stale(start: Ints, end: Ints, correlation: Ints) -> tuple[int, int] | None:
    """Row and next start of a stale end over the last launches of a stream, which are too few for `STALE_OVER`."""
    for row in range(max(len(start) - STALE_OVER, 0), len(start) - 1):
        of_other_launch = correlation[row + 1 :] != correlation[row]
        if of_other_launch.all() and end[row] > end[row + 1 :].max() + _LONG_NS:
            return row, int(start[row + 1])
    return None
