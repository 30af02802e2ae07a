"""The GPU is idle because the host has launched nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.finding import Severity
from steptrace.documents.idle import HostActivity, HostGap, HostGaps
from steptrace.documents.launches import Launches
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import Window
from steptrace.format import duration, plural, share
from steptrace.limits import HOST_BOUND, LONG_CALL_NS
from steptrace.words.codes import GPU_SPAN, HOST_ACTIVITIES

_BOUND: Final = Threshold(HOST_BOUND, "ours")
#: Kernels shorter than this can end before the host has launched the next: a launch costs it 3-10 microseconds.
SHORT_KERNEL_NS: Final = 10_000
#: The cause of idle time, or of gaps, is whatever fills at least this share of it.
_MOSTLY: Final = 0.5
#: A call that fills this share of one gap is named.
_WORTH_NAMING: Final = 0.1
#: The most gaps that are named.
_MOST_NAMED: Final = 3

#: What the advice is about.
Remedy = Literal["first_calls", "long_gaps", "operators", "python", "launches"]


class Spent(Document, frozen=True, kw_only=True):
    """Time of the host in a mean step while the GPU was idle."""

    activity: Annotated[HostActivity, field("What the host did.")]
    ns: Annotated[float, field("For how long.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """A GPU that waits for the host's launches."""

    idle_ns: Annotated[float, field("Idle time of the GPU for that reason, as profiled.")]
    idle_share: Annotated[float, field("The same as a share of the profiled step.")]
    most_ns: Annotated[float, field("The most that an unprofiled step can have of it; all of it if none is known.")]
    most_share: Annotated[float, field("The same as a share of that step. It decides how severe the finding is.")]
    unprofiled_step_ns: Annotated[float | None, field("Length of that unprofiled step.")]
    slowed_by_stacks: Annotated[
        bool, field("Whether Python stacks were recorded, and no unprofiled step says how much they slow the host.")
    ]
    kernels: Annotated[float, field("Kernels.")]
    launch_work_ns: Annotated[float, field("GPU work of the median launch.")]
    host: Annotated[tuple[Spent, ...], field("What the host did meanwhile, most time first; empty if not recorded.")]
    gaps: Annotated[tuple[HostGap, ...], field("The longest gaps of the whole trace.")]
    remedy: Annotated[Remedy, field("What the advice is about.")]


def _severity(idle_share: float) -> Severity:
    """How much it matters that a GPU is idle for this share of a step because nothing was launched."""
    if idle_share >= _BOUND.value:
        return "high"
    return "warning" if idle_share >= HIGH.value else "info"


def _find(window: Window) -> Iterator[Match[Figures]]:
    idle_ns = window.parts.get("idle_host")
    launches = window.entry.launches
    if idle_ns is None or launches is None or launches.device_ns is None:
        return
    most_ns, step_ns = window.without_profiler(idle_ns)
    most_share = window.waits_for_host
    if most_share < MODERATE.value:
        return
    # A callback, or operators that compute on the host, are the cause: their own findings say more.
    if max(window.callback_idle_ns, window.operator_wait_ns) >= _MOSTLY * idle_ns:
        return
    gaps = window.entry.host_gaps or HostGaps(gap_ns=0, long_call_ns=0, gaps=())
    spent = _spent(window)
    # With Python stacks part of the idle time is the profiler's, and no unprofiled step says how much.
    slowed = window.host_may_be_slowed
    yield Match(
        severity="info" if slowed else _severity(most_share),
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            device_module=window.entry.device_module,
            idle_ns=idle_ns,
            idle_share=window.share(idle_ns),
            most_ns=most_ns,
            most_share=most_share,
            unprofiled_step_ns=None if step_ns == window.step_ns else step_ns,
            slowed_by_stacks=slowed,
            kernels=window.entry.kernels_per_step or window.per_step(launches.activities),
            launch_work_ns=launches.device_ns.median,
            host=tuple(spent),
            gaps=gaps.gaps[:_MOST_NAMED],
            remedy=_remedy(window, launches, idle_ns, spent),
        ),
        cost_ns_per_step=most_ns,
        cost_share=most_share,
    )


