"""`program`, `sequences`: where in the program GPU and host time go."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.common.call_tree import call_names, call_tree, device_time_by, kernel_origins
from steptrace.analysis.kernels import sequences
from steptrace.analysis.program import flame

#: How many source lines and operators summary.json holds.
MOST_LINES, MOST_OPERATORS = 25, 25

_LINE = ["file", "line", "function", "code"]


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """The call tree and its names, the origin of each GPU activity, flame graphs and kernel sequences."""
    trace = analysis.trace
    tree = call_tree(trace)
    return {
        "call_tree": tree,
        "call_names": call_names(tree),
        "kernel_origins": kernel_origins(trace, tree, analysis.lines),
        "flame_device": flame.device_flame(trace, tree),
        "flame_host": flame.host_flame(trace, tree),
        "sequences": sequences.kernel_sequences(trace, tree),
    }


def record(analysis: Analysis) -> dict[str, Any]:
    """GPU time by source line and by operator (None without a GPU), both flame graphs, and what recurs."""
    of, trace = analysis.tables, analysis.trace
    by_line = by_operator = None
    if analysis.device is not None:
        by_line = records(device_time_by(trace, of["kernel_origins"], _LINE).dropna(subset="file").head(MOST_LINES))
        by_operator = records(device_time_by(trace, of["kernel_origins"], ["op"]).head(MOST_OPERATORS))
    return {
        "program": {
            "by_line": by_line,
            "by_operator": by_operator,
            "device_flame": flame.summary(of["flame_device"]),
            "host_flame": flame.summary(of["flame_host"]),
        },
        "sequences": sequences.summary(of["sequences"]),
    }
