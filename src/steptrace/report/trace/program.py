"""Where in the program GPU and host time go."""

from steptrace.documents.summary import TraceSummary
from steptrace.report.draw.flame import flame
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, Topic, without_gpu
from steptrace.report.trace.view import TraceView

_TERMS = (
    Definition(
        "GPU time",
        "Lengths of the activities launched inside, summed over streams. Work of the backward pass stands at the "
        "forward operator whose gradient it computes, and so at its line.",
    ),
    Definition(
        "Line",
        "The first Python frame around a launch that is neither PyTorch's nor steptrace's. A trace knows the line of a "
        "function's def; runs recorded by steptrace know the line that ran.",
    ),
    Definition(
        "Flame graph",
        "All events with the same chain of callers are one box, as wide as their time; callers above, the widest to "
        "the left. Frames of PyTorch's own and boxes below 0.1 % are left out.",
    ),
)

#: Of one of several traces boxes below this share are left out, so that the page stays small.
_SMALLEST_OF_MANY = 0.01


def _charts(view: TraceView, level: int) -> Charts:
    smallest = 0.0 if level == 2 else _SMALLEST_OF_MANY
    return {
        "device": flame(view.trace.program.device_flame, "GPU time", smallest),
        "host": flame(view.trace.program.host_flame, "host time", smallest),
    }


def _unmeasured(trace: TraceSummary) -> str | None:
    """Without a GPU host time is left to show, if there is any."""
    return None if trace.program.host_flame else without_gpu(trace)


TOPIC = Topic("program", "Where in the program", _TERMS, _charts, most=12, unmeasured=_unmeasured)
