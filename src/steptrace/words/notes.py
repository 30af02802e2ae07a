"""Notes in words: what to read with care in a run or a variant, a sentence for each code of `documents.note`.

A measured program imports this module, so that it needs nothing but the standard library.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from steptrace import format as fmt
from steptrace.words import quality
from steptrace.words.syncs import step_groups_in_words

if TYPE_CHECKING:
    from steptrace.documents.note import Note, NoteCode
    from steptrace.documents.quality import CheckCode, Quality


def note_text(note: "Note") -> str:
    """A note as a sentence, without its capital letter and full stop. A name at its beginning is in backticks."""
    return text_of(note.code, note.figures)


def note_texts(notes: "Iterable[Note]") -> tuple[str, ...]:
    """Notes as sentences; each sentence once."""
    return tuple(dict.fromkeys(map(note_text, notes)))


def trace_warnings(of_trace: "Quality", *, without: Collection["CheckCode"] = ()) -> tuple[str, ...]:
    """The notes of a trace's reader, and the checks that warn, with what to do; checks in `without` are left out."""
    failed = (check for check in of_trace.checks if check.warns and check.check not in without)
    return (*note_texts(of_trace.notes), *map(quality.warning, failed))


def text_of(code: "NoteCode", figures: Mapping[str, Any]) -> str:
    """The sentence for a code and its figures."""
    return _WORDS[code](**figures)


def _fewer_timed_steps(*, steps: int, planned: int, at_most_s: float, slow_step_s: float | None) -> str:
    reason = f"at_most_s is {fmt.plain(at_most_s)} s"
    if slow_step_s is not None:
        reason = f"a step takes over {fmt.plain(slow_step_s)} s, and {reason}"
    return f"{steps} of {planned} planned steps were timed: {reason}"


def _fewer_profiled_steps(*, steps: int, planned: int, step_s: float, at_most_s: float) -> str:
    return (
        f"{steps} of {planned} planned steps were profiled: a step takes {fmt.significant(step_s, 2)} s, and at_most_s "
        f"is {fmt.plain(at_most_s)} s"
    )


def _recompiled(*, graphs: int) -> str:
    return f"during the timed steps torch.compile made {fmt.plural(graphs, 'graph')}: use more warm-up steps"


def _other_processes(*, processes: int) -> str:
    who = "another process" if processes == 1 else f"{processes} other processes"
    return f"{who} used the GPU meanwhile: step times may be longer for it"


def _clocks_lowered(*, share: float) -> str:
    return f"the GPU lowered its clocks (power or heat) in {fmt.share(share)} of the samples: step times may be longer"


def _trace_fault(*, message: str | None) -> str:
    if message is None:
        return "the trace of the profiled steps was recorded, but its file is gone"
    return f"no complete trace of the profiled steps: {message}"


def _taken_apart(*, apart_s: float, order: str, least_effect: float, folders: list[str]) -> str:
    return (
        f"all of its runs were taken {fmt.rough_duration(apart_s)} {order} the baseline's: a change of the machine "
        f"meanwhile may be part of the difference, so only one above {fmt.share(least_effect)} is called faster or "
        f"slower; to tell less, remove {' and '.join(folders)} and run both again"
    )


def _too_uneven(*, is_baseline: bool, iqr_over_median: float, most: float) -> str:
    whose = "the baseline's IQR/median" if is_baseline else "IQR/median"
    return f"no verdict: {whose} is {fmt.share(iqr_over_median)}, above {fmt.setting(most)}"


def _twin_differs() -> str:
    return "same configuration as the baseline, yet the interval excludes 1: noise is larger than it seems"


def _drift(*, drift: float) -> str:
    return f"step time {'rises' if drift > 0 else 'falls'} by {fmt.share(abs(drift))} over a run"


def _early_read(*, file: str, line: int) -> str:
    return f"a value is read at {fmt.place(file, line)} while its copy to the host may be under way: it may be wrong"


def _unfinished_events(*, events: int, steps: list[int]) -> str:
    verb = "was" if events == 1 else "were"
    counts = "counts" if events == 1 else "count"
    text = f"{fmt.plural(events, 'event')} {verb} still running when the recording ended, and {counts} until then"
    if not steps:
        return text
    incomplete = "step {} is" if len(steps) == 1 else "steps {} are"
    return f"{text}; {incomplete.format(fmt.enumeration(list(map(str, steps))))} incomplete"


def _profiler_lost_records(*, dropped: int, stopped: bool) -> str:
    """The records that the profiler's own log says are lost."""
    lost = [f"it dropped {fmt.plural(dropped, 'record')}"] if dropped else []
    lost += ["it stopped recording the GPU, since its buffers were full"] if stopped else []
    return (
        f"the profiler's log in the trace says that {fmt.enumeration(lost)}: GPU work is missing, and its figures are "
        "too small; record fewer steps, or without stacks and shapes"
    )


def _excerpt(*, of: str, missing: int, events: int | None) -> str:
    text = f"this file is an excerpt of {of}, made for a trace viewer"
    if not missing:
        return f"{text}: figures are of one step"
    return (
        f"{text}: the shortest {fmt.count(missing)} of {fmt.count(events or missing)} events are left out, so its "
        "figures are too small; name the trace itself"
    )


def unread_events(*, events: int, phases: list[str], categories: list[str], without_category: bool) -> str:
    """Events that are not read, by their number, phases and categories: the figures of `events_not_read`."""
    phase = "phase" if len(phases) == 1 else "phases"
    of_phases = f" of the {phase} {fmt.enumeration(phases)}" if phases else ""
    subject = f"{fmt.plural(events, 'event')}{of_phases}"
    if not categories:
        return f"{subject} without a category"
    listed = f"{'category' if len(categories) == 1 else 'categories'} {', '.join(sorted(categories))}"
    some = "; some without a category" if without_category else ""
    return f"{subject} ({fmt.clipped(listed, 100)}{some})"


