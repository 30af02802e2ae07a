"""Leaves out events with impossible times or sizes, and counts them in notes."""

from collections.abc import Sequence
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


def within_bounds(
    columns: dict[str, Columns], names: Sequence[str], notes: list[str], path: Path
) -> dict[str, Columns]:
    """The events of each kind with possible times and sizes; a note for each kind with others.

    An event is left out if it has no time, a negative length, or one of more than a day, if it is further than a day
    from the others, if it is a step without a length, or an allocation without a size.

    Raises:
        TraceError: there are more GPUs than a process can have, or the events' lengths add up to more than an int64.
    """
    starts = np.concatenate([c["ts"][c["ts"] != MISSING] for c in columns.values()])
    middle = int(starts[0]) if len(starts) else 0
    if len(starts) and int(starts.max()) - int(starts.min()) > LONGEST_NS:
        middle = int(np.partition(starts, len(starts) // 2)[len(starts) // 2])
    return {kind: _within(kind, c, middle, names, notes, path) for kind, c in columns.items()}


def _within(kind: str, columns: Columns, middle: int, names: Sequence[str], notes: list[str], path: Path) -> Columns:
    start, length = columns["ts"], columns["dur"]
    wrong = (start == MISSING) | (length < 0) | (length > LONGEST_NS)
    wrong |= np.abs(np.where(wrong, middle, start) - middle) > LONGEST_NS
    if kind == "label":
        empty = np.flatnonzero(length == 0)
        is_step = [step_index(names[name]) is not None for name in columns["name"][empty]]
        wrong[empty] |= np.array(is_step, dtype=bool)
    if kind == "memory":
        wrong |= (columns["size"] <= -LARGEST) | (columns["size"] >= LARGEST)
    if wrong.any():
        notes.append(f"left out: {fmt.plural(int(wrong.sum()), 'event')} ({kind}) with an impossible time or size")
        columns = {name: values[~wrong] for name, values in columns.items()}
    for name in {"bytes", "allocated", "reserved"} & columns.keys():
        possible = (columns[name] >= 0) & (columns[name] < LARGEST)
        columns[name] = np.where(possible, columns[name], MISSING)
    if kind == "gpu" and (devices := len(np.unique(columns["device"]))) > MOST_DEVICES:
        raise TraceError(f"GPU work on {devices} GPUs", where=path, expected=f"at most {MOST_DEVICES}")
    if float(columns["dur"].astype(np.float64).sum()) >= LATEST_NS:
        raise TraceError(f"the lengths of its events ({kind}) add up to more than a century", where=path)
    return columns
