"""Which kernels the GPU's time went to."""

from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic, without_gpu

_TERMS = (
    Definition(
        "Only, at once",
        "Time in which activities of exactly these classes ran on the GPU, over all its streams; together they are its "
        "busy time.",
    ),
    Definition(
        "Share of GPU time",
        "Of the summed lengths of all activities; work on several streams at once counts on each. Mean, median and "
        "standard deviation are over the calls of one name.",
    ),
)

TOPIC = Topic("kernels", "Kernels", _TERMS, most=25, unmeasured=without_gpu)
