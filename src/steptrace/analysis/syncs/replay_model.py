"""A trace's host and GPU queues, with what each entry had to wait for: the model that `replay` runs through again.

**Host.** The training threads are one line of control: PyTorch's main thread waits while its backward thread works. On
that line stand launches and synchronisations; the time between them is the host's own and stays as it was.

**GPU.** Each stream works off what was launched on it, one after the other, in the time it took. An activity begins
once it is launched, its predecessor on the stream is done, and the work of another stream that it waits for is done.
The last of these to come true bound it; what then still passed until it began is its latency and stays. To the others
the trace's usual latency is added, so that they can bind in a replay.

**Synchronisations.** A copy waits for itself; a device synchronisation for all work launched before it. Traces do not
say which stream or event another call waited for: it is taken to be the work, launched before, that was the last to be
done when the call returned. What a call took beyond its waiting is its own cost and stays.

A negative latency or cost would mean that something happened before its cause. None is allowed: a trace that needs
one is replayed late, and the difference shows that the model does not fit it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from steptrace.analysis.idle.measure import KERNEL_WAIT_BELOW_NS
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import row_numbers

#: Host and GPU clocks agree to about this: work that ends so much after a call returned may still be what it awaited.
CLOCK_SKEW_NS = 20_000

_COPIES = ("d2h_copy", "h2d_copy")
_WHOLE_DEVICE = ("Device", "Ctx", "Thread")
_NEVER = np.iinfo(np.int64).min // 4


class Tables(Protocol):
    """The tables of a trace that its queues are made of (see `steptrace.schema`)."""

    @property
    def threads(self) -> pd.DataFrame:
        """Which threads do training work."""

    @property
    def steps(self) -> pd.DataFrame:
        """The training steps."""

    @property
    def launches(self) -> pd.DataFrame:
        """The host's calls into the runtime."""

    @property
    def kernels(self) -> pd.DataFrame:
        """The GPU's work."""

    @property
    def syncs(self) -> pd.DataFrame:
        """The host's waits."""


