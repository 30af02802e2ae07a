"""Removes events with times or sizes out of bounds from the columns, and counts them in notes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptrace import format as fmt
from steptrace.errors import TraceError
from steptrace.trace.bounds import LARGEST, LATEST_NS, LONGEST_NS, MOST_DEVICES
from steptrace.trace.events import MISSING
from steptrace.trace.names import step_index

Columns = dict[str, NDArray[Any]]


def within_bounds(columns: dict[str, Columns], notes: list[str], path: Path) -> dict[str, Columns]:
    """The events of each kind within bounds; a note for each kind of event left out.

    Raises:
        TraceError: the events' lengths add up to more than an int64 holds.
    """
    middle = _middle(columns)
    kept = {}
    for kind, c in columns.items():
        keep = (c["ts"] != MISSING) & (c["dur"] != MISSING) & (c["dur"] <= LONGEST_NS)
        if middle is not None:
            keep &= np.abs(np.where(keep, c["ts"], middle) - middle) <= LONGEST_NS
        c = _rows(c, keep)
        if left_out := int((~keep).sum()):
            what = f"{fmt.plural(left_out, 'event')} ({kind})"
            notes.append(f"left out: {what} longer than a day, or further than that from the others")
        kept[kind] = _with_sane_sizes(kind, c, notes)
        if kind == "gpu":
            kept[kind] = _of_few_devices(kept[kind], notes)
        if float(kept[kind]["dur"].astype(np.float64).sum()) >= LATEST_NS:
            raise TraceError(f"the lengths of its events ({kind}) add up to more than a century", where=path)
    return kept


def _of_few_devices(gpu: Columns, notes: list[str]) -> Columns:
    """The activities of the busiest GPUs, if there are more GPUs than a process can have."""
    devices, counts = np.unique(gpu["device"], return_counts=True)
    if len(devices) <= MOST_DEVICES:
        return gpu
    kept = devices[np.argsort(-counts, kind="stable")[:MOST_DEVICES]]
    keep = np.isin(gpu["device"], kept)
    notes.append(
        f"left out: {fmt.plural(int((~keep).sum()), 'activity', 'activities')} on "
        f"{fmt.plural(len(devices) - MOST_DEVICES, 'GPU')}; the {MOST_DEVICES} GPUs with the most are kept"
    )
    return _rows(gpu, keep)


def without_empty_steps(labels: Columns, names: list[str], notes: list[str]) -> Columns:
    """The labels without the profiler's steps of length 0."""
    empty = np.flatnonzero(labels["dur"] <= 0)
    steps = [row for row in empty.tolist() if step_index(names[labels["name"][row]]) is not None]
    keep = np.ones(len(labels["ts"]), dtype=bool)
    keep[steps] = False
    if steps:
        notes.append(f"left out: {fmt.plural(len(steps), 'step')} of the profiler without a length")
    return _rows(labels, keep)


def _middle(columns: dict[str, Columns]) -> int | None:
    """The median start, None if all starts are near each other."""
    given = [c["ts"][c["ts"] != MISSING] for c in columns.values()]
    starts = np.concatenate(given)
    if len(starts) == 0 or int(starts.max()) - int(starts.min()) <= LONGEST_NS:
        return None
    return int(np.partition(starts, len(starts) // 2)[len(starts) // 2])


def _with_sane_sizes(kind: str, columns: Columns, notes: list[str]) -> Columns:
    """Set impossible sizes to missing; allocations of such sizes are left out."""
    lost = 0
    for name in ("bytes", "allocated", "reserved"):
        if name in columns:
            wrong = (columns[name] != MISSING) & ((columns[name] < 0) | (columns[name] >= LARGEST))
            if wrong.any():
                columns[name] = np.where(wrong, MISSING, columns[name])
                lost += int(wrong.sum())
    if lost:
        notes.append(f"not taken: {fmt.plural(lost, 'size')} ({kind}), negative or beyond a pebibyte")
    if kind != "memory":
        return columns
    keep = np.abs(np.where(columns["size"] == MISSING, LARGEST, columns["size"])) < LARGEST
    if left_out := int((~keep).sum()):
        what = fmt.plural(left_out, "allocation or release", "allocations and releases")
        notes.append(f"left out: {what} without a size, or with one beyond a pebibyte")
    return _rows(columns, keep)


def _rows(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    return columns if keep.all() else {name: values[keep] for name, values in columns.items()}
