"""Memory of PyTorch's allocators: the curve of each device, its peak, and the blocks live at the peak.

A block lives from its allocation to its release. Its category follows from the parts of the step (data, forward, loss,
backward, optimizer) of these two events:

* released in the part that allocated it: `temporary`;
* otherwise by the part that allocated it: data `inputs`; forward and loss `activations` (kept for the backward pass);
  backward `gradients`; optimizer `optimizer_state`; outside of all parts `unknown`;
* allocated before the trace: `parameters`, `gradients`, `optimizer_state` and `workspaces` (cuBLAS's, which PyTorch
  allocates once per stream) by the bytes that the run's memory.json gives for each between two steps, the rest
  `unknown`.

Activations that checkpointing recomputes in the backward pass are therefore `temporary`. The parts are our loop's
labels; without them PyTorch's labels of the loader and the optimizer, the span of the backward operators between two of
these, and forward for the rest.

Memory that a library allocates without PyTorch, or that a loader worker shares, is not included.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.common.labels import labelled_parts, unlabelled_parts
from steptrace.analysis.common.registry import part, without_rows_of
from steptrace.analysis.common.series import running_sum
from steptrace.documents.base import Document, field, key, reference
from steptrace.documents.memory import MEMORY_CATEGORIES, AtPeak, DeviceMemory
from steptrace.documents.run import RunMemory
from steptrace.documents.table import frame_of, records, rows
from steptrace.intervals import Ints
from steptrace.trace.columns import (
    counted,
    innermost,
    nearest,
    optional,
    references,
    row_numbers,
    start_end,
    take,
    texts,
    unmeasured,
)
from steptrace.trace.decode import MISSING
from steptrace.trace.model import Trace, once
from steptrace.trace.source import SITE_COLUMNS, sites_of

_OF_PHASE: Final = {
    "data": "inputs",
    "forward": "activations",
    "loss": "activations",
    "backward": "gradients",
    "optimizer": "optimizer_state",
}
#: Most origins, and most points of a curve, in summary.json.
MOST: Final = 25
POINTS: Final = 400
_KINDS: Final = {0: "cpu", 1: "cuda"}
DEVICE: Final = ["device_type", "device"]
HOST: Final = 0
#: Fewer steps have none before the last one.
_STEPS_TO_STAY: Final = 2


class MemoryBlock(Document, frozen=True):
    """One block of memory from its allocation to its release, as far as the trace holds them."""

    device_type: Annotated[int, key("", "0 is the host, 1 a CUDA or ROCm device.")]
    device: Annotated[int | None, key("", "Index of the device, null for the host.")]
    address: Annotated[int, field("Address of the block.")]
    bytes: Annotated[int, field("Its size.")]
    ts: Annotated[int | None, field("When it was allocated; null if that was before the trace.")]
    until: Annotated[int | None, field("When it was released, in ns; null if the trace does not hold it.")]
    thread: Annotated[int | None, reference("threads", "that allocated it; null before the trace.")]
    op: Annotated[int | None, reference("ops", "the innermost operator around the allocation.")]
    phase: Annotated[str | None, field("Part of the step it was allocated in; null outside of them.")]
    category: Annotated[str, field("As `AtPeak.category`.")]


@once
@without_rows_of("memory", MemoryBlock)
def memory_blocks(trace: Trace) -> pd.DataFrame:
    """Every block of memory with its life and category (table `memory_blocks`), by device and time of allocation.

    A block with only a release was allocated before the trace. If an address is allocated again without a release in
    between, the release was lost, and the first block ends there.
    """
    events = trace.memory[(trace.memory["address"].notna() & (trace.memory["bytes"] != 0)).to_numpy()]
    kind = events["device_type"].to_numpy()
    device = row_numbers(events["device"])
    address = row_numbers(events["address"])
    ts = events["ts"].to_numpy()
    size = events["bytes"].to_numpy()
    order = np.lexsort((np.arange(len(events)), address, device, kind))
    places = np.stack([kind, device, address], axis=1)[order]
    same = np.append(False, (places[1:] == places[:-1]).all(axis=1))[: len(order)]  # as the event before
    gives = size[order] > 0
    first = np.flatnonzero(gives)
    follows = np.append(same[1:], False)[first]
    ends = np.where(follows, np.append(ts[order][1:], MISSING)[first], MISSING)
    lone = np.flatnonzero(~gives & ~same)
    rows = np.concatenate([order[first], order[lone]])
    begin = np.concatenate([ts[order[first]], np.full(len(lone), MISSING)])
    until = np.concatenate([ends, ts[order[lone]]])
    op = np.concatenate([innermost(trace.ops, events.iloc[order[first]]), np.full(len(lone), -1)])
    phase, category = _categories(trace, begin, until)
    allocated = begin != MISSING
    table: pd.DataFrame = frame_of(
        MemoryBlock,
        {
            "device_type": kind[rows],
            "device": events["device"].array[rows],
            "address": address[rows],
            "bytes": np.abs(size[rows]),
            "ts": optional(begin),
            "until": optional(until),
            "thread": references(np.where(allocated, events["thread"].to_numpy()[rows], -1)),
            "op": references(op),
            "phase": phase,
            "category": category,
        },
    )
    return table.sort_values([*DEVICE, "ts", "address"], kind="stable", na_position="first", ignore_index=True)


def _on_device(table: pd.DataFrame, kind: Any, device: Any) -> pd.DataFrame:
    """The rows of a table for one device."""
    same = row_numbers(table["device"]) == (-1 if pd.isna(device) else int(device))
    of_device: pd.DataFrame = table[(table["device_type"] == kind).to_numpy() & same]
    return of_device


def _categories(trace: Trace, begin: Ints, until: Ints) -> tuple[list[str | None], list[str]]:
    """The part of the step that each block was allocated in, and its category."""
    edges, names = _parts(trace)
    born = np.searchsorted(edges, begin, side="right") - 1
    died = np.where(until == MISSING, -1, np.searchsorted(edges, until, side="right") - 1)
    phase = [None if at == MISSING else names[part] for at, part in zip(begin, born, strict=True)]
    short = (born == died) & (begin != MISSING)
    category = [
        "temporary" if brief else _OF_PHASE.get(name or "", "unknown") for brief, name in zip(short, phase, strict=True)
    ]
    return phase, category


def _parts(trace: Trace) -> tuple[Ints, list[str | None]]:
    """The instants at which a part of a step begins or ends, and the part from each to the next (None: no part)."""
    labels = labelled_parts(trace)
    rest = None
    spans = list(zip(*(times.tolist() for times in start_end(labels)), labels["name"].astype(str), strict=True))
    if not any(name == "forward" for *_, name in spans):
        spans = unlabelled_parts(trace)
        rest = "forward"
    edges = [MISSING]
    names = [rest]
    for start, end, name in sorted(spans):
        start = max(start, edges[-1])
        if end > start:
            edges += [start, end]
            names += [name, rest]
    return np.array(edges, dtype=np.int64), names


def _level(blocks: pd.DataFrame, start: int) -> tuple[Ints, Ints]:
    """The trace's start and the instants at which the live blocks of a device change; their bytes from each on."""
    begin, end = _life(blocks)
    size = blocks["bytes"].to_numpy()
    times = np.concatenate([[start], begin[begin != MISSING], end[end != MISSING]])
    instants, change = running_sum(times, np.concatenate([[0], size[begin != MISSING], -size[end != MISSING]]))
    return instants, change + int(size[begin == MISSING].sum())


