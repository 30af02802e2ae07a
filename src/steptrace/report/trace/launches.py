"""How GPU work was launched, and what delayed its start."""

from steptrace.documents.summary import TraceSummary
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Topic, without_gpu

_TERMS = (
    Definition(
        "Delay",
        "From the end of the launching call to the start of its work; none if the work began first. All calls that put "
        "work on the GPU count; a graph's one launch holds all its kernels.",
    ),
    Definition(
        "Queueing, dependency, launch latency",
        "The delay is queueing while earlier work of the stream is still to finish. What is left is dependency if the "
        "stream had been told to wait for an event just before the launch, else launch latency: the stream was free.",
    ),
    Definition("Short kernels", "Launches whose work takes less time on the GPU than the call takes on the host."),
    Definition("Slow launches", "Calls of more than 50 µs on the host."),
    Definition("Excess delays", "Launches with more than 100 µs of launch latency; queueing is none."),
)


def _unmeasured(trace: TraceSummary) -> str | None:
    lost = trace.launches is not None and not trace.launches.count
    return "no GPU activity has its launch in the trace" if lost else without_gpu(trace)


TOPIC = Topic("launches", "Launches", _TERMS, most=12, unmeasured=_unmeasured)
