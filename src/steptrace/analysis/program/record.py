"""`program`: where in the program GPU and host time go."""

from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.common.call_tree import device_time_by
from steptrace.analysis.program.flame import shown
from steptrace.documents.summary import LineTime, OperatorTime, Program

#: How many source lines and operators summary.json holds.
MOST_LINES, MOST_OPERATORS = 25, 25

_LINE = ["file", "line", "function", "code"]


def program(analysis: Analysis) -> Program:
    """GPU time by source line and by operator (None without a GPU), and both flame graphs."""
    of, trace = analysis.tables, analysis.trace
    by_line = by_operator = None
    if analysis.device is not None:
        lines = device_time_by(trace, of["kernel_origins"], _LINE).dropna(subset="file").head(MOST_LINES)
        operators = device_time_by(trace, of["kernel_origins"], ["op"]).head(MOST_OPERATORS)
        by_line, by_operator = rows(lines, LineTime), rows(operators, OperatorTime)
    return Program(
        by_line=by_line,
        by_operator=by_operator,
        device_flame=shown(of["flame_device"]),
        host_flame=shown(of["flame_host"]),
    )
