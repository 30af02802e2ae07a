"""Leaves out events with impossible times or sizes, and counts them in notes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptrace import format as fmt
from steptrace.errors import TraceError
from steptrace.trace.bounds import LARGEST, LATEST_NS, LONGEST_NS, MOST_DEVICES
from steptrace.trace.events import FAR_FROM_ZERO_NS, MISSING
from steptrace.trace.names import step_index

Columns = dict[str, NDArray[Any]]


def within_bounds(columns: dict[str, Columns], notes: list[str], path: Path) -> dict[str, Columns]:
    """The events of each kind with possible times and sizes; a note for each kind of event left out.

    Raises:
        TraceError: there are more GPUs than a process can have, or the events' lengths add up to more than an int64.
    """
    kept = {kind: _with_times(kind, c, notes) for kind, c in columns.items()}
    middle = _middle(kept)
    for kind, c in kept.items():
        far = (c["ts"] == MISSING) | (c["dur"] == MISSING) | (c["dur"] > LONGEST_NS)
        if middle is not None:
            far |= np.abs(np.where(far, middle, c["ts"]) - middle) > LONGEST_NS
        why = f"({kind}) longer than a day, or further than that from the others"
        kept[kind] = c = _with_sizes(kind, _without(c, far, "event", why, notes), notes)
        if kind == "gpu" and (devices := len(np.unique(c["device"]))) > MOST_DEVICES:
            raise TraceError(f"GPU work on {devices} GPUs", where=path, expected=f"at most {MOST_DEVICES}")
        if float(c["dur"].astype(np.float64).sum()) >= LATEST_NS:
            raise TraceError(f"the lengths of its events ({kind}) add up to more than a century", where=path)
    return kept


def without_empty_steps(labels: Columns, names: list[str], notes: list[str]) -> Columns:
    """The labels without the profiler's steps of length 0."""
    empty = labels["dur"] <= 0
    empty[empty] = [step_index(names[name]) is not None for name in labels["name"][empty]]
    return _without(labels, empty, "step", "of the profiler without a length", notes)


def _with_times(kind: str, columns: Columns, notes: list[str]) -> Columns:
    """Without events at time 0 among later ones: the profiler lost their times."""
    lost = columns["ts"] == 0
    if lost.any() and int(columns["ts"].max()) < FAR_FROM_ZERO_NS:
        return columns
    return _without(columns, lost, "event", f"({kind}) without a time", notes)


def _middle(columns: dict[str, Columns]) -> int | None:
    """The median start, None if all starts are near each other."""
    starts = np.concatenate([c["ts"][c["ts"] != MISSING] for c in columns.values()])
    if len(starts) == 0 or int(starts.max()) - int(starts.min()) <= LONGEST_NS:
        return None
    return int(np.partition(starts, len(starts) // 2)[len(starts) // 2])


def _with_sizes(kind: str, columns: Columns, notes: list[str]) -> Columns:
    """Impossible sizes are set to missing; allocations of such sizes are left out."""
    lost = 0
    for name in {"bytes", "allocated", "reserved"} & columns.keys():
        wrong = (columns[name] != MISSING) & ((columns[name] < 0) | (columns[name] >= LARGEST))
        columns = {**columns, name: np.where(wrong, MISSING, columns[name])}
        lost += int(wrong.sum())
    if lost:
        notes.append(f"not taken: {fmt.plural(lost, 'size')} ({kind}), negative or beyond a pebibyte")
    if kind != "memory":
        return columns
    wrong = np.abs(np.where(columns["size"] == MISSING, LARGEST, columns["size"])) >= LARGEST
    return _without(columns, wrong, "event", f"({kind}) without a size, or with one beyond a pebibyte", notes)


def _without(columns: Columns, left_out: NDArray[np.bool_], noun: str, why: str, notes: list[str]) -> Columns:
    if not left_out.any():
        return columns
    notes.append(f"left out: {fmt.plural(int(left_out.sum()), noun)} {why}")
    return {name: values[~left_out] for name, values in columns.items()}
