"""Sequences of GPU work that return."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic, unless, without_gpu

_TERMS = (
    Definition(
        "Sequence",
        "The GPU activities that one call of an operator or label launched, in the order of their start. Calls with "
        "the same sequence are counted together; of callers of the same work the outermost stands for all.",
    ),
    Definition(
        "Gaps",
        "From the first activity's start to the last one's end, less their lengths: what fusing them or a graph could "
        "save at most. None where they overlap.",
    ),
)

TOPIC = Topic(
    "sequences",
    "Sequences of kernels",
    _TERMS,
    most=12,
    unmeasured=without_gpu,
    nothing=unless(lambda t: t.sequences, "no operator or label launched the same two or more activities twice"),
)
