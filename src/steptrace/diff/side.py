"""One side of a diff: its traces' operators, kernels, syncs and lines, counted per step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis import syncs
from steptrace.analysis.common import busy
from steptrace.analysis.common.steps import apart
from steptrace.analysis.overview import Values, in_each_step, over_all_steps
from steptrace.documents.diff import SyncTotal
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.trace.columns import Ints, pick, row_numbers, start_end, take, texts, unmeasured
from steptrace.trace.find import find_traces
from steptrace.trace.frames import parse_frame, site_frames
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, launching_op
from steptrace.trace.parallel import read_each
from steptrace.trace.source import load_source_lines

#: What identifies a row of each table; the other columns, `unit` aside, are measures.
KEYS: dict[str, tuple[str, ...]] = {
    "kernels": ("class", "name"),
    "operators": ("name",),
    "syncs": ("kind", "file", "function", "op", "label", "phase"),
    "lines": ("file", "function"),
    "attribution": ("class", "kernel", "operator", "file", "function"),
}
MEASURES: dict[str, tuple[str, ...]] = {
    "kernels": ("count", "device_ns"),
    "operators": ("count", "host_ns", "host_self_ns", "device_ns"),
    "syncs": ("count", "blocked_ns"),
    "lines": ("count", "device_ns"),
    "attribution": ("count", "device_ns"),
}
#: Figures of a whole step.
TOTALS = (
    "step_ns",
    "busy_ns",
    "compute_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "idle_ns",
    "operators",
    "kernels",
    "syncs",
    "blocked_ns",
)


@dataclass(frozen=True)
class Side:
    """A set of traces to compare, in units: the steps of all its ranks, or whole traces where one has no steps.

    `tables` holds for each topic of `KEYS` its keys, `unit` (from 0) and measures, one row per key and unit where the
    key occurs. `totals` has one row per unit; GPU columns are null for a trace without GPU work, and those of syncs for
    one without a call into a GPU's runtime. `gpu`, `runtime` and `stacks` say whether every trace has such work, such
    calls, and Python frames; `devices` names the GPUs, as far as the traces do. `figures` holds each
    figure of a step, one value a unit; none if a trace cannot tell it.

    Where GPU work of a step runs on into the next one's time (`overlapping`), a step here ends where the next begins,
    so that no time counts twice.
    """

    paths: tuple[Path, ...]
    ranks: tuple[int | None, ...]
    units: int
    whole_traces: bool
    tables: dict[str, pd.DataFrame]
    totals: pd.DataFrame
    figures: Mapping[str, Values]
    gpu: bool
    runtime: bool
    stacks: bool
    overlapping: bool
    devices: tuple[str, ...]

    @property
    def sync_total(self) -> SyncTotal | None:
        """Syncs and their blocked time over all units; None where the traces could not show any."""
        if not self.runtime:
            return None
        table = self.tables["syncs"]
        return SyncTotal(int(table["count"].sum()), int(table["blocked_ns"].sum()))


def read_sides(a: Sequence[str | Path], b: Sequence[str | Path]) -> tuple[Side, Side]:
    """Read the traces behind two lists of files or folders.

    Raises:
        TraceError: a path is missing, or a trace cannot be read.
    """
    found = [find_traces(paths) for paths in (a, b)]
    traces = list(zip(found[0] + found[1], read_each(read_trace, found[0] + found[1]), strict=True))
    return sides(traces[: len(found[0])], traces[len(found[0]) :])


def sides(a: Sequence[tuple[Path, Trace]], b: Sequence[tuple[Path, Trace]]) -> tuple[Side, Side]:
    """Two sides from traces that have been read. If any trace has no steps, all count as a unit each."""
    whole = any(len(trace.steps) == 0 for _, trace in (*a, *b))
    return _side(a, whole=whole), _side(b, whole=whole)


def _side(traces: Sequence[tuple[Path, Trace]], *, whole: bool) -> Side:
    parts: dict[str, list[pd.DataFrame]] = {topic: [] for topic in KEYS}
    totals, first = [], 0
    names = (trace.meta.device_name(trace.devices[0]) for _, trace in traces if trace.devices)
    for path, trace in traces:
        count = 1 if whole else len(trace.steps)
        tables, total = _of_trace(path, trace, whole=whole)
        for topic, table in tables.items():
            parts[topic].append(table.assign(unit=table["unit"] + first))
        totals.append(total)
        first += count
    return Side(
        paths=tuple(path for path, _ in traces),
        ranks=tuple(trace.rank for _, trace in traces),
        units=first,
        whole_traces=whole,
        tables={topic: pd.concat(found, ignore_index=True) for topic, found in parts.items()},
        totals=pd.concat(totals, ignore_index=True),
        figures={figure.key: _figure(figure.key, traces, whole=whole) for figure in STEP_FIGURES},
        gpu=all(trace.devices for _, trace in traces),
        runtime=all(len(trace.launches) > 0 for _, trace in traces),
        stacks=all(len(trace.frames) > 0 for _, trace in traces),
        overlapping=not whole and any((start_end(trace.steps)[1] > apart(trace)[1]).any() for _, trace in traces),
        devices=tuple(dict.fromkeys(name for name in names if name is not None)),
    )


def _figure(key: str, traces: Sequence[tuple[Path, Trace]], *, whole: bool) -> Values:
    """A figure of a step in every unit; empty if a trace cannot tell it."""
    found = []
    for _, trace in traces:
        device = _device(trace)
        if whole:
            value = over_all_steps(key, trace, device)
            found.append(np.array([] if value is None else [value]))
        else:
            found.append(in_each_step(key, trace, device))
    return np.concatenate(found) if all(len(values) for values in found) else np.empty(0)


def _device(trace: Trace) -> int | None:
    return trace.devices[0] if trace.devices else None


def _of_trace(path: Path, trace: Trace, *, whole: bool) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    device = _device(trace)
    owner = launching_op(trace)
    costs = syncs.sync_costs(trace, device, load_source_lines(path))
    costs = costs[costs["counted"].to_numpy()]
    kernels = _kernel_rows(trace, owner)
    rows = {
        "kernels": kernels,
        "attribution": kernels.rename(columns={"name": "kernel"}),
        "lines": kernels[kernels["file"].notna()],
        "operators": _operator_rows(trace, owner),
        "syncs": costs.assign(count=1),
    }
    tables = {topic: _per_unit(found, topic, whole=whole) for topic, found in rows.items()}
    return tables, _totals(trace, device, tables, whole=whole)


def _per_unit(rows: pd.DataFrame, topic: str, *, whole: bool) -> pd.DataFrame:
    """The rows of events that lie in a unit, in a step or anywhere in a `whole` trace, added up by key and unit."""
    inside = rows.assign(unit=0 if whole else row_numbers(rows["step"]))
    inside = inside[inside["unit"] >= 0].astype(dict.fromkeys(KEYS[topic], object))
    keys = [*KEYS[topic], "unit"]
    return inside.groupby(keys, dropna=False, sort=True, as_index=False)[list(MEASURES[topic])].sum()


def _kernel_rows(trace: Trace, owner: Ints) -> pd.DataFrame:
    kernels = trace.kernels
    file, function = _lines_of(trace, owner)
    return pd.DataFrame(
        {
            "class": kernels["kind"].to_numpy(dtype=object),
            "name": kernels["name"].to_numpy(dtype=object),
            "operator": texts(trace.ops["name"], owner),
            "file": file,
            "function": function,
            "step": kernels["step"].array,
            "count": 1,
            "device_ns": kernels["dur"].to_numpy(),
        }
    )


def _lines_of(trace: Trace, owner: Ints) -> tuple[Any, Any]:
    """File and function of the program's line behind each activity: of the forward operator, for backward ones."""
    forward = take(row_numbers(trace.ops["forward"]), owner)
    frame = site_frames(trace, take(row_numbers(trace.ops["frame"]), np.where(forward >= 0, forward, owner)))
    code = take(trace.frames["name"].cat.codes.to_numpy().astype(np.int64), frame)
    parsed = [parse_frame(str(name)) for name in trace.frames["name"].cat.categories]
    files = np.array([None if p is None else p.file for p in parsed], dtype=object)
    functions = np.array([None if p is None else p.function for p in parsed], dtype=object)
    return pick(files, code), pick(functions, code)