def _ranks_repeated(*, ranks: Iterable[Mapping[str, int]]) -> str:
    often = [f"{row['traces']} traces are of rank {row['rank']}" for row in ranks]
    return f"these traces are not the ranks of one job, so ranks are not compared: {', '.join(often)}"


def ranks_read(read: int, world_size: int) -> str:
    """How many of a job's ranks were read."""
    return f"{read} of {fmt.plural(world_size, 'rank')} read"


#: The sentence for each code; its arguments are the note's figures.
_WORDS: Final[Mapping["NoteCode", Callable[..., str]]] = {
    # Of a run.
    "fewer_timed_steps": _fewer_timed_steps,
    "fewer_profiled_steps": _fewer_profiled_steps,
    "compiled_without_lines": lambda: "operators in code from torch.compile, and those after it, have no source line",
    "lines_incomplete": lambda *, error: f"source lines are incomplete: the watched step raised {error}",
    "sync_check_left_out": lambda *, error: f"PyTorch's own check for syncs was left out: {error}",
    "recompiled": _recompiled,
    "nvml_unavailable": lambda *, error: f"NVML not available: {error}",
    "nvml_figure_missing": lambda *, figure, error: f"NVML gives no {figure}: {error}",
    "other_processes": _other_processes,
    "clocks_lowered": _clocks_lowered,
    "trace_fault": _trace_fault,
    "steps_skipped": lambda *, steps: f"a gradient scaler has skipped {steps} of the timed steps",
    "ended_early": lambda *, steps, exit_code: (
        f"the program ended after {steps} timed steps, with exit code {exit_code}"
    ),
    # How steps and runs are uneven.
    "uneven_steps": lambda *, iqr_over_median, most: (
        f"steps are uneven: IQR/median is {fmt.share(iqr_over_median)}, above {fmt.setting(most)}"
    ),
    "runs_differ": lambda *, deviation: (
        f"runs differ by {fmt.share(deviation)} (standard deviation): conditions changed between them"
    ),
    "drift": _drift,
    "outliers": lambda *, outliers, steps: (
        f"{outliers} of {fmt.plural(steps, 'step')} {'is an outlier' if outliers == 1 else 'are outliers'} "
        f"(modified z-score above 3.5), not left out"
    ),
    # Why there is no verdict.
    "too_few_runs": lambda: "no interval and no verdict: both the variant and its baseline need two runs or more",
    "too_uneven": _too_uneven,
    # Of a variant.
    "runs_missing": lambda *, measured, runs: f"only {measured} of {runs} runs were measured",
    "trace_not_analysed": lambda *, run, reason: f"the trace of run {run} was not analysed: {reason}",
    "taken_apart": _taken_apart,
    "no_baseline": lambda *, baseline: f"no ratio: the baseline {baseline} has no measured run",
    "twin_differs": _twin_differs,
    "noise_floor_too_high": lambda *, floor, most: (
        f"not called the same: the noise floor, {fmt.share(floor)} by the A/A pair, is above {fmt.setting(most)}"
    ),
    "within_noise_floor": lambda: "the interval excludes 1, but the effect is within the noise floor",
    "lost_by_correction": lambda: "the interval excludes 1, but not after the correction for several candidates",
    "syncs_differ_between_runs": lambda *, per_step: (
        f"syncs per step differ between runs: {', '.join(map(fmt.count, per_step))}"
    ),
    "syncs_differ_between_steps": lambda *, least, most: f"syncs differ between steps: {least} to {most}",
    "predicted_syncs_differ": lambda *, groups, often: (
        f"predicted syncs differ between steps: {step_groups_in_words(groups, often)}"
    ),
    "early_read": _early_read,
    "not_predicted": lambda *, error: f"syncs could not be predicted: {error}",
    "prediction_not_used": lambda *, reason: f"prediction not used: {reason}",
    "nothing_predicted": lambda: (
        "no syncs are predicted: the program ran nothing on the virtual CUDA device that it was given"
    ),
    "trace_quality": lambda **figures: quality.text_of(**figures),
    # Of a trace's reader.
    "parts_left_out": lambda *, events: (
        f"{fmt.plural(events, 'event')} with parts that cannot be read or repaired: these parts were left out"
    ),
    "texts_repaired": lambda *, texts: (
        f"{fmt.plural(texts, 'text')} with quotation marks, backslashes or line breaks that were not escaped: repaired"
    ),
    "events_not_read": lambda **figures: f"left out: {unread_events(**figures)}",
    "repeated_events": lambda *, events, kind: f"left out: {fmt.plural(events, 'event')} ({kind}) written twice",
    "impossible_events": lambda *, events, kind: (
        f"left out: {fmt.plural(events, 'event')} ({kind}) with an impossible time, size or device"
    ),
    "unfinished_events": _unfinished_events,
    "excerpt": _excerpt,
    "profiler_lost_records": _profiler_lost_records,
    # Of several traces.
    "trace_not_read": lambda *, file, reason: f"the file {file} was not read, and no figure counts it: {reason}",
    "traces_left_out": lambda *, left_out, found: f"the limit left out {left_out} of {found} traces",
    "ranks_repeated": _ranks_repeated,
    "ranks_not_read": lambda *, read, world_size: (
        f"{ranks_read(read, world_size)}: how long a rank waits for the others is not known, and lengths of "
        "communication include it"
    ),
}
