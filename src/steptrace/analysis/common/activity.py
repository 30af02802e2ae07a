"""The spans in which a GPU was busy, by class of work, and how many of its multiprocessors had work.

Busy time is over all streams of a GPU. The time of a class of work (compute, comm, memory) is the union of its
activities, so that concurrent work on several streams counts once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.documents.subject import Absence
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import spans_of, start_end
from steptrace.trace.model import Trace, launched_at, once
from steptrace.trace.names import is_known_runtime
from steptrace.trace.records import LAUNCH_COVERAGE, launched_before


@dataclass(frozen=True)
class Activity:
    """The busy spans of one GPU, in normal form: of all its work, and by class. `count`: number of activities."""

    count: int
    busy: Spans
    compute: Spans
    comm: Spans
    memory: Spans

    @property
    def span(self) -> tuple[int, int]:
        """First start to last end of the GPU's work; (0, 0) without any."""
        return (int(self.busy[0, 0]), int(self.busy[-1, 1])) if len(self.busy) else (0, 0)


@once
def activity(trace: Trace) -> Activity:
    """The busy spans of the analysed GPU by class; none without one."""
    kernels = trace.kernels[["ts", "dur", "kind"]][(trace.kernels["device"] == trace.device).to_numpy()]
    spans = spans_of(kernels)
    kind = kernels["kind"].to_numpy(dtype=object)
    compute, comm, memory = (intervals.union(spans[kind == name]) for name in ("compute", "comm", "memory"))
    return Activity(len(kernels), intervals.union(spans), compute, comm, memory)


@once
def left_over(trace: Trace) -> NDArray[np.bool_]:
    """A mask of the analysed GPU's work for steps before the recorded ones.

    A host that runs ahead leaves such work to the GPU (`trace.records.launched_before`). No figure per step counts it.
    A trace without steps has none.
    """
    return _launched_before(trace) if len(trace.steps) else np.zeros(len(trace.kernels), dtype=bool)


def _launched_before(trace: Trace) -> NDArray[np.bool_]:
    """A mask of the analysed GPU's work that comes before all work with a launch."""
    work = trace.kernels
    here = (work["device"] == trace.device).to_numpy()
    linked = here & work["launch"].notna().to_numpy()
    if not linked.any():
        return np.zeros(len(work), dtype=bool)
    earlier = np.zeros(len(work), dtype=bool)
    rows = np.flatnonzero(here)
    earlier[rows[launched_before(work["ts"].to_numpy()[rows], linked[rows])]] = True
    return earlier


@once
def outside_steps(trace: Trace) -> NDArray[np.bool_]:
    """A mask of the GPU work that belongs to no step: work left over, and work launched before or after all steps.

    Such work is outside the time that figures per step divide. A trace without steps has none.
    """
    outside = left_over(trace)
    if not len(trace.steps):
        return outside
    launched = launched_at(trace)
    first = int(trace.steps["ts"].min())
    last = int((trace.steps["ts"] + trace.steps["host_dur"]).max())
    result: NDArray[np.bool_] = outside | ((launched >= 0) & ((launched < first) | (launched >= last)))
    return result


def sm_weighted_ns(trace: Trace, start: int, end: int) -> float | None:
    """The time of a window in ns, weighted by the share of the GPU's multiprocessors that had a block to run.

    It is None if the blocks of some kernel are unknown.
    """
    blocks = _blocks_in_time(trace)
    if blocks is None:
        return None
    edges, load = blocks
    until = np.append(0.0, np.cumsum(load * np.diff(edges)))
    return float(np.interp(end, edges, until) - np.interp(start, edges, until))


def _blocks_in_time(trace: Trace) -> tuple[Ints, NDArray[np.float64]] | None:
    """Blocks per multiprocessor of all running kernels, capped at 1, between each two neighbouring instants.

    Copies and sets run on none. None without kernels, or if the blocks of one are unknown.
    """
    kernels = trace.kernels
    chosen = ((kernels["device"] == trace.device) & (kernels["category"] == "kernel")).to_numpy()
    blocks = kernels["blocks_per_sm"].to_numpy(dtype=np.float64)[chosen]
    if len(blocks) == 0 or np.isnan(blocks).any():
        return None
    start, end = start_end(kernels)
    times = np.concatenate([start[chosen], end[chosen]])
    change = np.concatenate([blocks, -blocks])
    edges, place = np.unique(times, return_inverse=True)
    # Rounded: floats added and subtracted again must leave exactly 0.
    return edges, np.minimum(np.round(np.cumsum(np.bincount(place, weights=change)), 9), 1.0)[:-1]


@once
def launches_known(trace: Trace) -> bool:
    """Whether it is known what launched the analysed GPU's work: nearly all of it has a launch, or there is none.

    Otherwise nothing that follows from launches is measured: which operator, label or line work is of, how long it was
    queued, why the GPU was idle, or what a step waited for.
    """
    earlier = left_over(trace) if len(trace.steps) or _lacks_first_calls(trace) else _launched_before(trace)
    of_steps = (trace.kernels["device"] == trace.device).to_numpy() & ~earlier
    linked = trace.kernels["launch"].notna().to_numpy()[of_steps]
    return trace.meta.records.calls_whole and bool(linked.sum() >= LAUNCH_COVERAGE * len(linked))


def _lacks_first_calls(trace: Trace) -> bool:
    """Whether operators that call the runtime later on end before all recorded calls: then their calls were lost."""
    ops = trace.ops
    calls = trace.launches
    calling = ops["name"].iloc[calls["op"].dropna().astype("int64").to_numpy()]
    early = ops["name"][start_end(ops)[1] <= calls["ts"].min()]
    return bool(early.isin(calling.unique()).any())


def launches_measured(trace: Trace) -> bool:
    """Whether there are figures of a GPU that follow launches."""
    return trace.device is not None and launches_known(trace)


@once
def syncs_known(trace: Trace) -> bool:
    """Whether the trace would show syncs: it has the calls into the GPU's runtime, and which of them wait is known.

    It is known for CUDA, HIP and XPU, and for another runtime if one of its calls is known to wait. It is not known if
    calls are missing that may have waited.
    """
    if not (trace.meta.records.calls_whole and trace.meta.records.waits_whole):
        return False
    known = all(map(is_known_runtime, trace.meta.runtimes))
    if len(trace.launches) == 0:  # calls may be among the events that were not read
        unread = any(note.code == "events_not_read" for note in trace.meta.notes)
        return len(trace.kernels) == 0 and known and not unread
    return len(trace.syncs) > 0 or known


def why_calls_unknown(trace: Trace) -> Absence | None:
    """Why nothing is known that rests on the host's calls: syncs, or what launched work; None if both are known."""
    if len(trace.launches) == 0 and not (syncs_known(trace) and launches_known(trace)):
        return "no_runtime_calls"
    if not trace.meta.records.calls_whole or not launches_known(trace):
        return "launches_lost"
    if not trace.meta.records.waits_whole:
        return "waits_lost"
    return None if syncs_known(trace) else "unknown_runtime"
