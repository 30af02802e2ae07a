"""The topics of a trace's page, in their order.

To add one, write its template and list it here; a chart of few lines goes into `charts.py`, more into a module. The
template sets `terms`, the keys of the definitions of its figures, and `most`, how many rows its table lists.
"""

from steptrace.documents.summary import TraceSummary
from steptrace.report.trace import charts, sections, time
from steptrace.report.trace.model import RankTopic, Topic, gpu_parts, unless, without_gpu


def _no_program(trace: TraceSummary) -> str | None:
    """Without a GPU host time is left to show, if there is any."""
    return None if trace.program.host_flame else without_gpu(trace)


def _no_launch(trace: TraceSummary) -> str | None:
    lost = trace.launches is not None and not trace.launches.count
    return "no GPU activity has its launch in the trace" if lost else without_gpu(trace)


#: What the page says of one trace.
TOPICS: tuple[Topic, ...] = (
    Topic("overview", "Overview", charts.overview, charts.overview_data),
    Topic("time", "GPU time", time.charts, lambda view: {"parts": gpu_parts(view.trace.gpu)}, unmeasured=without_gpu),
    Topic(
        "timeline",
        "Trace view",
        charts.timeline,
        unmeasured=unless(lambda t: t.timeline, "the trace holds no operators, labels or GPU work"),
    ),
    Topic("idle", "Why the GPU is idle", time.idle_charts, time.idle_data, unmeasured=time.without_idle),
    Topic(
        "input",
        "Waiting for data",
        unmeasured=unless(lambda t: t.input.wait_ns is not None, "the trace holds no label of a data loader"),
    ),
    Topic(
        "syncs",
        "Where the host waits",
        section=sections.syncs,
        unmeasured=unless(lambda t: t.gpu.activities or t.syncs.count, "the trace holds no call into a GPU's runtime"),
    ),
    Topic(
        "critical_path",
        "Critical path",
        charts.critical_path,
        unmeasured=unless(lambda t: t.critical_path, "the trace holds no host event"),
    ),
    Topic("sections", "Labelled sections", unmeasured=unless(lambda t: t.sections, "no step holds a labelled section")),
    Topic(
        "annotations", "User annotations", nothing=unless(lambda t: t.annotations, "the trace holds no user annotation")
    ),
    Topic("kernels", "Kernels", unmeasured=without_gpu),
    Topic("program", "Where in the program", charts.program, unmeasured=_no_program),
    Topic(
        "sequences",
        "Sequences of kernels",
        unmeasured=without_gpu,
        nothing=unless(lambda t: t.sequences, "no operator or label launched the same two or more activities twice"),
    ),
    Topic(
        "collectives",
        "Communication",
        unmeasured=unless(lambda t: t.collectives, "the trace holds neither GPU activity nor a collective of the host"),
        nothing=unless(lambda t: t.collectives and t.collectives.count, "the trace holds no collective"),
    ),
    Topic("launches", "Launches", unmeasured=_no_launch),
    Topic(
        "queues",
        "Queues",
        section=lambda view, _: sections.queues(view),
        unmeasured=unless(lambda t: t.queues, "the trace holds no GPU activity with its launch"),
    ),
    Topic(
        "copies",
        "Copies",
        charts.copies,
        lambda _: {"has_rate": charts.has_rate},
        unmeasured=without_gpu,
        nothing=unless(lambda t: t.copies, "the trace holds no copy and no memory set"),
    ),
    Topic(
        "memory",
        "Memory",
        charts.memory,
        charts.memory_data,
        unmeasured=unless(
            lambda t: t.memory,
            "the trace holds no allocations. The profiler records them with <code>profile_memory=True</code>",
        ),
    ),
    Topic("quality", "Trace quality"),
)

#: What it says of several ranks together.
RANK_TOPICS: tuple[RankTopic, ...] = (
    RankTopic(
        "waits",
        "Which rank the others wait for",
        charts.rank_waits,
        lambda ranks: any(row.collectives for row in ranks.waits),
    ),
    RankTopic("rank_kernels", "Kernels across ranks", shown=lambda ranks: bool(ranks.kernels)),
)
