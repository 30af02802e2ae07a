"""The program's own labels over the whole trace."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic, unless

_TERMS = (
    Definition(
        "GPU time of a label",
        "Time in which the GPU was busy with work launched inside the label, whenever it ran; what the autograd "
        "thread launches belongs to the label then open on the step's thread too. Each instant counts once.",
    ),
    Definition("Own", "Without what belongs to labels further inside."),
)

TOPIC = Topic(
    "annotations",
    "User annotations",
    _TERMS,
    most=30,
    nothing=unless(lambda t: t.annotations, "the trace holds no user annotation"),
)
