"""How long a stage of a pipeline waits in receives, or is idle beside them, by process group.

Sends and receives are known by PyTorch's description of them. NCCL runs an all-to-all with the same kernel, and PyTorch
describes that one. PyTorch describes the parts of a batch (`batch_isend_irecv`) on operators before its launch, and a
trace with these has the batch's process group and sources. A kernel without any description counts as a batch only in
a trace that describes other collectives.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import activity
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.gaps import gap_causes
from steptrace.analysis.common.registry import table_part
from steptrace.analysis.communication import gpu_collectives
from steptrace.documents.subjects.pipeline import PipelineStage
from steptrace.documents.table import frame_of
from steptrace.intervals import Spans
from steptrace.trace.columns import Mask, row_numbers
from steptrace.trace.model import Trace, once

#: Causes of idle time for which a receive can be to blame. In other causes the host was late for reasons of its own.
_CAUSES = ("sync", "dependency")
_RECEIVES = ("recv", "send_recv")
#: What PyTorch always says of a collective that it describes.
_DESCRIPTION = ["group", "group_size", "dtype", "in_elements"]
_FEWEST_STAGES = 2
#: Two ranks have interleaved stages if one direction has this share of the other's receives: with two stages each it is
#: a half, with more it is more. Our threshold.
_BOTH_WAYS = 0.25


@table_part("pipeline")
@once
def pipeline(trace: Trace) -> pd.DataFrame:
    """The bubble of this rank by process group (table `pipeline`); empty without receives.

    If the trace has steps, receives outside them do not count.
    """
    times = gpu_collectives(trace)
    described = trace.collectives.set_index("kernel").loc[row_numbers(times["kernel"])].reset_index()
    chosen = _receives(described)
    if len(trace.steps):
        chosen &= times["step"].notna().to_numpy()
    sources = _sources(described)[chosen]
    times = times[chosen].assign(sources=sources, is_backward=_is_backward(trace, times["kernel"])[chosen])
    low, high = gpu_window(trace)
    if not len(times) or high <= low:
        return frame_of(PipelineStage)
    window = intervals.union(intervals.spans([low], [high]))
    rows = []
    for _, receives in times.groupby("group", dropna=False, sort=True):
        group = receives["group"].iloc[0]
        start = receives["ts"].to_numpy(dtype=np.int64)
        spans = intervals.union(intervals.spans(start, start + receives["dur_ns"].to_numpy(dtype=np.int64)))
        waiting = intervals.intersect(intervals.subtract(spans, activity(trace).compute), window)
        idle = intervals.intersect(_idle_beside(trace, spans), window)
        sizes = receives["ranks"].dropna()
        stages = int(sizes.max()) if len(sizes) else None
        microbatches = _microbatches(receives, len(trace.steps), stages)
        rows.append(
            {
                "group": None if pd.isna(group) else str(group),
                "receives": len(receives),
                "wait_ns": (wait_ns := intervals.measure(waiting)),
                "idle_ns": (idle_ns := intervals.measure(idle)),
                "bubble": (wait_ns + idle_ns) / (high - low),
                "stages": stages,
                "microbatches": microbatches,
                "ideal_bubble": None
                if microbatches is None or stages is None
                else (stages - 1) / (microbatches + stages - 1),
            }
        )
    return frame_of(PipelineStage, rows)


def _receives(described: pd.DataFrame) -> Mask:
    """The receives, and the batches of sends and receives, among collectives."""
    known: Mask = described[_DESCRIPTION].notna().any(axis=1).to_numpy()
    named: Mask = described["name"].isin(_RECEIVES).to_numpy()
    return named & (known | bool(known.any()))


def _idle_beside(trace: Trace, receives: Spans) -> Spans:
    """The gaps between a GPU's work that end or begin with a receive, if a sync or a dependency causes them."""
    gaps, cause = gap_causes(trace)
    beside = np.isin(gaps[:, 1], receives[:, 0]) | np.isin(gaps[:, 0], receives[:, 1])
    return gaps[beside & np.isin(cause, _CAUSES)]


def _sources(described: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.object_]]":
    """The ranks that each collective receives from, as a list; empty where they are not known."""
    several = described["from_ranks"].to_list()
    single = described["from_rank"].to_list()
    ranks_of_rows = np.empty(len(described), dtype=object)
    for row, (ranks, rank) in enumerate(zip(several, single, strict=True)):
        if pd.notna(ranks):
            ranks_of_rows[row] = str(ranks).split(",")
        elif pd.isna(rank):
            ranks_of_rows[row] = []
        else:
            ranks_of_rows[row] = [str(rank)]
    return ranks_of_rows


def _is_backward(trace: Trace, kernels: "pd.Series[Any]") -> Mask:
    """Whether the first computation after each collective was launched by another thread than the collective.

    The backward pass runs on autograd's thread. So this tells gradients from activations where one rank sends both.
    """
    table = trace.kernels
    rows = row_numbers(kernels)
    launch = row_numbers(table["launch"])
    computes = np.flatnonzero(
        (table["kind"] == "compute").to_numpy() & (table["device"] == trace.device).to_numpy() & (launch >= 0)
    )
    ts = table["ts"].to_numpy()
    end = (table["ts"] + table["dur"]).to_numpy()
    computes = computes[np.argsort(ts[computes], kind="stable")]
    after = np.searchsorted(ts[computes], end[rows])
    is_known = (after < len(computes)) & (launch[rows] >= 0)
    thread = trace.launches["thread"].to_numpy()
    result = np.zeros(len(rows), dtype=bool)
    following = launch[computes[after[is_known]]]
    result[is_known] = thread[following] != thread[launch[rows[is_known]]]
    return result


def _microbatches(receives: pd.DataFrame, steps: int, stages: int | None) -> float | None:
    """How many microbatches a step receives in one direction; None where that is not known.

    They are the receives from one rank, the one that sends most. A stage in the middle receives each microbatch twice:
    its activations from one side, its gradients from the other. If two ranks have interleaved stages, one neighbour
    sends both, so the direction with more receives counts. Interleaved stages count each microbatch once a stage, and
    that is the number on which their ideal bubble depends.
    """
    if not steps or stages is None or stages < _FEWEST_STAGES:
        return None
    if stages == _FEWEST_STAGES:
        if (receives["collective"] != "recv").any() and (receives["sources"].map(len) == 0).any():
            return None
        several = receives["sources"].map(len).clip(lower=1)
        backward = int(several[receives["is_backward"]].sum())
        directions = sorted((backward, int(several.sum()) - backward))
        # A few receives are followed by computation that does not need them.
        return (directions[1] if directions[0] >= _BOTH_WAYS * directions[1] else sum(directions)) / steps
    if (receives["sources"].map(len) == 0).any():
        return None
    return float(receives["sources"].explode().value_counts().max()) / steps
