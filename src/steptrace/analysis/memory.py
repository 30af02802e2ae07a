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
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.common.labels import labelled_parts, unlabelled_parts
from steptrace.analysis.common.series import steps_of
from steptrace.documents.base import Document, field, key
from steptrace.documents.memory import AtPeak, DeviceMemory
from steptrace.documents.run import RunMemory
from steptrace.documents.table import frame_of, plain, rows
from steptrace.intervals import Ints
from steptrace.trace.columns import counted, innermost, nearest, optional, references, row_numbers, start_end, texts
from steptrace.trace.decode import MISSING
from steptrace.trace.model import Trace, once
from steptrace.trace.source import SITE_COLUMNS, SourceLines, sites_of

#: The categories in display order.
CATEGORIES: Final = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "workspaces",
    "temporary",
    "unknown",
)
#: Bytes that are held between two steps, by category.
Held = Mapping[str, int]

_OF_PHASE: Final = {
    "data": "inputs",
    "forward": "activations",
    "loss": "activations",
    "backward": "gradients",
    "optimizer": "optimizer_state",
}
DEVICE: Final = ["device_type", "device"]
HOST: Final = 0


class MemoryBlock(Document, frozen=True):
    """One block of memory from its allocation to its release, as far as the trace holds them."""

    device_type: Annotated[int, key("", "0 is the host, 1 a CUDA or ROCm device.")]
    device: Annotated[int | None, key("", "Index of the device, null for the host.")]
    address: Annotated[int, field("Address of the block.")]
    bytes: Annotated[int, field("Its size.")]
    ts: Annotated[int | None, field("When it was allocated; null if that was before the trace.")]
    until: Annotated[int | None, field("When it was released, in ns; null if the trace does not hold it.")]
    thread: Annotated[int | None, field("Row of `threads` that allocated it; null before the trace.")]
    op: Annotated[int | None, field("Row of `ops`: the innermost operator around the allocation.")]
    phase: Annotated[str | None, field("Part of the step it was allocated in; null outside of them.")]
    category: Annotated[str, field("As `AtPeak.category`.")]


@dataclass(frozen=True)
class Peak:
    """The peak of one device, and its curve: columns `ts`, `allocated`, `reserved` (null on the host).

    `before` are the bytes held since before the trace, as far as known; `complete` says whether they are. `agrees` is
    the share of events whose counter is the sum of the live blocks.
    """

    kind: int
    device: int | None
    blocks: pd.DataFrame
    curve: pd.DataFrame
    before: int
    complete: bool
    agrees: float | None
    ts: int
    allocated: int
    reserved: int | None


@once
def memory_blocks(trace: Trace) -> pd.DataFrame:
    """Every block of memory with its life and category (table `memory_blocks`), by device and time of allocation.

    A block with only a release was allocated before the trace. If an address is allocated again without a release in
    between, the release was lost, and the first block ends there.
    """
    events = trace.memory[(trace.memory["address"].notna() & (trace.memory["bytes"] != 0)).to_numpy()]
    kind, device = events["device_type"].to_numpy(), row_numbers(events["device"])
    address, ts, size = row_numbers(events["address"]), events["ts"].to_numpy(), events["bytes"].to_numpy()
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


def memory_peaks(trace: Trace, held: Mapping[int, Held]) -> list[Peak]:
    """The peak of each device, the highest first.

    On a GPU the bytes from before the trace come from the allocator's counter. The host's counter begins with the
    profiler, so there they come from `held`; without it the curve holds only allocations within the trace.

    Args:
        trace: the trace.
        held: by device type the bytes held between two steps, from the run's memory.json.
    """
    blocks, peaks = memory_blocks(trace), []
    for kind, index in blocks[DEVICE].drop_duplicates().itertuples(index=False):
        of_device, group = _on_device(trace.memory, kind, index), _on_device(blocks, kind, index)
        instants, level = _level(group, trace.window[0])
        before, agrees = _before(of_device, instants, level, held.get(kind))
        level = level + (before or 0)
        reserved = _reserved(of_device, instants, on_host=kind == HOST)
        peak = int(np.argmax(level))
        peaks.append(
            Peak(
                kind=int(kind),
                device=None if pd.isna(index) else int(index),
                blocks=group,
                curve=pd.DataFrame({"ts": instants, "allocated": level, "reserved": reserved}),
                before=int(before or 0) + int(group.loc[group["ts"].isna(), "bytes"].sum()),
                complete=before is not None,
                agrees=agrees,
                ts=int(instants[peak]),
                allocated=int(level[peak]),
                reserved=None if pd.isna(reserved).all() else int(pd.Series(reserved).max()),
            )
        )
    return sorted(peaks, key=lambda peak: -peak.allocated)


