"""What a page of traces and the terminal begin with, in sentences made from `documents.headline`."""

from collections.abc import Callable, Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.headline import (
    Caution,
    Delays,
    Headline,
    HeadlineOfSeveral,
    NothingToAdvise,
    Range,
    SpanLength,
    StepLengths,
    SyncFacts,
    UnprofiledLengths,
)
from steptrace.documents.overview import IDLE_CAUSES
from steptrace.limits import NOISE_FLOOR, SLOW_PROFILE
from steptrace.words.codes import ABSENCES, GPU_SPAN

#: Most counts of single steps in a sentence; of more their range is given.
_MOST_COUNTS: Final = 6


def headline_text(headline: Headline) -> str:
    """The result of a trace in a sentence.

    With figures of a GPU: its busy time, the cause of most idle time, and the syncs. Without: the step time, if
    unprofiled steps were timed.
    """
    if not headline.gpu_measured:
        return _without_gpu(headline)
    over = "the profiled step" if headline.has_steps else GPU_SPAN
    busy = headline.busy_pct
    clauses = ["GPU busy: not measured" if busy is None else f"GPU busy {fmt.percent(busy)} of {over}"]
    if headline.idle_cause is not None:
        removed = removable_text(headline.idle_cause, headline.idle_share, headline.syncs.most_share)
        clauses.append(f"idle {fmt.share(headline.idle_share)} {IDLE_CAUSES[headline.idle_cause]}{removed}")
    if headline.syncs.per_step is not None:
        clauses.append(f"{_per_step(headline.syncs, headline.syncs.per_step)}{_cheap(headline.syncs)}")
    elif headline.syncs.whole is not None:
        clauses.append(f"{fmt.plural(headline.syncs.whole, 'sync')} in the whole trace")
    else:
        clauses.append("syncs were not measured")
    return "; ".join(clauses) + "."


def _without_gpu(headline: Headline) -> str:
    if headline.unprofiled_step_ns is not None:
        step = fmt.duration_ns(headline.unprofiled_step_ns)
        return f"A step takes {step} on this CPU (median){_other_steps(headline)}; GPU figures were not measured."
    if not headline.lost and headline.unread_runtimes:
        unread = f"The device's work is in a form that is not read ({', '.join(headline.unread_runtimes)})."
        if headline.profiled_step_ms is None:
            return unread
        return f"A profiled step takes {fmt.duration_ms(headline.profiled_step_ms)} on the host. {unread}"
    if not headline.lost:
        not_measured = "No GPU activity in this trace: its GPU figures were not measured."
        if headline.profiled_step_ms is None:
            return not_measured
        return f"A profiled step takes {fmt.duration_ms(headline.profiled_step_ms)} on the CPU. {not_measured}"
    lost = " and ".join(
        f"{fmt.count(records.lost)} of {fmt.count(records.of)} {records.launch} launches have no GPU activity in the "
        "trace"
        for records in headline.lost
    )
    # Syncs are calls of the host, which were recorded.
    syncs = ""
    if headline.syncs.per_step is not None:
        syncs = f"; {_per_step(headline.syncs, headline.syncs.per_step)}"
    elif headline.syncs.whole is not None:
        syncs = f"; {fmt.plural(headline.syncs.whole, 'sync')} in the whole trace"
    return f"GPU figures were not measured: {lost}{syncs}."


def _other_steps(headline: Headline) -> str:
    """Another kind of steps, as a clause; empty without one."""
    other = headline.other_steps
    if other is None:
        return ""
    times = f"{other.steps} of {other.of} steps {fmt.duration_ns(other.median_ns)}"
    return f", {times}: {fmt.share(other.share)} of the time"


def _per_step(syncs: SyncFacts, per_step: float) -> str:
    """Syncs per step; if profiled steps differ, their counts as well."""
    counts = syncs.in_steps
    if not counts:
        return f"{fmt.plural(per_step, 'sync')} per step"
    if sum(counts) == 1:
        return f"1 sync in {len(counts)} profiled steps"
    listed = f"{min(counts)} to {max(counts)}" if len(counts) > _MOST_COUNTS else fmt.enumeration([*map(str, counts)])
    return f"{fmt.plural(round(per_step, 2), 'sync')} per step on average ({listed} in the profiled steps)"


def _cheap(syncs: SyncFacts) -> str:
    """That the syncs cost next to nothing, if that is so."""
    if not syncs.whole or syncs.most_share is None or syncs.most_share >= NOISE_FLOOR:
        return ""
    return f", which cost {fmt.share(syncs.most_share)} of the step at most"


def headline_of_several_text(headline: HeadlineOfSeveral) -> str:
    """The result of several traces: their GPUs' busy shares and syncs, least to greatest, and the straggler.

    Without figures of a GPU it has the length of the steps.
    """
    if headline.gpu_measured:
        busy = _range(headline.busy_pct, fmt.percent)
        syncs = _range(headline.syncs_per_step, fmt.count)
        text = f"GPUs are busy {busy} of a step; syncs per step: {syncs}."
    else:
        text = "No GPU activity in these traces: their GPU figures were not measured."
        if headline.profiled_ms is not None:
            text = f"A profiled step takes {_range(headline.profiled_ms, fmt.duration_ms)} on the CPU. {text}"
    return text if headline.delays is None else f"{text} {_delays(headline.delays)}"


