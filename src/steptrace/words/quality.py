"""Checks of a trace in words: what is checked, the result, and what to do if a check fails."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from steptrace import format as fmt

if TYPE_CHECKING:
    from steptrace.documents.quality import CheckCode, Place, QualityCheck, StepSource

#: The name of each check on a page.
TITLES: Final[Mapping["CheckCode", str]] = {
    "steps_marked": "steps marked",
    "gpu_work": "GPU work recorded",
    "kernel_launches_with_work": "launches with their GPU work",
    "graph_launches_with_work": "graph launches with their GPU work",
    "copies_with_work": "copies with their work",
    "waiting_calls": "calls that wait for the GPU",
    "linked_to_launch": "GPU work linked to its launch",
    "launches_with_operator": "launches with their operator",
    "after_launch": "GPU work after its launch",
    "starts": "starts after the launch",
    "ends": "plausible ends of GPU work",
    "one_at_a_time": "one activity of a stream at a time",
    "communication": "communication of the ranks",
    "one_gpu": "one GPU",
    "step_numbers": "steps numbered without a gap",
    "steps_in_turn": "steps one after the other",
    "operators_within_steps": "operators within the steps",
    "steps_with_work": "steps with GPU work",
}
#: The most steps and activities that a sentence names; of more it gives the number.
_MOST_NAMED: Final = 5
_NO_SYNCS: Final = "syncs were not measured"


def result(check: "CheckCode", *, wrong: int, total: int, figures: Mapping[str, Any]) -> str:
    """The result of a check, without what to do.

    Args:
        check: the check.
        wrong: how many things are wrong.
        total: how many things were checked.
        figures: the further figures that the check recorded.
    """
    return _RESULTS[check](wrong, total, **figures)


def warning(check: "QualityCheck") -> str:
    """The result of a check, and what to do."""
    return _with_remedy(check.says, check.check, check.wrong, check.of, check.figures)


def text_of(*, check: "CheckCode", wrong: int, of: int, figures: Mapping[str, Any]) -> str:
    """The result of a check and what to do, for the figures of a note: `of` things were checked."""
    return _with_remedy(result(check, wrong=wrong, total=of, figures=figures), check, wrong, of, figures)


def _with_remedy(text: str, check: "CheckCode", wrong: int, total: int, figures: Mapping[str, Any]) -> str:
    remedy = _remedy(check, wrong, total, figures)
    return text if remedy is None else f"{text}; {remedy}"


def _part(count: int, total: int) -> str:
    return f"{fmt.count(count)} of {fmt.count(total)}"


#: Which labels mark the steps, if not the profiler's.
_STEP_SOURCES: Final[Mapping["StepSource", str]] = {
    "optimizer": "the ends of optimizer steps (Optimizer.step#)",
    "loader": "the waits for the loader (enumerate(DataLoader)#)",
}


def _steps_marked(
    _wrong: int, _of: int, *, steps: int, source: "StepSource | None", optimizer_steps: int | None = 1
) -> str:
    if source is None:
        return "no step label (ProfilerStep#N): figures cover the whole trace, per-step figures are missing"
    counted = fmt.plural(steps, "step")
    if source == "profiler":
        return counted
    text = f"no step label (ProfilerStep#N): {counted} from {_STEP_SOURCES[source]}"
    if optimizer_steps is None:
        return f"{text}, whose backward passes differ: these may be parts of steps"
    if optimizer_steps > 1:
        return f"{text}, {optimizer_steps} of them a step: so often their backward passes repeat"
    return text


def _gpu_work(_wrong: int, _of: int, *, activities: int, has_calls: bool = True) -> str:
    nothing = "no GPU activity" if has_calls else "no GPU activity and no call into a GPU's runtime"
    few = {
        0: f"{nothing}: GPU figures {'' if has_calls else 'and syncs '}were not measured",
        1: "one GPU activity only: gaps were not measured",
    }
    return few.get(activities, f"{fmt.count(activities)} GPU activities")


#: Which of the GPU's records are missing.
_PLACES: Final[Mapping["Place", str]] = {
    "all": "all of their records are missing",
    "start": "records at the start are missing",
    "end": "records at the end are missing",
    "middle": "records in one stretch of the trace are missing",
    "scattered": "records throughout the trace are missing",
}


def _launches_with_work(launch: str) -> Callable[..., str]:
    def words(  # noqa: PLR0913 - the figures of the check, by name
        wrong: int,
        total: int,
        *,
        place: "Place | None" = None,
        partly: int = 0,
        left_out: Sequence[int] = (),
        measured: bool = True,
        module: str = "",  # noqa: ARG001 - the remedy names it
        impossible: int = 0,  # noqa: ARG001 - the remedy asks for it
        unread: int = 0,  # noqa: ARG001 - the remedy asks for it
    ) -> str:
        if place is None:
            return "all have their GPU activity"
        if not partly:
            lacking = "no GPU activity"
        elif partly == wrong:
            lacking = "not all"
        else:
            lacking = "no GPU activity, or not all"
        work = " of their GPU activities in the trace" if partly else " in the trace"
        what = "copies" if launch == "copy" else f"{launch} launches"
        text = f"{_part(wrong, total)} {what} have {lacking}{work}: {_PLACES[place]}"
        if left_out:
            text += f"; left out: {fmt.plural(len(left_out), 'step')} ({_named(list(map(str, left_out)))})"
        return text if measured else f"{text}, so the GPU's figures were not measured"

    return words


def _named(names: Sequence[str]) -> str:
    """The first of some names, and dots where there are more."""
    return ", ".join([*names[:_MOST_NAMED], *(["..."] if len(names) > _MOST_NAMED else [])])


def _linked_to_launch(  # noqa: PLR0913 - the figures of the check, by name
    wrong: int,
    total: int,
    *,
    module: str = "",  # noqa: ARG001 - the remedy names it
    lost: int = 0,
    left_out: Sequence[int] = (),
    measured: bool = True,
    held_back: bool = False,  # noqa: ARG001 - the remedy says it
) -> str:
    text = f"{_part(wrong, total)} GPU activities have no launch in the trace"
    if not lost:
        return text
    activities = "1 GPU activity" if lost == 1 else f"{fmt.count(lost)} GPU activities"
    missing = f"the host's calls that launched {activities} are missing"
    text = missing if lost >= wrong else f"{text}; {missing}"
    if left_out:
        text += f"; left out: {fmt.plural(len(left_out), 'step')} ({_named(list(map(str, left_out)))})"
    return text if measured else f"{text}, and other calls may be; {_NO_SYNCS}"


def _waiting_calls(  # noqa: PLR0913 - the figures of the check, by name
    wrong: int,
    _of: int,
    *,
    runtimes: Sequence[str],
    unknown: Sequence[str],
    missing: int = 0,
    must_wait: int = 0,
    no_wait: bool = False,
    left_out: Sequence[int] = (),
    measured: bool = True,
) -> str:
    if missing:
        text = f"calls that wait for the GPU are missing in {_part(missing, must_wait)} places that must have one"
        if left_out:
            text += f"; left out: {fmt.plural(len(left_out), 'step')} ({_named(list(map(str, left_out)))})"
        return f"{text}; {'syncs block the host for longer than is said' if measured else _NO_SYNCS}"
    if wrong and "npu" in unknown:
        return f"Ascend's profiler (torch_npu) writes calls and the NPU's work in a form that is not read; {_NO_SYNCS}"
    if wrong and unknown:
        return f"calls of {', '.join(unknown)}: it is not known which of them wait for the GPU; {_NO_SYNCS}"
    of_runtimes = f"calls of {', '.join(runtimes)}"
    if no_wait and measured:
        return (
            f"{of_runtimes}, none of which waits for the GPU, not even the profiler's own at its end: this is an "
            "excerpt, or calls that wait are missing"
        )
    if not wrong:
        return of_runtimes
    lacking = f"some {of_runtimes} are missing" if runtimes else "the calls into the GPU's runtime are missing"
    return f"{lacking}; {_NO_SYNCS}"


def _launches_with_operator(wrong: int, total: int) -> str:
    return f"{_part(wrong, total)} launches name an operator that is not in the trace"


def _after_launch(wrong: int, total: int, *, worst_ns: int) -> str:
    worst = f", by up to {fmt.duration(worst_ns)}" if wrong else ""
    return f"{_part(wrong, total)} GPU activities start before the call that launched them{worst}: the clocks disagree"


def _ends(wrong: int, total: int, *, cut: Sequence[Mapping[str, Any]]) -> str:
    return f"{_part(wrong, total)} GPU activities end far too late: {_cut(wrong, cut)}"


def _starts(wrong: int, total: int, *, cut: Sequence[Mapping[str, Any]]) -> str:
    return f"{_part(wrong, total)} GPU activities start long before the call that launched them: {_cut(wrong, cut)}"


def _cut(wrong: int, cut: Sequence[Mapping[str, Any]]) -> str:
    """The first of the activities that were cut, each with its length as recorded and as kept."""
    named = [
        f"{records['name']} on stream {records['stream']} (recorded {fmt.duration(records['recorded_ns'])}, "
        f"kept {fmt.duration(records['kept_ns'])})"
        for records in cut
    ]
    return ", ".join([*named, *(["..."] if wrong > len(cut) else [])])


def _communication(wrong: int, _of: int, *, ranks: int) -> str:
    text = f"a job of {fmt.count(ranks)} ranks"
    if not wrong:
        return text
    return f"{text} without communication: no kernel's name is known as a collective's, so its time counts as compute"


def _step_numbers(wrong: int, total: int, *, numbers: Sequence[int], left_out: Sequence[int] = ()) -> str:
    if not wrong:
        return fmt.plural(total, "step")
    text = f"steps are not numbered one after the other: {', '.join(map(str, numbers))}"
    if not left_out:
        return text
    steps = f"{fmt.plural(len(left_out), 'step')} ({_named(list(map(str, left_out)))})"
    return (
        f"{text}; time between them is in no step, so figures are of the longest run without a gap; left out: {steps}"
    )


def _steps_in_turn(wrong: int, total: int, *, spans_ns: int, twice_ns: int, window_ns: int) -> str:
    if not wrong:
        return "they do"
    return (
        f"{wrong} of {total} steps begin while GPU work of an earlier one is still to finish: their spans add up to "
        f"{fmt.duration(spans_ns)}, {fmt.duration(twice_ns)} of it counted twice; all take {fmt.duration(window_ns)}, "
        f"{fmt.duration(window_ns / total)} a step"
    )


def _copies_with_work(wrong: int, total: int, **lost: Any) -> str:
    if lost:
        return _launches_with_work("copy")(wrong, total, **lost)
    return f"{_part(wrong, total)} copies have no GPU activity in the trace"


def _steps_with_work(wrong: int, total: int, *, left_out: Sequence[int] = ()) -> str:
    if not left_out:
        return f"{wrong} of {total} steps launched no GPU work"
    steps = f"{fmt.plural(len(left_out), 'step')} ({_named(list(map(str, left_out)))})"
    return f"{wrong} of {total} steps hold no event; left out: {steps}"


#: The result of each check, from the number of wrong things, the number of all, and the check's figures.
_RESULTS: Final[Mapping["CheckCode", Callable[..., str]]] = {
    "steps_marked": _steps_marked,
    "gpu_work": _gpu_work,
    "kernel_launches_with_work": _launches_with_work("kernel"),
    "graph_launches_with_work": _launches_with_work("graph"),
    "copies_with_work": _copies_with_work,
    "waiting_calls": _waiting_calls,
    "linked_to_launch": _linked_to_launch,
    "launches_with_operator": _launches_with_operator,
    "after_launch": _after_launch,
    "starts": _starts,
    "ends": _ends,
    "one_at_a_time": lambda wrong, total: (
        f"{_part(wrong, total)} GPU activities start while an earlier one of their stream still runs"
    ),
    "communication": _communication,
    "one_gpu": lambda wrong, total, *, devices, device: (  # noqa: ARG005 - as the others
        f"GPU work on {fmt.plural(devices, 'device')}: figures are of device {device}"
    ),
    "step_numbers": _step_numbers,
    "steps_in_turn": _steps_in_turn,
    "operators_within_steps": lambda wrong, total: f"{_part(wrong, total)} operators are called outside the steps",
    "steps_with_work": _steps_with_work,
}

#: What to do if a check fails, or what that means for the figures.
_REMEDIES: Final[Mapping["CheckCode", str]] = {
    "copies_with_work": "their time is not counted, nor what waits for them without a call that waits",
    "linked_to_launch": "call {module}.synchronize() before the profiler starts, or record fewer steps",
    "launches_with_operator": "operators are missing: figures of operators and of source lines are too small",
    "after_launch": "figures that depend on the order of host and GPU work are doubtful",
    "starts": "each was taken to start at that call, or at the end of its stream's work before",
    "ends": "each was cut at the next start of its stream, where the host had waited for it, or to the longest other "
    "run of its kernel",
    "one_at_a_time": "figures that depend on the order of GPU work are doubtful",
    "operators_within_steps": "operators, labels, functions and collectives per step include those outside",
    "steps_with_work": "means per step include them; a step() call after the last step begins such a one",
}
#: What to do where records of launched work are missing, by place.
_WHERE_LOST: Final[Mapping["Place", str]] = {
    "all": "the profiler kept no record of the GPU: profile again in a fresh process, with warm-up steps "
    "(`torch.profiler.schedule(warmup=...)`) and without another profiler (Nsight, DCGM, rocprof) on the same GPU",
    "start": "let the profiler warm up for more steps (`torch.profiler.schedule(warmup=...)`), or profile earlier in "
    "the process: the loss grows with its age",
    "end": "call {module}.synchronize() before the profiler stops, or record fewer steps",
    "middle": "the profiler's buffers overran: record fewer steps, or without stacks and shapes",
    "scattered": "the profiler's buffers overran: record fewer steps, or without stacks and shapes",
}
_GRAPHS_LOST: Final = (
    "start a profiler once before the graphs are captured (`torch.profiler._utils._init_for_cuda_graphs`, on NVIDIA), "
    "or profile without graphs"
)


_IMPOSSIBLE: Final = (
    "their records are in the file and have impossible times, so they were left out: profile again, or with another "
    "version of PyTorch or of the GPU's driver"
)


def _remedy(check: "CheckCode", wrong: int, total: int, figures: Mapping[str, Any]) -> str | None:
    text = _REMEDIES.get(check)
    place = figures.get("place")
    if check == "linked_to_launch" and 2 * figures.get("lost", 0) > wrong:
        text = _WHERE_LOST["middle"]
    elif check == "linked_to_launch" and wrong == total:
        text = "what follows from launches was not measured"
    elif check == "linked_to_launch" and figures.get("held_back"):
        text = f"what follows from launches was not measured; {text}"
    elif check == "steps_with_work" and figures.get("left_out"):
        text = "the profiler lost what is in them: record fewer steps, or let it warm up for more"
    if place is not None:
        # A buffer that begins late or ends early loses a few launches; a graph that the profiler has not seen, most.
        is_of_graphs = check == "graph_launches_with_work" and (place not in ("start", "end") or 2 * wrong > total)
        text = _GRAPHS_LOST if is_of_graphs else _WHERE_LOST[place]
        if figures.get("impossible", 0) >= wrong:
            text = _IMPOSSIBLE
        elif figures.get("unread", 0) >= wrong:
            text = "they may be among the events that were not read"
    return None if text is None else text.replace("{module}", figures.get("module", ""))