@dataclass(frozen=True)
class StoredTables:
    """The same, read back from the files that an analysis wrote."""

    threads: pd.DataFrame
    steps: pd.DataFrame
    launches: pd.DataFrame
    kernels: pd.DataFrame
    syncs: pd.DataFrame

    @classmethod
    def read(cls, folder: Path) -> "StoredTables":
        """Read `<name>.parquet` of each; `OSError` if one is missing."""
        return cls(**{name: pd.read_parquet(folder / f"{name}.parquet") for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Activities:
    """The GPU's work in the order of its launches; int64 arrays, one entry an activity, times in ns.

    `before` and `other` are the entries that it follows on its stream and waits for on another one, -1 for none;
    `launch_latency`, `queue_latency` and `other_latency` what passes at least between each condition and its start.
    """

    launched: Ints
    start: Ints
    dur: Ints
    in_step: Ints
    before: Ints
    other: Ints
    launch_latency: Ints
    queue_latency: Ints
    other_latency: Ints


@dataclass(frozen=True)
class Waits:
    """The training threads' synchronisations in order of time; one entry each, times in ns.

    `rows` are rows of `syncs`; `awaits` holds entries of the activities; `own_ns` is what the call takes beyond its
    waiting, `kept_ns` what of its length remains if its calls are gone.
    """

    rows: Ints
    start: Ints
    dur: Ints
    awaits: tuple[tuple[int, ...], ...]
    own_ns: Ints
    kept_ns: Ints


@dataclass(frozen=True)
class Queues:
    """Everything that a replay needs. `window` is the host's time from the first step's start to the last one's end.

    `unexplained_ns` is the GPU's waiting that no condition accounts for; it stays as it was.
    """

    steps: int
    window: tuple[int, int]
    work: Activities
    waits: Waits
    unexplained_ns: int


def queues_of(trace: Tables) -> Queues:
    """The queues of a trace. Without steps the whole trace counts, and `steps` is 0."""
    work, order, unexplained_ns = _activities(trace.kernels, trace.launches)
    waits = _waits(trace, work, _streams(trace.kernels)[order], row_numbers(trace.kernels["launch"])[order])
    steps = trace.steps
    if len(steps):
        window = (int(steps["ts"].iloc[0]), int((steps["ts"] + steps["host_dur"]).max()))
    else:
        begins = [int(work.launched[0])] if len(work.launched) else []
        ends = [int((trace.launches["ts"] + trace.launches["dur"]).max())] if len(trace.launches) else []
        window = (min(begins, default=0), max(ends, default=0))
        work = replace(work, in_step=np.ones_like(work.in_step))
    return Queues(len(steps), window, work, waits, unexplained_ns)


def _streams(kernels: pd.DataFrame) -> Ints:
    """A number for each activity's stream, distinct over the devices."""
    return np.asarray(kernels.groupby(["device", "stream"]).ngroup(), dtype=np.int64)


def _activities(kernels: pd.DataFrame, launches: pd.DataFrame) -> tuple[Activities, Ints, int]:
    """The activities, the rows of `kernels` in their order, and the GPU's unexplained waiting."""
    stream = _streams(kernels)
    launched = _launch_times(kernels, launches, stream)
    ts, dur = kernels["ts"].to_numpy(), kernels["dur"].to_numpy()
    order = np.lexsort((ts + dur, ts, launched))
    stream, launched, start, dur = stream[order], launched[order], ts[order], dur[order]
    end = start + dur
    before = _predecessors(stream)
    done_before = np.where(before >= 0, end[before], _NEVER) if len(end) else end
    usual_launch, usual_queue = _usual_latencies(launched, start, done_before)
    by_launch, by_queue = launched + usual_launch, done_before + usual_queue

    late = start - np.maximum(by_launch, by_queue) >= KERNEL_WAIT_BELOW_NS
    told = _told_to_wait(launches, launched, before)
    other = _other_streams_work(np.flatnonzero(late | told), stream, start, end)
    done_other = np.where(other >= 0, end[other], _NEVER) if len(end) else end
    # Without a call that says so, other work is the cause of a late start only if it ended last.
    only_guessed = ~told & (done_other + usual_queue <= np.maximum(by_launch, by_queue))
    other, done_other = np.where(only_guessed, -1, other), np.where(only_guessed, _NEVER, done_other)

    by = np.stack([by_launch, by_queue, done_other + usual_queue])
    binding = np.argmax(by, axis=0) if len(end) else end
    passed = np.stack([start - launched, start - done_before, start - done_other])
    usual = np.array([[usual_launch], [usual_queue], [usual_queue]])
    latency = np.where(np.arange(3)[:, None] == binding, passed, np.minimum(passed, usual))
    latency = np.maximum(latency, 0)
    excess = np.where(np.arange(3)[:, None] == binding, passed - usual, 0).max(axis=0)
    unexplained_ns = int(excess[excess >= KERNEL_WAIT_BELOW_NS].sum())
    in_step = (row_numbers(kernels["step"])[order] >= 0).astype(np.int64)
    work = Activities(launched, start, dur, in_step, before, other, latency[0], latency[1], latency[2])
    return work, order, unexplained_ns


def _launch_times(kernels: pd.DataFrame, launches: pd.DataFrame, stream: Ints) -> Ints:
    """When each activity was launched. One whose launch the trace lacks counts as launched with its predecessor on the
    stream, or, if that has none either, with its successor."""
    row = row_numbers(kernels["launch"])
    ts = kernels["ts"].to_numpy()
    known = np.where(row >= 0, launches["ts"].to_numpy()[np.maximum(row, 0)], -1) if len(launches) else ts * 0 - 1
    order = np.lexsort((ts + kernels["dur"].to_numpy(), ts, stream))
    given = pd.Series(known[order], dtype="Int64").mask(known[order] < 0)
    filled = given.groupby(stream[order]).ffill()
    filled = filled.fillna(given.groupby(stream[order]).bfill()).fillna(pd.Series(ts[order], dtype="Int64"))
    launched = np.empty(len(ts), dtype=np.int64)
    launched[order] = np.minimum(filled.to_numpy(dtype=np.int64), ts[order])
    return launched


def _predecessors(stream: Ints) -> Ints:
    """The entry before each on its stream, -1 for the first."""
    rows = pd.Series(np.arange(len(stream)))
    return np.asarray(rows.groupby(stream).shift().fillna(-1), dtype=np.int64)


def _usual_latencies(launched: Ints, start: Ints, done_before: Ints) -> tuple[int, int]:
    """Medians of launch to start on an idle stream, and of end to start of work that was queued; each under 30 us."""
    after_launch, after_work = start - launched, start - done_before
    idle = (launched >= done_before) & (after_launch >= 0) & (after_launch < KERNEL_WAIT_BELOW_NS)
    usual_launch = int(np.median(after_launch[idle])) if idle.any() else 0
    queued = (launched + 2 * usual_launch < done_before) & (after_work >= 0) & (after_work < KERNEL_WAIT_BELOW_NS)
    return usual_launch, int(np.median(after_work[queued])) if queued.any() else 0


def _told_to_wait(launches: pd.DataFrame, launched: Ints, before: Ints) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether a stream was told to wait for an event since the last launch on the activity's stream."""
    is_wait = launches["name"].isin(naming.STREAM_WAIT_EVENTS).to_numpy()
    told = np.sort(launches["ts"].to_numpy()[is_wait])
    since = np.where(before >= 0, launched[before], -1) if len(before) else before
    result = np.searchsorted(told, launched) > np.searchsorted(told, since)
    return np.asarray(result & (before >= 0) if len(before) else result, dtype=bool)


def _other_streams_work(rows: Ints, stream: Ints, start: Ints, end: Ints) -> Ints:
    """For each of `rows` the work of another stream, launched before it, that was the last to end before its start."""
    found = np.full(len(stream), -1, dtype=np.int64)
    best = np.full(len(rows), _NEVER, dtype=np.int64)
    for number in np.unique(stream):
        mine = np.flatnonzero(stream == number)
        reach = np.maximum.accumulate(end[mine])
        place = np.minimum(np.searchsorted(mine, rows, side="left"), np.searchsorted(reach, start[rows], side="right"))
        candidate = mine[np.maximum(place - 1, 0)]
        better = (place > 0) & (stream[rows] != number) & (end[candidate] > best)
        found[rows[better]], best[better] = candidate[better], end[candidate][better]
    return found


def _waits(trace: Tables, work: Activities, stream: Ints, launch: Ints) -> Waits:
    syncs = trace.syncs
    training = trace.threads["training"].to_numpy(dtype=bool)
    rows = np.flatnonzero(training[syncs["thread"].to_numpy()]) if len(syncs) else np.empty(0, dtype=np.int64)
    chosen = syncs.iloc[rows]
    start, dur = chosen["ts"].to_numpy(), chosen["dur"].to_numpy()
    owner: dict[int, int] = {int(row): entry for entry, row in enumerate(launch) if row >= 0}
    end = work.start + work.dur
    entries = [np.flatnonzero(stream == number) for number in np.unique(stream)]
    lines = [(mine, work.launched[mine], np.maximum.accumulate(end[mine])) for mine in entries]
    awaits = []
    own = np.empty(len(rows), dtype=np.int64)
    for i, (kind, call) in enumerate(zip(chosen["kind"], chosen["launch"], strict=True)):
        awaits.append(_awaited(str(kind), owner.get(int(call)), (int(start[i]), int(start[i] + dur[i])), lines))
        done = max((int(end[entry]) for entry in awaits[-1]), default=0)
        own[i] = dur[i] - min(max(done - int(start[i]), 0), int(dur[i]))
    return Waits(rows, start, dur, tuple(awaits), own, dur - chosen["blocked_ns"].to_numpy())


def _awaited(
    kind: str, copy: int | None, span: tuple[int, int], lines: list[tuple[Ints, Ints, Ints]]
) -> tuple[int, ...]:
    """The activities that a synchronisation waits for; `lines` holds entries, launches and ends of each stream."""
    if copy is not None and (kind in _COPIES or naming.is_sync_copy(kind)):
        return (copy,)
    begin, returned = span
    latest = returned + CLOCK_SKEW_NS
    found: list[tuple[int, int]] = []
    for mine, launched, reach in lines:
        last = int(np.searchsorted(launched, begin, side="right")) - 1
        if "Event" in kind:
            last = min(last, int(np.searchsorted(reach, returned, side="right")) - 1)
        if last >= 0 and reach[last] <= latest:
            found.append((int(reach[last]), int(mine[last])))
    if any(word in kind for word in _WHOLE_DEVICE):
        return tuple(entry for _, entry in found)
    return (max(found)[1],) if found else ()