def memory_at_peak(trace: Trace, peak: Peak, held: Held | None, lines: SourceLines | None) -> pd.DataFrame:
    """The blocks live at a device's peak by origin, the most bytes first: columns of `AtPeak`."""
    begin, end = life(peak.blocks)
    # Without those released at that instant.
    alive = peak.blocks[(begin <= peak.ts) & ((end == MISSING) | (end > peak.ts))]
    recorded = _by_memory_record(peak.allocated - int(alive["bytes"].sum()), held)
    table = _joined(pd.DataFrame(recorded, columns=["category", "bytes"]), origins(trace, alive, lines))
    table = table.reindex(columns=["category", *SITE_COLUMNS, "blocks", "bytes"])
    return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)


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
    labels, rest = labelled_parts(trace), None
    spans = list(zip(*(times.tolist() for times in start_end(labels)), labels["name"].astype(str), strict=True))
    if not any(name == "forward" for *_, name in spans):
        spans, rest = unlabelled_parts(trace), "forward"
    edges, names = [MISSING], [rest]
    for start, end, name in sorted(spans):
        start = max(start, edges[-1])
        if end > start:
            edges += [start, end]
            names += [name, rest]
    return np.array(edges, dtype=np.int64), names


def _level(blocks: pd.DataFrame, start: int) -> tuple[Ints, Ints]:
    """The trace's start and the instants at which the live blocks of a device change; their bytes from each on."""
    begin, end = life(blocks)
    size = blocks["bytes"].to_numpy()
    times = np.concatenate([[start], begin[begin != MISSING], end[end != MISSING]])
    instants, change = steps_of(times, np.concatenate([[0], size[begin != MISSING], -size[end != MISSING]]))
    return instants, change + int(size[begin == MISSING].sum())


def _before(events: pd.DataFrame, instants: Ints, level: Ints, held: Held | None) -> tuple[int | None, float | None]:
    """Bytes from before the trace without recorded blocks, None if unknown; and how often the counter agrees."""
    if int(events["device_type"].iloc[0]) == HOST:
        return (None, None) if held is None else (sum(held.values()), None)
    counted = events[events["allocated"].notna().to_numpy()]
    # Of several events at one instant only the last one's counter counts.
    counted = counted[~counted["ts"].duplicated(keep="last").to_numpy()]
    if len(counted) == 0:
        return None, None
    place = np.searchsorted(instants, counted["ts"].to_numpy(), side="right") - 1
    difference = row_numbers(counted["allocated"]) - level[np.maximum(place, 0)]
    values, counts = np.unique(difference, return_counts=True)
    usual = int(np.argmax(counts))
    return max(int(values[usual]), 0), float(counts[usual] / len(counted))


def _reserved(events: pd.DataFrame, instants: Ints, *, on_host: bool) -> "pd.arrays.IntegerArray":
    """Bytes reserved from each instant on; null on the host, whose allocator does not cache."""
    counted_events = events[events["reserved"].notna().to_numpy()]
    if on_host or len(counted_events) == 0:
        return counted(np.full(len(instants), -1, dtype=np.int64))  # type: ignore[no-any-return]
    place = np.searchsorted(counted_events["ts"].to_numpy(), instants, side="right") - 1
    return counted(row_numbers(counted_events["reserved"])[np.maximum(place, 0)])  # type: ignore[no-any-return]


def life(blocks: pd.DataFrame) -> tuple[Ints, Ints]:
    """When each block was allocated and released; `MISSING` if not in the trace."""
    begin, end = (blocks[name].to_numpy(dtype=np.int64, na_value=MISSING) for name in ("ts", "until"))
    return begin, end