def _spent(window: Window) -> list[Spent]:
    """What the host did while the GPU was idle, the longest first; empty where the record does not say."""
    return [Spent(activity=activity, ns=ns) for activity, ns in window.host_while_idle]


def _remedy(window: Window, launches: Launches, idle_ns: float, spent: Sequence[Spent]) -> Remedy:
    """What to look at, by what fills most of the gaps: long calls, a few long gaps, launches, operators, or Python.

    By the median of a launch's work, since a few long kernels (collectives above all) do not help the many short ones
    around them.
    """
    gaps = window.entry.host_gaps
    if gaps is not None and gaps.gap_ns and gaps.long_call_ns >= _MOSTLY * gaps.gap_ns:
        return "first_calls"
    long_ns = 0 if gaps is None else sum(gap.dur for gap in gaps.gaps if gap.dur >= LONG_CALL_NS)
    work_ns = 0.0 if launches.device_ns is None else launches.device_ns.median
    few_gaps = gaps is not None and long_ns >= _MOSTLY * gaps.gap_ns
    per_launch_ns = idle_ns / max(window.per_step(launches.count), 1)
    if few_gaps or work_ns >= SHORT_KERNEL_NS or per_launch_ns >= LONG_CALL_NS:
        return "long_gaps"
    short_calls_ns = 0 if gaps is None or gaps.call_ns is None else gaps.call_ns - gaps.long_call_ns
    if gaps is not None and short_calls_ns >= _MOSTLY * gaps.gap_ns:
        return "launches"
    return "operators" if spent and spent[0].activity == "operators" else "python"


#: What a step is called, by how much it matters. Nothing else is called host-bound.
_NAMES: Final[Mapping[Severity, str]] = {
    "high": "host-bound",
    "warning": "partly host-bound",
    "info": "slightly host-bound",
}


def _words(figures: Figures) -> Words:
    per = figures.per
    spent = figures.host
    name = "possibly host-bound" if figures.slowed_by_stacks else _NAMES[_severity(figures.most_share)]
    whole = "a step" if figures.steps else GPU_SPAN
    idle = f"{share(figures.most_share)} of {whole}"
    if figures.unprofiled_step_ns is not None:
        idle = f"at most {idle} ({share(figures.idle_share)} of a profiled one)"
    claim = f"{name}: for {idle} the GPU is idle because nothing was launched"
    if spent:
        claim += f", mostly while the host is {HOST_ACTIVITIES[spent[0].activity]}"
    evidence = [f"GPU idle for that reason: {duration(figures.idle_ns)} of {duration(figures.step_ns)} {per}"]
    if figures.unprofiled_step_ns is not None:
        evidence.append(
            f"an unprofiled step of {duration(figures.unprofiled_step_ns)} leaves at most "
            f"{duration(figures.most_ns)} beside the GPU's work"
        )
    if meanwhile := ", ".join(f"{duration(row.ns)} {HOST_ACTIVITIES[row.activity]}" for row in spent if row.ns):
        evidence.append(f"the host meanwhile: {meanwhile}")
    kernels = plural(round(figures.kernels, 1), "kernel")
    evidence.append(f"{kernels} {per}; the median launch has {duration(figures.launch_work_ns)} of GPU work")
    advice = _ADVICE[figures.remedy]
    if figures.on_cuda and figures.remedy in _CUDA_ADVICE:
        advice = (*advice, *_CUDA_ADVICE[figures.remedy])
    if figures.slowed_by_stacks:
        to_do, *more = advice
        advice = (f"{_NO_STACKS} {to_do[0].lower()}{to_do[1:]}", *more)
    return Words(claim, (*evidence, *_gaps_in_words(figures.gaps)), advice)


