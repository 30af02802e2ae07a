"""The topics of a trace's page, in their order.

To add one, write its template and list it here; where it draws or computes something, it has a module of that name.
"""

from steptrace.documents.summary import TraceSummary
from steptrace.report.page.definitions import INPUT_TERMS, Definition, definitions
from steptrace.report.trace import (
    copies,
    critical_path,
    idle,
    memory,
    overview,
    program,
    queues,
    syncs,
    time,
    timeline,
    waits,
)
from steptrace.report.trace.model import RankTopic, Topic, unless, without_gpu

_SECTIONS = (
    Definition(
        "Section",
        "A label that the program set around a part of a step. Medians over all steps, a step without it counting as "
        "0. GPU time is that of the work launched inside it, on its own thread or by the autograd thread for it, as "
        "under User annotations.",
    ),
)

_ANNOTATIONS = (
    Definition(
        "GPU time of a label",
        "Time in which the GPU was busy with work launched inside the label, whenever it ran; what the autograd "
        "thread launches belongs to the label then open on the step's thread too. Each instant counts once.",
    ),
    Definition("Own", "Without what belongs to labels further inside."),
)

_KERNELS = (
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

_SEQUENCES = (
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

_COLLECTIVES = (
    Definition(
        "Exposed communication",
        "Of a collective's length, the time without a compute kernel on any stream of the GPU; of one that the host "
        "carries out (gloo), without an operator on a thread that does training work. Collectives that run at once "
        "each count theirs, so these can add up to more than the GPU's exposed communication.",
    ),
    Definition(
        "Collective",
        "What PyTorch calls it on the kernel or on the operator around its launch, or else what the kernel's name "
        "says; on a host, PyTorch's label around it. Its length includes waiting for other ranks.",
    ),
    Definition(
        "All-reduces, measured and exposed",
        "Over the profiled steps, each instant with one under way counted once; exposed is what of it no computation "
        "hid.",
        Definition(
            "All-reduces, measured and exposed",
            "Each instant with one under way counted once; exposed is what of it no computation hid.",
        ),
    ),
)

_LAUNCHES = (
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

_QUALITY = (
    Definition(
        "Checks",
        "Each holds the trace against what a whole one would hold. It warns if what is missing could change a figure; "
        "a figure that was not measured is shown as such, never as 0. A file whose end is missing is refused whole.",
    ),
)

_RANK_KERNELS = (
    Definition(
        "Mean length",
        "Of one kernel on one rank; least, median and greatest over the ranks that ran it. A rank whose kernels are "
        "all longer has a slower GPU; one that is longer in a few has other data. A collective's length holds its "
        "waiting, so there the rank with the shortest is the one waited for.",
    ),
)


def _no_launch(trace: TraceSummary) -> str | None:
    lost = trace.launches is not None and not trace.launches.count
    return "no GPU activity has its launch in the trace" if lost else without_gpu(trace)


#: What the page says of one trace.
TOPICS: tuple[Topic, ...] = (
    overview.TOPIC,
    time.TOPIC,
    timeline.TOPIC,
    idle.TOPIC,
    Topic(
        "input",
        "Waiting for data",
        definitions(INPUT_TERMS[:2]),
        most=20,
        unmeasured=unless(lambda t: t.input.wait_ns is not None, "the trace holds no label of a data loader"),
    ),
    syncs.TOPIC,
    critical_path.TOPIC,
    Topic(
        "sections",
        "Labelled sections",
        _SECTIONS,
        unmeasured=unless(lambda t: t.sections, "no step holds a labelled section"),
    ),
    Topic(
        "annotations",
        "User annotations",
        _ANNOTATIONS,
        most=30,
        nothing=unless(lambda t: t.annotations, "the trace holds no user annotation"),
    ),
    Topic("kernels", "Kernels", _KERNELS, most=25, unmeasured=without_gpu),
    program.TOPIC,
    Topic(
        "sequences",
        "Sequences of kernels",
        _SEQUENCES,
        most=12,
        unmeasured=without_gpu,
        nothing=unless(lambda t: t.sequences, "no operator or label launched the same two or more activities twice"),
    ),
    Topic(
        "collectives",
        "Communication",
        _COLLECTIVES,
        unmeasured=unless(lambda t: t.collectives, "the trace holds neither GPU activity nor a collective of the host"),
        nothing=unless(lambda t: t.collectives and t.collectives.count, "the trace holds no collective"),
    ),
    Topic("launches", "Launches", _LAUNCHES, most=12, unmeasured=_no_launch),
    queues.TOPIC,
    copies.TOPIC,
    memory.TOPIC,
    Topic("quality", "Trace quality", _QUALITY),
)

#: What it says of several ranks together.
RANK_TOPICS: tuple[RankTopic, ...] = (
    waits.TOPIC,
    RankTopic("rank_kernels", "Kernels across ranks", _RANK_KERNELS, shown=lambda ranks: bool(ranks.kernels)),
)