def origins(trace: Trace, alive: pd.DataFrame, lines: SourceLines | None) -> pd.DataFrame:
    """Blocks grouped by category and place in the program, the most bytes first; the operator is the outermost one."""
    columns = ["category", *SITE_COLUMNS]
    in_trace = alive[alive["ts"].notna().to_numpy()].reset_index(drop=True)
    events = pd.DataFrame({name: in_trace[name].astype("int64") for name in ("ts", "thread")}).assign(op=in_trace["op"])
    sites = sites_of(trace, events, lines)
    op = row_numbers(in_trace["op"])
    parent = row_numbers(trace.ops["parent"])
    root = nearest(parent, parent < 0)
    if len(root):
        sites["op"] = texts(trace.ops["name"], np.where(op >= 0, root[np.maximum(op, 0)], -1)).to_numpy()
    rows = pd.concat([in_trace[["category", "bytes"]], sites.assign(phase=in_trace["phase"])], axis=1)
    before = alive.loc[alive["ts"].isna(), ["category", "bytes"]]
    rows = _joined(rows, before).reindex(columns=[*columns, "bytes"])
    groups = rows.groupby(columns, dropna=False, sort=False)["bytes"].agg(["size", "sum"]).reset_index()
    return groups.rename(columns={"size": "blocks", "sum": "bytes"}).sort_values(
        "bytes", ascending=False, kind="stable"
    )


def _joined(*frames: pd.DataFrame) -> pd.DataFrame:
    """The rows of the frames, concatenated; empty frames are skipped, since their dtypes are arbitrary."""
    return pd.concat([frame for frame in frames if len(frame)] or [frames[0]], ignore_index=True)


def _by_memory_record(rest: int, held: Held | None) -> list[dict[str, object]]:
    """Bytes from before the trace by category; bytes beyond the record are `unknown`."""
    rows: list[dict[str, object]] = []
    for category, size in (held or {}).items():
        taken = min(int(size), rest)
        if taken > 0:
            rows.append({"category": category, "bytes": taken})
            rest -= taken
    return [*rows, {"category": "unknown", "bytes": rest}] if rest > 0 else rows


#: Most origins, and most points of a curve, in summary.json.
MOST: Final = 25
POINTS: Final = 400
_KINDS: Final = {0: "cpu", 1: "cuda"}


def memory(trace: Trace) -> tuple[DeviceMemory, ...] | None:
    """One entry a device, the highest peak first; None where the profiler recorded no allocations."""
    held = _held(trace.memory_record)
    return tuple(_device(trace, peak, held) for peak in memory_peaks(trace, held)) or None


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


def _device(trace: Trace, peak: Peak, held: Mapping[int, Held]) -> DeviceMemory:
    kind, lines, recorded = _KINDS.get(peak.kind, str(peak.kind)), trace.lines, trace.memory_record
    of_run = recorded if recorded is not None and recorded.device == kind else None
    at_peak = memory_at_peak(trace, peak, held.get(peak.kind), lines)
    sums = at_peak.groupby("category")["bytes"].sum()
    capacity, source = _capacity(trace, peak, of_run)
    taken = peak.allocated if peak.reserved is None else peak.reserved
    return DeviceMemory(
        device_type=kind,
        device=peak.device,
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=peak.reserved,
        peak_ts=peak.ts,
        before_bytes=peak.before,
        complete=peak.complete,
        counter_agrees=peak.agrees,
        capacity_bytes=capacity,
        capacity_source=source,
        headroom_bytes=capacity - taken if capacity is not None and peak.complete else None,
        fragmentation=None if of_run is None else of_run.fragmentation,
        by_category={name: int(sums.get(name, 0)) for name in CATEGORIES},
        at_peak=_origins(at_peak),
        curve=_curve(peak.curve),
    )


def _origins(table: pd.DataFrame) -> tuple[AtPeak, ...]:
    return rows(table.head(MOST).astype({"blocks": "Int64", "line": "Int64", "bytes": "int64"}), AtPeak)


def _curve(curve: pd.DataFrame) -> tuple[Any, ...]:
    kept = curve.iloc[downsample(curve["allocated"].to_numpy(dtype=np.int64), POINTS)]
    columns = [kept[name].astype(object) for name in ("ts", "allocated", "reserved")]
    return tuple(tuple(plain(value) for value in point) for point in zip(*columns, strict=True))


def _capacity(trace: Trace, peak: Peak, recorded: RunMemory | None) -> tuple[int | None, str | None]:
    """The capacity in bytes, and its source: the run's memory.json, or the GPU's properties in the trace."""
    if recorded is not None:
        return recorded.capacity_bytes, recorded.capacity_source
    if peak.kind == HOST:
        return None, None
    properties = next((d for d in trace.meta.devices if d.get("id") == peak.device), {})
    total = properties.get("totalGlobalMem")
    return (total, "device") if isinstance(total, int) and total > 0 else (None, None)


def _held(recorded: RunMemory | None) -> dict[int, dict[str, int]]:
    if recorded is None:
        return {}
    return {kind: recorded.held for kind, name in _KINDS.items() if name == recorded.device}
