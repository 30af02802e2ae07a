"""The topics of a trace's page, in their order.

To add one, write its template and list it here; a chart of few lines goes into `charts.py`, more into a module.
"""

from steptrace.documents.summary import TraceSummary
from steptrace.report.draw.bars import PART_NAMES
from steptrace.report.trace import charts, time
from steptrace.report.trace.model import RankTopic, Topic, gpu_parts, unless, without_gpu


def _no_program(trace: TraceSummary) -> str | None:
    """Without a GPU host time is left to show, if there is any."""
    return None if trace.program.host_flame else without_gpu(trace)


def _no_launch(trace: TraceSummary) -> str | None:
    lost = trace.launches is not None and not trace.launches.count
    return "no GPU activity has its launch in the trace" if lost else without_gpu(trace)


#: What the page says of one trace.
TOPICS: tuple[Topic, ...] = (
    Topic(
        "overview",
        "Overview",
        (
            "step_window_gpu",
            "device_compute",
            "placement",
            "gpu_work_of_operators",
            "own_host_time",
            "number_format",
            "tensor_core",
        ),
        charts.overview,
        charts.overview_data,
    ),
    Topic(
        "time",
        "GPU time",
        ("gpu_parts", "comm_overlap", "launches_found"),
        time.charts,
        lambda view: {"parts": gpu_parts(view.trace.gpu), "names": PART_NAMES},
        most=60,
        unmeasured=without_gpu,
    ),
    Topic(
        "timeline",
        "Trace view",
        ("step_picture", "low_box", "wait_band", "idle_cause"),
        charts.timeline,
        unmeasured=unless(lambda t: t.timeline, "the trace holds no operators, labels or GPU work"),
    ),
    Topic(
        "idle",
        "Why the GPU is idle",
        ("idle_cause", "host_bound", "idle_by_stream"),
        time.idle_charts,
        time.idle_data,
        unmeasured=time.without_idle,
    ),
    Topic(
        "input",
        "Waiting for data",
        ("input_wait", "input_bound"),
        most=20,
        unmeasured=unless(lambda t: t.input.wait_ns is not None, "the trace holds no label of a data loader"),
    ),
    Topic(
        "syncs",
        "Where the host waits",
        ("syncs", "site", "blocked", "exposed"),
        data=charts.syncs_data,
        unmeasured=unless(lambda t: t.gpu.activities or t.syncs.count, "the trace holds no call into a GPU's runtime"),
    ),
    Topic(
        "critical_path",
        "Critical path",
        ("critical_path", "path_host", "path_launch", "without_it"),
        charts.critical_path,
        lambda _: {"names": PART_NAMES},
        unmeasured=unless(lambda t: t.critical_path, "the trace holds no host event"),
    ),
    Topic(
        "sections",
        "Labelled sections",
        ("section",),
        unmeasured=unless(lambda t: t.sections, "no step holds a labelled section"),
    ),
    Topic(
        "annotations",
        "User annotations",
        ("label_gpu_time", "label_own"),
        most=30,
        nothing=unless(lambda t: t.annotations, "the trace holds no user annotation"),
    ),
    Topic("kernels", "Kernels", ("only_at_once", "share_of_gpu_time"), most=25, unmeasured=without_gpu),
    Topic(
        "program",
        "Where in the program",
        ("program_gpu_time", "program_line", "flame_graph"),
        charts.program,
        most=12,
        unmeasured=_no_program,
    ),
    Topic(
        "sequences",
        "Sequences of kernels",
        ("sequence", "sequence_gaps"),
        most=12,
        unmeasured=without_gpu,
        nothing=unless(lambda t: t.sequences, "no operator or label launched the same two or more activities twice"),
    ),
    Topic(
        "collectives",
        "Communication",
        ("exposed_comm", "collective", "all_reduces"),
        unmeasured=unless(lambda t: t.collectives, "the trace holds neither GPU activity nor a collective of the host"),
        nothing=unless(lambda t: t.collectives and t.collectives.count, "the trace holds no collective"),
    ),
    Topic(
        "launches",
        "Launches",
        ("launch_delay", "launch_queueing", "short_kernels", "slow_launches", "excess_delays"),
        most=12,
        unmeasured=_no_launch,
    ),
    Topic(
        "queues",
        "Queues",
        ("queue_length", "queue_empty", "queue_full"),
        charts.queues,
        unmeasured=unless(lambda t: t.queues, "the trace holds no GPU activity with its launch"),
    ),
    Topic(
        "copies",
        "Copies",
        ("bandwidth",),
        charts.copies,
        lambda _: {"has_rate": charts.has_rate},
        unmeasured=without_gpu,
        nothing=unless(lambda t: t.copies, "the trace holds no copy and no memory set"),
    ),
    Topic(
        "memory",
        "Memory",
        ("peak_allocated", "memory_category", "headroom", "fragmentation"),
        charts.memory,
        charts.memory_data,
        unmeasured=unless(
            lambda t: t.memory,
            "the trace holds no allocations. The profiler records them with <code>profile_memory=True</code>",
        ),
    ),
    Topic("quality", "Trace quality", ("quality_checks",)),
)

#: What it says of several ranks together.
RANK_TOPICS: tuple[RankTopic, ...] = (
    RankTopic(
        "waits",
        "Which rank the others wait for",
        ("rank_wait", "rank_delay", "straggler", "rank_matching", "expected_all_reduce", "rank_clock"),
        charts.rank_waits,
        lambda ranks: any(row.collectives for row in ranks.waits),
    ),
    RankTopic("rank_kernels", "Kernels across ranks", ("rank_mean_length",), shown=lambda ranks: bool(ranks.kernels)),
)
