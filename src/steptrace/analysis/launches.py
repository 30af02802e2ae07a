"""Launches of GPU work: the host's time, the work's time, and the delay of its start by cause.

The delay runs from the end of the launching call to the start of its work. While earlier work of the same stream runs
it is queueing: the GPU is the slower side. The rest is dependency if the thread made a stream wait for an event just
before the launch, and otherwise launch latency: the stream was free, but the work had not begun. Holistic Trace
Analysis reports the delay undivided.
"""

import re
from typing import Annotated, Any

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import launches_measured, left_over
from steptrace.analysis.common.gaps import waits_for_event
from steptrace.analysis.common.registry import part, reads, table, without_rows_of
from steptrace.documents.base import Document, field, key, reference
from steptrace.documents.launches import Distribution, LaunchCall, Launches
from steptrace.documents.table import frame_of, rows, validate
from steptrace.limits import EXCESS_DELAY_NS, SLOW_LAUNCH_NS
from steptrace.trace.columns import ended_before, map_names, references, row_numbers, texts
from steptrace.trace.model import Trace, once

#: The times and flags of a launch that are summed up.
TIMES = ("host_ns", "device_ns", "delay_ns", "queueing_ns", "dependency_ns", "latency_ns")
FLAGS = ("short_kernels", "slow_launches", "excess_delays")

_GRAPH = re.compile(r"GraphLaunch")
_KINDS = {"memcpy": "copy", "memset": "set"}


class LaunchTime(Document, frozen=True):
    """One host call and the work it put on one GPU: one activity, or for a graph many. `queueing_ns`, `dependency_ns`
    and `latency_ns` add up to `delay_ns`."""

    launch: Annotated[int, reference("launches", is_key=True)]
    call: Annotated[str, field("Name of the call.")]
    kind: Annotated[str, field("`kernel`, `graph`, `copy` or `set`, by what the call launched.")]
    op: Annotated[str | None, field("The innermost operator around the call.")]
    step: Annotated[int | None, reference("steps")]
    device: Annotated[int, key("", "GPU.")]
    stream: Annotated[int, field("Stream of its first activity.")]
    activities: Annotated[int, field("How many activities it caused.")]
    host_ns: Annotated[int, field("Length of the call.")]
    device_ns: Annotated[int, field("Time in which its work ran: the union of its activities.")]
    delay_ns: Annotated[int, field("From the call's end to its work's start; 0 if that came first.")]
    queueing_ns: Annotated[int, field("The part of the delay with earlier work of the stream still to finish.")]
    dependency_ns: Annotated[int, field("The rest, if the stream had to wait for an event.")]
    latency_ns: Annotated[int, field("The rest, if not: the stream was free, the work had not begun.")]


@table("launch_times", LaunchTime)
@once
@without_rows_of("kernels", LaunchTime)
def launch_times(trace: Trace) -> pd.DataFrame:
    """Each call that put work on a GPU, whatever its name, with the times of both (table `launch_times`)."""
    # A separate call, so that its arrays are freed before the columns become a table.
    return frame_of(LaunchTime, _columns(trace))


def _columns(trace: Trace) -> dict[str, Any] | tuple[()]:
    """Columns of `launch_times`; no rows without work."""
    device = trace.device
    here = (trace.kernels["device"] == device).to_numpy()
    free = ended_before(trace.kernels[["ts", "dur", "stream"]][here], ["stream"])  # in order of start, as `kernels` is
    linked = trace.kernels["launch"].notna().to_numpy()
    # Of the columns that are read alone: copies of all of them would be the peak of memory.
    kernels = trace.kernels[["ts", "dur", "stream", "category", "launch"]][here & linked]
    free = free[linked[here]]
    if len(kernels) == 0:
        return ()
    launch = row_numbers(kernels["launch"])
    # By launch, then start: the first row of each launch is its first activity.
    order = np.lexsort((kernels["ts"].to_numpy(), launch))
    launch = launch[order]
    free = free[order]
    kernels = kernels.iloc[order]
    first = np.flatnonzero(np.append(True, launch[1:] != launch[:-1]))
    row = launch[first]
    start = kernels["ts"].to_numpy()[first]
    call = trace.launches[["ts", "dur", "name", "op", "step"]].iloc[row]
    host = call["dur"].to_numpy()
    number = np.repeat(np.arange(len(first)), activities := np.diff(np.append(first, len(launch))))
    begin = kernels["ts"].to_numpy()
    end = (kernels["ts"] + kernels["dur"]).to_numpy()
    returned = call["ts"].to_numpy() + host
    delay = np.maximum(start - returned, 0)
    queueing = np.clip(free[first] - returned, 0, delay)
    dependency = np.where(waits_for_event(trace, row), delay - queueing, 0)
    kind = map_names(kernels["category"].iloc[first], lambda name: _KINDS.get(name, "kernel"), object)
    kind[map_names(call["name"], _GRAPH.search)] = "graph"
    return {
        "launch": row,
        "call": call["name"].to_numpy(dtype=object),
        "kind": kind,
        "op": texts(trace.ops["name"], row_numbers(call["op"])),
        "step": references(row_numbers(call["step"])),
        "device": device,
        "stream": kernels["stream"].to_numpy()[first],
        "activities": activities,
        "host_ns": host,
        "device_ns": intervals.measure_by_group(number, begin, end, len(first)),
        "delay_ns": delay,
        "queueing_ns": queueing,
        "dependency_ns": dependency,
        "latency_ns": delay - queueing - dependency,
    }


@once
def launch_calls(trace: Trace) -> pd.DataFrame:
    """The rows of `launch_times` by call and kind, the most frequent first."""
    times = launch_times(trace)
    groups = times.assign(**flags(times)).groupby(["call", "kind"], sort=True)
    table = groups[["activities", *TIMES, *FLAGS]].sum().assign(count=groups.size()).reset_index()
    table = table.sort_values(["count", "call"], ascending=[False, True], kind="stable", ignore_index=True)
    return validate(table, LaunchCall)


def flags(times: pd.DataFrame) -> dict[str, "pd.Series[bool]"]:
    """Masks of the short kernels, slow launches and excess delays in `launch_times`."""
    return {
        "short_kernels": times["device_ns"] < times["host_ns"],
        "slow_launches": times["host_ns"] > SLOW_LAUNCH_NS,
        "excess_delays": times["latency_ns"] > EXCESS_DELAY_NS,
    }


@part("launches")
@reads("launch_times")
@once
def launches(trace: Trace) -> Launches | None:
    """Sum, median, 95th percentile and maximum of each time; counts; by call. None where launches are unknown."""
    device = trace.device
    kernels = trace.kernels
    if not launches_measured(trace):
        return None
    times = launch_times(trace)
    times = times.assign(**flags(times))
    linked = kernels.loc[(kernels["device"] == device).to_numpy() & ~left_over(trace), "launch"].notna()
    figures: dict[str, Any] = {name: int(times[name].sum()) for name in FLAGS}
    figures |= {name: _distribution(times[name]) for name in TIMES}
    return Launches(
        count=len(times),
        activities=int(linked.sum()),
        unlinked=int((~linked).sum()),
        **figures,
        by_call=rows(launch_calls(trace), LaunchCall),
    )


def _distribution(values: "pd.Series[int]") -> Distribution | None:
    if len(values) == 0:
        return None
    return Distribution(
        sum=int(values.sum()),
        median=float(values.median()),
        p95=float(values.quantile(0.95)),
        max=int(values.max()),
    )