@part("memory")
def memory(trace: Trace) -> tuple[DeviceMemory, ...] | None:
    """One entry a device, the highest peak first; None where the profiler recorded no allocations."""
    if len(trace.memory) == 0:
        return None
    devices = memory_blocks(trace)[DEVICE].drop_duplicates().itertuples(index=False)
    entries = [_device(trace, int(kind), device) for kind, device in devices]
    return tuple(sorted(entries, key=lambda entry: -entry.peak_allocated_bytes)) or None


def _device(trace: Trace, kind: int, device: Any) -> DeviceMemory:
    """The peak of one device, and its curve.

    On a GPU the bytes from before the trace come from the allocator's counter. The host's counter begins with the
    profiler, so there they come from the run's memory.json; without it the curve holds only allocations within the
    trace.
    """
    name = _KINDS.get(kind, str(kind))
    record = trace.memory_record
    record = None if record is None or record.device != name else record
    events, blocks = (_on_device(table, kind, device) for table in (trace.memory, memory_blocks(trace)))
    instants, level = _level(blocks, trace.window[0])
    before, agrees = _before(events, instants, level, record)
    level = level + (before or 0)
    peak = int(np.argmax(level))
    at = int(instants[peak])
    allocated = int(level[peak])
    reserved = _reserved(events, instants)
    most_reserved = None if pd.isna(reserved).all() else int(pd.Series(reserved).max())
    live = _live_at(trace, blocks, at, allocated, {} if record is None else record.held)
    sums = live.groupby("category")["bytes"].sum()
    capacity, source = _capacity(trace, kind, device, record)
    taken = allocated if most_reserved is None else most_reserved
    return DeviceMemory(
        device_type=name,
        device=None if pd.isna(device) else int(device),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=most_reserved,
        peak_ts=at,
        before_bytes=(before or 0) + int(blocks.loc[blocks["ts"].isna(), "bytes"].sum()),
        complete=before is not None,
        counter_agrees=agrees,
        capacity_bytes=capacity,
        capacity_source=source,
        headroom_bytes=None if capacity is None or before is None else capacity - taken,
        fragmentation=None if record is None else record.fragmentation,
        by_category={category: int(sums.get(category, 0)) for category in MEMORY_CATEGORIES},
        at_peak=_largest(live),
        curve=_curve(pd.DataFrame({"ts": instants, "allocated": level, "reserved": reserved})),
        step_end_bytes=_at_step_ends(trace, instants, level),
        stays=_what_stays(trace, blocks),
    )


