"""GPU time by line of the program, and host and GPU time by its functions and modules."""

import numpy as np
import pandas as pd

from steptrace.analysis.common.activity import launches_measured
from steptrace.analysis.common.call_tree import call_tree, device_time_by, inside_same
from steptrace.analysis.common.registry import part, reads, table, without_rows_of
from steptrace.documents.program import FunctionTime, LineTime, Program
from steptrace.documents.table import frame_of, rows
from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, map_names
from steptrace.trace.model import Trace, on_training, once
from steptrace.trace.names import USER, frame_role, is_own_loop, parse_frame

#: How many source lines, and how many functions, summary.json holds.
MOST_LINES, MOST_FUNCTIONS = 25, 50

_LINE = ["file", "line", "function", "code"]


@part("program")
@reads("kernel_origins")
@once
def program(trace: Trace) -> Program:
    """GPU time by source line (None where launches are unknown), and the functions with the most host time."""
    by_line = None
    if launches_measured(trace):
        by_line = rows(line_times(trace).head(MOST_LINES), LineTime)
    of_functions = function_times(trace)
    return Program(
        by_line=by_line,
        functions=rows(of_functions.head(MOST_FUNCTIONS), FunctionTime),
        stacks=len(of_functions) > 0,
    )


def line_times(trace: Trace) -> pd.DataFrame:
    """GPU time by source line, the most first; work without a line is left out."""
    return device_time_by(trace, _LINE).dropna(subset="file")


@table("function_times", FunctionTime, of_call_tree=True)
@once
@without_rows_of("frames", FunctionTime)
def function_times(trace: Trace) -> pd.DataFrame:
    """The program's functions and modules (table `function_times`), the most host time first.

    Frames of PyTorch, steptrace, the standard library and built-ins are left out, except modules, and so are those
    around steptrace's own loop, which started it. A call within another of the same function is part of that.
    """
    tree = call_tree(trace)
    shown = map_names(tree["name"], lambda name: name.startswith("nn.Module") or frame_role(name) == USER)
    shown &= (tree["kind"] == "frame").to_numpy() & on_training(trace, tree)
    shown &= ~_around(map_names(tree["name"], is_own_loop), tree["size"].to_numpy())
    key = np.where(shown, tree["name"].cat.codes.to_numpy().astype(np.int32) + 1, 0)
    calls = tree[shown & ~inside_same(key, tree["size"].to_numpy())]
    groups = calls.groupby(calls["name"].astype(str), sort=True)
    table = groups.agg(calls=("name", "size"), host_ns=("host_ns", "sum"), device_ns=("device_ns", "sum"))
    if not launches_measured(trace):
        table["device_ns"] = None
    table = table.sort_values("host_ns", ascending=False, kind="stable").reset_index(names="function")
    table["function"] = table["function"].map(_named)
    return frame_of(FunctionTime, table)


def _around(inside: Mask, size: Ints) -> Mask:
    """Which events of a tree have one of `inside` in their subtree, themselves left out."""
    before = np.zeros(len(inside) + 1, dtype=np.int32)
    np.cumsum(inside, out=before[1:])
    return np.asarray(before[np.arange(len(size), dtype=np.int32) + size] > before[1:])


def _named(frame: str) -> str:
    """`forward, model.py:7` of a function; a module as it is."""
    parsed = parse_frame(frame)
    return frame if parsed is None else f"{parsed.function}, {parsed.file}:{parsed.line}"
