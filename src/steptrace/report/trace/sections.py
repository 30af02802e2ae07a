"""The program's own labels, per step."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic, unless

_TERMS = (
    Definition(
        "Section",
        "A label that the program set around a part of a step. Medians over all steps, a step without it counting as "
        "0. GPU time is that of the work launched inside it, on its own thread or by the autograd thread for it, as "
        "under User annotations.",
    ),
)

TOPIC = Topic(
    "sections",
    "Labelled sections",
    _TERMS,
    unmeasured=unless(lambda t: t.sections, "no step holds a labelled section"),
)