def _gaps_in_words(gaps: Sequence[HostGap]) -> list[str]:
    """The gaps, those alike together: how long, where, and what calls the host was in for a good part of them."""
    alike: dict[str, list[int]] = {}
    for gap in gaps:
        alike.setdefault(_place_of_gap(gap), []).append(gap.dur)
    return [f"{_lengths_in_words(lengths)} {place}" for place, lengths in alike.items()]


def _lengths_in_words(lengths: Sequence[int]) -> str:
    least, most = duration(min(lengths)), duration(max(lengths))
    span = least if least == most else f"{least} to {most}"
    return f"a gap of {span}" if len(lengths) == 1 else f"in the whole trace {len(lengths)} gaps of {span}"


def _place_of_gap(gap: HostGap) -> str:
    calls = [call for call in gap.calls if call.ns >= _WORTH_NAMING * gap.dur]
    words = " and ".join(
        f"{duration(call.ns)} in " + (call.name if call.count == 1 else f"{call.count} x {call.name}") for call in calls
    )
    launch = f"before a launch by {gap.op}" if gap.op else "before a launch outside operators"
    at = {"before": "before the first GPU work", "after": "after the last GPU work"}.get(gap.where, launch)
    label = f" in {gap.label}" if gap.where == "between" and gap.op and gap.label else ""
    return f"{at}{label}" + (f": {words}" if words else ", while the host was not in a call of the GPU's runtime")


#: It stands in one sentence with what to do next: the time that the finding names is what that saves.
_NO_STACKS: Final = (
    "If the GPU is still idle in a profile without Python stacks (`with_stack=False`), which slow the host:"
)
_LONG_GAPS: Final = advise(
    "Look at the longest gaps in the trace for what the host does before it launches: a first call or compilation "
    "(leave warm-up steps out of the profile), Python code, logging, work on the CPU.",
    "Move it out of the step or to another thread.",
)
_ADVICE: Final[Mapping[Remedy, tuple[str, ...]]] = {
    "long_gaps": _LONG_GAPS,
    "launches": advise("Launch less: torch.compile fuses kernels, and a larger batch makes each longer."),
    "python": advise("Let less Python run between the operators, as torch.compile does."),
    "operators": advise("Call fewer operators: torch.compile fuses them."),
    "first_calls": advise(
        "The first call of its kind loads the context, a module or a library: let some warm-up steps run before "
        "the profiler records (`torch.profiler.schedule(wait=..., warmup=...)`).",
    ),
}
#: What is to be had with CUDA alone, and with ROCm under its names.
_CUDA_ADVICE: Final[Mapping[Remedy, tuple[str, ...]]] = {
    "launches": advise("A CUDA graph launches many kernels by one call."),
    "python": advise(
        'A CUDA graph of the step (`torch.compile(mode="reduce-overhead")`) replays its launches without Python '
        "and operators.",
    ),
    "operators": advise(
        '`torch.compile(model, mode="reduce-overhead")` also replays the launches of a step as a CUDA graph.'
    ),
    "first_calls": advise(
        "cudaMalloc and cudaFree in later steps mean that PyTorch's allocator grows and shrinks: keep the same "
        "shapes from step to step.",
    ),
}

RULE: Final = Rule(
    name="host_bound",
    topic="waiting",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="for at least {least} of the step the GPU is idle because the host has launched nothing; from {partly} "
    "on the step is partly host-bound, from {bound} on host-bound",
    thresholds={"least": MODERATE, "partly": HIGH, "bound": _BOUND},
    source="the TensorFlow Profiler's thresholds are those of kernel launch and of other host time",
    advice=_LONG_GAPS,
    counter_check="Profile without stacks and shapes: gaps that disappear were caused by the profiler. Double the "
    "batch: a host-bound step hardly gets longer.",
    study="giou",
)