def _largest(live: pd.DataFrame) -> tuple[AtPeak, ...]:
    """The origins with most live bytes."""
    return rows(live.head(MOST).astype({"blocks": "Int64", "line": "Int64", "bytes": "int64"}), AtPeak)


def _at_step_ends(trace: Trace, instants: Ints, level: Ints) -> tuple[int, ...] | None:
    """The live bytes at the end of each step on the host; None for a trace without steps."""
    if len(trace.steps) == 0:
        return None
    ends = trace.steps["ts"].to_numpy() + trace.steps["host_dur"].to_numpy()
    place = np.searchsorted(instants, ends, side="right") - 1
    return tuple(level[np.maximum(place, 0)].tolist())


def _what_stays(trace: Trace, blocks: pd.DataFrame) -> tuple[AtPeak, ...]:
    """The bytes that earlier steps allocated and that are live at the end of the last step, by origin."""
    if len(trace.steps) < _STEPS_TO_STAY:
        return ()
    begins = trace.steps["ts"].to_numpy()
    begin, _ = _life(blocks)
    earlier = blocks[(begin >= int(begins[0])) & (begin < int(begins[-1]))]
    end = int(begins[-1] + trace.steps["host_dur"].iloc[-1])
    live = _live_at(trace, earlier, end, 0, {})
    return _largest(live)


def _before(
    events: pd.DataFrame, instants: Ints, level: Ints, record: RunMemory | None
) -> tuple[int | None, float | None]:
    """Bytes from before the trace without recorded blocks, None if unknown; and how often the counter agrees."""
    if int(events["device_type"].iloc[0]) == HOST:
        return (None, None) if record is None else (sum(record.held.values()), None)
    counted_events = events[events["allocated"].notna().to_numpy()]
    # If several events are at one instant, only the counter of the last one counts.
    counted_events = counted_events[~counted_events["ts"].duplicated(keep="last").to_numpy()]
    if len(counted_events) == 0:
        return None, None
    place = np.searchsorted(instants, counted_events["ts"].to_numpy(), side="right") - 1
    difference = row_numbers(counted_events["allocated"]) - level[np.maximum(place, 0)]
    values, counts = np.unique(difference, return_counts=True)
    usual = int(np.argmax(counts))
    return max(int(values[usual]), 0), float(counts[usual] / len(counted_events))


