"""GPU and host time of the program's modules and their lines, as a tree.

A profiler that records stacks writes a frame for each call of an `nn.Module`, with its class and a number. The call
tree says which module a launch lies in. Work of the backward pass runs in no module: it belongs to the one in which its
forward operator ran.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common.activity import launches_measured, outside_steps
from steptrace.analysis.common.call_tree import call_tree, kernel_nodes, kernel_origins
from steptrace.analysis.common.registry import part, reads, table
from steptrace.documents.subjects.modules import MOST_ROWS, ModuleTime
from steptrace.documents.table import frame_of
from steptrace.documents.table import rows as rows_of
from steptrace.intervals import Ints
from steptrace.trace.columns import map_names, row_numbers
from steptrace.trace.model import Trace, once

#: How a frame of a module is named: `nn.Module: Linear_12`.
_PREFIX: Final = "nn.Module: "
#: Between the classes of a path.
_INSIDE: Final = " / "
#: How many modules a path has at most. The time of deeper ones belongs to the one around them: paths of every depth
#: would need memory by the square of it.
MOST_DEPTH: Final = 64
#: GPU work that lies in no module and at no known line.
_REST: Final = "no module or line"


@dataclass(frozen=True)
class ModuleCalls:
    """The calls of modules, in the order of the call tree, and the call that each GPU activity belongs to.

    Calls with `MOST_DEPTH` others around them are no calls of their own.

    Attributes:
        path: of each call, the classes of the modules from the outermost to its own.
        name: its module's class and number.
        parent: the call around it, -1 for none.
        host_ns: its length on the host.
        of_kernel: the innermost call of each GPU activity, -1 for none.
        backward: whether each GPU activity is work of the backward pass.
    """

    path: tuple[str, ...]
    name: tuple[str, ...]
    parent: tuple[int, ...]
    host_ns: tuple[int, ...]
    of_kernel: Ints
    backward: NDArray[np.bool_]


@once
def module_calls(trace: Trace) -> ModuleCalls:
    """The calls of modules; none in a trace without their frames."""
    tree = call_tree(trace)
    is_module = (tree["kind"] == "frame").to_numpy() & map_names(tree["name"], lambda name: name.startswith(_PREFIX))
    rows = np.flatnonzero(is_module)
    kernels = len(trace.kernels)
    if not len(rows):
        return ModuleCalls((), (), (), (), np.full(kernels, -1), np.zeros(kernels, dtype=bool))
    size = tree["size"].to_numpy()
    names = tree["name"].iloc[rows].astype(str).str.removeprefix(_PREFIX).tolist()
    kept, path, parent = _nested(rows.tolist(), size[rows].tolist(), names)
    rows = rows[kept]
    names = [names[number] for number in kept]
    node = kernel_nodes(trace)
    forward = _covering(np.flatnonzero(tree["forward"].notna()), row_numbers(tree["forward"]), size)
    of_forward = forward[node]
    of_forward[node < 0] = -1
    # A row's call is the last that covers it: the tree's rows stand in order, so an inner call comes later.
    numbers = np.full(len(tree), -1, dtype=np.int64)
    numbers[rows] = np.arange(len(rows))
    call = _covering(rows, numbers, size)
    where = np.where(of_forward >= 0, of_forward, node)
    of_kernel = call[where]
    of_kernel[where < 0] = -1
    host = tree["host_ns"].to_numpy()[rows]
    return ModuleCalls(tuple(path), tuple(names), tuple(parent), tuple(host.tolist()), of_kernel, of_forward >= 0)


@part("modules")
@reads("kernel_origins")
def most_modules(trace: Trace) -> tuple[ModuleTime, ...]:
    """The rows of `modules` with the most time, for summary.json."""
    return rows_of(modules(trace).head(MOST_ROWS), ModuleTime)


@table("modules", ModuleTime)
@once
def modules(trace: Trace) -> pd.DataFrame:
    """Modules by class and place, and the lines in them (table `modules`), the most time first."""
    calls = module_calls(trace)
    if not calls.path:
        return frame_of(ModuleTime)
    has_gpu = launches_measured(trace)
    time = _time_of_kernels(trace, calls) if has_gpu else None
    rows = _module_rows(calls, time)
    if time is not None:
        rows = pd.concat([rows, _line_rows(trace, calls, time)], ignore_index=True)
    by = "device_ns" if has_gpu else "host_ns"
    # Of equal times a parent stands before what is in it.
    rows["depth"] = rows["path"].str.count(_INSIDE)
    rows = rows.sort_values([by, "depth"], ascending=[False, True], kind="stable")
    return frame_of(ModuleTime, rows.drop(columns="depth").reset_index(drop=True))


def _nested(rows: list[int], sizes: list[int], names: list[str]) -> tuple[list[int], list[str], list[int]]:
    """The calls with fewer than `MOST_DEPTH` others around them, of calls in the order of the call tree.

    Returns:
        their numbers among all calls, the path of each, and the place in these lists of the call around it (-1 for
        none).
    """
    kept = list[int]()
    paths = list[str]()
    parents = list[int]()
    open_calls = list[tuple[int, int]]()  # its place and the first row after it
    for number, (row, size, name) in enumerate(zip(rows, sizes, names, strict=True)):
        while open_calls and row >= open_calls[-1][1]:
            open_calls.pop()
        if len(open_calls) == MOST_DEPTH:
            continue
        class_ = name.rpartition("_")[0] or name
        parent = open_calls[-1][0] if open_calls else -1
        open_calls.append((len(paths), row + size))
        kept.append(number)
        parents.append(parent)
        paths.append(class_ if parent < 0 else f"{paths[parent]}{_INSIDE}{class_}")
    return kept, paths, parents


def _covering(rows: Ints, values: Ints, size: Ints) -> Ints:
    """For each row of a tree the value of the innermost chosen row that has it in its subtree; -1 without one."""
    covering = np.full(len(size), -1, dtype=np.int64)
    for row in rows.tolist():
        covering[row : row + int(size[row])] = values[row]
    return covering


def _time_of_kernels(trace: Trace, calls: ModuleCalls) -> pd.DataFrame:
    """For each GPU activity of these steps: its call, its length, and its length in the backward pass."""
    dur = trace.kernels["dur"].to_numpy()
    time = pd.DataFrame({"call": calls.of_kernel, "device_ns": dur, "backward_ns": np.where(calls.backward, dur, 0)})
    return time[~outside_steps(trace)]


def _module_rows(calls: ModuleCalls, time: pd.DataFrame | None) -> pd.DataFrame:
    """A row for each path of modules."""
    table = pd.DataFrame({"path": calls.path, "module": calls.name, "host_ns": calls.host_ns})
    parents = np.array([None if call < 0 else calls.path[call] for call in calls.parent], dtype=object)
    if time is None:
        table = table.assign(device_ns=None, backward_ns=None, time=table["host_ns"])
    else:
        within = time[time["call"] >= 0].groupby("call")[["device_ns", "backward_ns"]].sum()
        whole = within.reindex(range(len(table)), fill_value=0).to_numpy(copy=True)
        for number in range(len(table) - 1, -1, -1):  # a call stands before those in it
            if (parent := calls.parent[number]) >= 0:
                whole[parent] += whole[number]
        table = table.assign(device_ns=whole[:, 0], backward_ns=whole[:, 1], time=whole[:, 0])
    by_path = table.assign(parent=parents).groupby("path", sort=False)
    rows = by_path.agg(
        parent=("parent", "first"), modules=("module", "nunique"), calls=("module", "size"),
        host_ns=("host_ns", "sum"),
    )  # fmt: skip
    for name in ("device_ns", "backward_ns"):
        rows[name] = None if time is None else by_path[name].sum()
    times_of_modules = table.groupby(["path", "module"], sort=False)["time"].sum().reset_index()
    by_time = times_of_modules.sort_values("time", kind="stable").groupby("path")
    rows["largest"] = by_time["module"].last()
    rows["largest_ns"] = by_time["time"].last()
    rows["smallest_ns"] = by_time["time"].first()
    rows = rows.reset_index()
    rows["parent"] = rows["parent"].astype(object).where(rows["parent"].notna(), None)
    several = rows["modules"] > 1
    rows[["largest", "largest_ns", "smallest_ns"]] = rows[["largest", "largest_ns", "smallest_ns"]].where(several, None)
    return rows.assign(kind="module", name=rows["path"].str.rpartition(_INSIDE)[2])


def _line_rows(trace: Trace, calls: ModuleCalls, time: pd.DataFrame) -> pd.DataFrame:
    """A row for each line within a module, for each line in none, and for what has neither."""
    origins = kernel_origins(trace).loc[time.index, ["file", "line"]]
    place = [
        _REST if not isinstance(file, str) else f"{file.rpartition('/')[2]}:{line}" if not pd.isna(line) else file
        for file, line in zip(origins["file"], origins["line"], strict=True)
    ]
    parents = np.array([*calls.path, None], dtype=object)[time["call"].to_numpy()]
    lines = time.assign(name=place, parent=parents)
    lines = lines[(lines["name"] != _REST) | lines["parent"].isna()]
    rows = lines.groupby(["parent", "name"], dropna=False, sort=False)[["device_ns", "backward_ns"]].sum().reset_index()
    rows["parent"] = rows["parent"].astype(object).where(rows["parent"].notna(), None)
    path = [
        name if parent is None else f"{parent}{_INSIDE}{name}"
        for parent, name in zip(rows["parent"], rows["name"], strict=True)
    ]
    kind = np.where(rows["name"] == _REST, "rest", "line")
    return rows.assign(path=path, kind=kind)