def _operator_rows(trace: Trace, owner: Ints) -> pd.DataFrame:
    ops = trace.ops
    length = ops["dur"].to_numpy()
    parent = row_numbers(ops["parent"])
    inside = np.zeros(len(ops), dtype=np.int64)
    np.add.at(inside, parent[parent >= 0], length[parent >= 0])
    device = np.zeros(len(ops), dtype=np.int64)
    np.add.at(device, owner[owner >= 0], trace.kernels["dur"].to_numpy()[owner >= 0])
    return pd.DataFrame(
        {
            "name": ops["name"].to_numpy(dtype=object),
            "step": ops["step"].array,
            "count": 1,
            "host_ns": length,
            # Kineto rounds starts and lengths apart: children can be longer than their parent by a microsecond.
            "host_self_ns": np.maximum(length - inside, 0),
            "device_ns": device,
        }
    )


def _totals(trace: Trace, device: int | None, tables: dict[str, pd.DataFrame], *, whole: bool) -> pd.DataFrame:
    """One row per unit: `TOTALS`."""
    if whole:
        span = (0, trace.window[1]) if device is None else busy.activity(trace, device).span
        start, end = np.array([span[0]]), np.array([span[1]])
    else:
        start, end = apart(trace)
    table = pd.DataFrame({"dur": end - start})
    if device is not None:
        table = busy.time_within(busy.activity(trace, device), start, end)
    table = table.rename(columns={"dur": "step_ns"})
    for topic, name, measure in (
        ("operators", "operators", "count"),
        ("kernels", "kernels", "count"),
        ("syncs", "syncs", "count"),
        ("syncs", "blocked_ns", "blocked_ns"),
    ):
        by_unit = tables[topic].groupby("unit")[measure].sum()
        table[name] = [int(by_unit.get(unit, 0)) for unit in range(len(table))]
    unknown = ["kernels"] * (device is None) + ["syncs", "blocked_ns"] * (len(trace.launches) == 0)
    return table.assign(**dict.fromkeys(unknown, unmeasured(len(table)))).reindex(columns=list(TOTALS)).astype("Int64")