def _reserved(events: pd.DataFrame, instants: Ints) -> "pd.arrays.IntegerArray":
    """Bytes reserved from each instant on; null on the host, whose allocator does not cache."""
    cached = events[(events["reserved"].notna() & (events["device_type"] != HOST)).to_numpy()]
    if len(cached) == 0:
        return unmeasured(len(instants))  # type: ignore[no-any-return]
    place = np.searchsorted(cached["ts"].to_numpy(), instants, side="right") - 1
    return counted(row_numbers(cached["reserved"])[np.maximum(place, 0)])  # type: ignore[no-any-return]


def _life(blocks: pd.DataFrame) -> tuple[Ints, Ints]:
    """When each block was allocated and released; `MISSING` if not in the trace."""
    begin, end = (blocks[name].to_numpy(dtype=np.int64, na_value=MISSING) for name in ("ts", "until"))
    return begin, end


def _live_at(trace: Trace, blocks: pd.DataFrame, ts: int, allocated: int, held: Mapping[str, int]) -> pd.DataFrame:
    """The live bytes at an instant by category and place in the program, the most first: columns of `AtPeak`.

    The operator is the outermost one. What is allocated beyond the trace's blocks is from before it: by category what
    `held` has of it, the rest `unknown`.
    """
    begin, end = _life(blocks)
    alive = blocks[(begin <= ts) & ((end == MISSING) | (end > ts))]  # without those released at that instant
    in_trace = alive[alive["ts"].notna().to_numpy()].reset_index(drop=True)
    events = pd.DataFrame({name: in_trace[name].astype("int64") for name in ("ts", "thread")}).assign(op=in_trace["op"])
    sites = sites_of(trace, events, trace.lines)
    parent = row_numbers(trace.ops["parent"])
    sites["op"] = texts(trace.ops["name"], take(nearest(parent, parent < 0), row_numbers(in_trace["op"])))
    with_category = pd.concat([in_trace[["category", "bytes"]], sites.assign(phase=in_trace["phase"])], axis=1)
    columns = ["category", *SITE_COLUMNS]
    grouped = _joined(with_category, alive.loc[alive["ts"].isna(), ["category", "bytes"]]).reindex(
        columns=[*columns, "bytes"]
    )
    groups = grouped.groupby(columns, dropna=False, sort=False)["bytes"].agg(blocks="size", bytes="sum").reset_index()
    earlier = []
    rest = allocated - int(alive["bytes"].sum())
    for category, size in (*held.items(), ("unknown", rest)):
        if (taken := min(int(size), rest)) > 0:
            earlier.append({"category": category, "bytes": taken})
            rest -= taken
    table = _joined(pd.DataFrame(earlier, columns=["category", "bytes"]), groups)
    table = table.reindex(columns=[*columns, "blocks", "bytes"])
    return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)


def _joined(*frames: pd.DataFrame) -> pd.DataFrame:
    """The rows of the frames, concatenated; empty frames are skipped, since their dtypes are arbitrary."""
    return pd.concat([frame for frame in frames if len(frame)] or [frames[0]], ignore_index=True)


def _capacity(trace: Trace, kind: int, device: Any, record: RunMemory | None) -> tuple[int | None, str | None]:
    """The capacity in bytes, and its source: the run's memory.json, or the GPU's properties in the trace."""
    if record is not None:
        return record.capacity_bytes, record.capacity_source
    # Of a device without a number, as some backends write it, nothing is known.
    known = () if kind == HOST or pd.isna(device) else trace.meta.devices
    properties = next((d for d in known if d.get("id") == device), {})
    total = properties.get("totalGlobalMem")
    return (total, "device") if isinstance(total, int) and total > 0 else (None, None)


def _curve(curve: pd.DataFrame) -> tuple[Any, ...]:
    kept = curve.iloc[downsample(curve["allocated"].to_numpy(dtype=np.int64), POINTS)]
    return tuple(tuple(row.values()) for row in records(kept))


def downsample(values: Ints, most: int) -> Ints:
    """At most `most` positions of a series: of each stretch the first, the lowest, the highest and the last."""
    if len(values) <= most:
        return np.arange(len(values), dtype=np.int64)
    edges = np.linspace(0, len(values), most // 4 + 1).astype(np.int64)
    kept = [
        {a, b - 1, a + int(values[a:b].argmin()), a + int(values[a:b].argmax())}
        for a, b in pairwise(edges.tolist())
        if b > a
    ]
    return np.array(sorted(set().union(*kept)), dtype=np.int64)