def _range(values: Range | None, written: Callable[[float], str]) -> str:
    if values is None:
        return fmt.NOT_MEASURED
    return " to ".join(dict.fromkeys([written(values.low), written(values.high)]))


def _delays(delays: Delays) -> str:
    time = fmt.duration_ns(delays.ns)
    saved = f"{time} in all" if delays.step_share is None else f"{time} per step ({fmt.share(delays.step_share)})"
    who = "one of them" if delays.rank is None else f"rank {delays.rank}"
    return f"The others wait most for {who}: without its delays at most {saved} would be saved."


def step_lengths_texts(lengths: StepLengths) -> list[str]:
    """A sentence for each other length of a step on the page, which says how it fits the profiled step's."""
    sentences = []
    if lengths.unprofiled is not None:
        sentences.append(_unprofiled_lengths(lengths.unprofiled))
    if lengths.span is not None:
        sentences.append(span_text(lengths.span))
    return sentences


def span_text(lengths: SpanLength) -> str:
    """How the length of a profiled step and its span go together."""
    return (
        f"A profiled step takes {fmt.duration_ms(lengths.step_ms)}. From its start on the host to the end of its GPU "
        f"work it spans {fmt.duration_ms(lengths.span_ms)}: meanwhile the GPU also works for earlier steps."
    )


def _unprofiled_lengths(lengths: UnprofiledLengths) -> str:
    times = f"Without the profiler the median step takes {fmt.duration_ns(lengths.median_ns)}"
    kind = ""
    if lengths.usual_ns is not None:
        usual = fmt.duration_ns(lengths.usual_ns)
        mean = fmt.duration_ns(lengths.mean_ns)
        times += f" (usual steps {usual}, mean of all steps {mean})"
        kind = " of its kind"
    return f"{times}; a profiled step takes {fmt.ratio(lengths.slower)} the time of an unprofiled one{kind}."


_NOTHING_TO_ADVISE: Final[Mapping[NothingToAdvise, str]] = {
    "gpu_work_lost": "No findings from the host's times. Idle time and kernels were not measured.",
    "no_gpu": "No findings from the host's times. Syncs, idle time and kernels need a GPU and were not measured.",
    "nothing_worth_it": "Nothing to change in the program that would save 1 % of a step.",
    "kernels_set_the_pace": "No findings: kernels set the pace, so only faster or fewer kernels save time.",
    "no_findings": "No findings.",
}


def nothing_to_advise_text(why: NothingToAdvise) -> str:
    """Why nothing is advised, in a sentence."""
    return _NOTHING_TO_ADVISE[why]


def removable_text(idle_cause: str, idle_share: float, most_share: float | None) -> str:
    """How much of the idle time after syncs their removal saves, if that is less than all of it.

    Args:
        idle_cause: the cause of the idle time.
        idle_share: its share of the step.
        most_share: the share of the step that all syncs cost at most; None if it is unknown.
    """
    if idle_cause != "sync" or most_share is None or most_share >= idle_share:
        return ""
    return f" (the syncs cost at most {fmt.share(most_share)} of the step)"


def caution_text(caution: Caution) -> str:
    """One thing to know of a record, in a sentence."""
    match caution.code:
        case "no_steps":
            return "The trace marks no steps: figures are of all of it."
        case "few_steps":
            if caution.steps == 1:
                return "One step only; it may be untypical."
            return f"{caution.steps} steps only; they may be untypical."
        case "uneven_steps":
            uneven = f"unprofiled steps are uneven: IQR/median is {fmt.share(caution.spread)}"
            return f"The {uneven}. Is the machine busy with other work?"
        case "python_stacks":
            return "Python stacks were recorded: they slow the host, so idle time is an upper bound."
        case "slow_profile":
            times = f"A profiled step took {fmt.ratio(caution.slower)} the time of an unprofiled one"
            most = "most of the time below" if caution.slower >= SLOW_PROFILE else "part of it"
            return f"{times}: {most} is the profiler's."
        case "probably_inference":
            return "Neither a backward pass nor an optimizer step is in the trace: probably inference."
        case "unknown_idle" if caution.lacks is not None:
            return f"Idle for an unknown reason, {fmt.share(caution.idle)}: {ABSENCES[caution.lacks]}."
        case "unknown_idle":
            lacks = "the trace does not say what it waited for" if caution.queued else "the trace lacks its launch"
            began = "was launched before the GPU ran dry and began late" if caution.queued else "began late"
            return f"Idle for an unknown reason, {fmt.share(caution.idle)}: the next work {began}; {lacks}."
        case "explicit_syncs":
            return (
                "Each sync is a call that waits for all of the GPU's work (`torch.cuda.synchronize()`): often it is of "
                "the code that times or profiles the step, not of the training."
            )
