"""The answer of a study in sentences. Names are in backticks; pages show them as code."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.answer import (
    Advice,
    Answer,
    ChangedSettings,
    Counted,
    LineOfLaunches,
    MemoryRange,
    NamedTime,
    NoVerdict,
    SameAnswer,
    SectionTimes,
    Speed,
    SyncsOfVariants,
    WhyFaster,
)
from steptrace.documents.equivalence import EquivalenceStatus
from steptrace.documents.step_times import RatioToBaseline
from steptrace.limits import NOISE_FLOOR
from steptrace.words.equivalence import not_comparable_text
from steptrace.words.estimate import MOST_NAMED, most_waiting_in_words
from steptrace.words.estimated_answer import estimated_sentence
from steptrace.words.known import known_in_words
from steptrace.words.matrix import matrix_sentence, removals_text
from steptrace.words.method import correction_in_words
from steptrace.words.why import why_in_words

#: The name of what limits a step of the baseline, by its estimate.
_LIMITS: Final[Mapping[Counted, str]] = {"launches": "the host's launches of kernels", "syncs": "syncs"}
#: The most classes of kernels that are named.
_MOST_CLASSES: Final = 2
_ENDINGS: Final[Mapping[str, str]] = {
    "failed": "failed",
    "out of memory": "ran out of memory",
    "killed": "stopped by a signal",
    "not run": "did not run",
}
_NO_VERDICT: Final[Mapping[NoVerdict, str]] = {
    "baseline_not_measured": "The baseline `{baseline}` has no step time, so nothing is compared",
    "baseline_alone": "Only the baseline was measured",
    "one_run_each": "Only one run per variant, so no comparison",
    "too_noisy": "Too noisy to compare",
    "other": "No verdict",
}
#: The outcomes of a matrix that sentences on its cells say.
_IN_CELLS: Final = frozenset({"faster", "none_faster", "no_difference", "estimated"})
_WHY_BLOCKED_IS_NO_COST: Final = (
    "while the host is blocked, the GPU goes on with what is queued; a sync costs only the time that the GPU is idle "
    "after it."
)
_NOT_SAME: Final[Mapping[EquivalenceStatus, str]] = {
    "differs": "a different result",
    "failed": "check of the answer failed",
    "not comparable": "answer cannot be compared",
    "not measured": "answer not checked",
}
_WRONG: Final[Mapping[EquivalenceStatus, str]] = {
    "differs": ", but computes something else",
    "failed": ", but the check of its answer failed",
}


def sentence_of(answer: Answer) -> str:
    """Which variant is faster, by how much and how sure; what failed."""
    return " ".join(sentences_of(answer))


def sentences_of(answer: Answer) -> tuple[str, ...]:
    """The same in parts: first the answer itself, then what else is known of the variants."""
    ended = [f"{_names(row.names)} {_ENDINGS[row.status]}." for row in answer.ended]
    # Where a variant is chosen, the sentence on those that are about equally fast names the section.
    section = [] if answer.section is None or answer.alike else [_section(answer.section)]
    removals = removals_text(answer.removals[:MOST_NAMED])
    speeds = _speeds(answer)
    if answer.matrix and removals:
        return (removals, *section, *ended)
    if answer.matrix and answer.outcome in _IN_CELLS:
        # The speed in one cell answers the question in no other one.
        speeds = [matrix_sentence(speed) for speed in answer.matrix[:MOST_NAMED]]
        speeds = speeds if answer.known is None else [known_in_words(answer.known), *speeds]
    memory = [] if answer.memory is None or answer.matrix else [_memory(answer.memory)]
    return (*speeds, *([removals] if removals else []), *memory, *section, *ended)


def _memory(memory: MemoryRange) -> str:
    """The lowest and the highest peak."""
    basis = "" if memory.gpu is None else ", estimated"
    least, most = (f"{fmt.size_bytes(row.peak_bytes)} (`{row.name}`)" for row in (memory.least, memory.most))
    return f"Peak memory{basis}: {least} to {most}."


def _section(section: SectionTimes) -> str:
    """How long the section takes in variants whose whole steps do not tell them apart."""
    alike = {row.name for row in section.hidden}
    ends = dict.fromkeys(fmt.duration_ms(row.step_ms) for row in (section.hidden[0], section.hidden[-1]))
    text = f"Whole steps of {len(alike)} variants cannot be told apart ({' to '.join(ends)})"
    return f"{text}; {_told_apart(section)}."


def _told_apart(section: SectionTimes) -> str:
    """How long the section takes in those variants, shortest and longest, as a clause."""
    alike = {row.name for row in section.hidden}
    rows = [row for row in section.times if row.name in alike]
    return f"only `{section.section}`, timed by itself, tells them apart: {_span(rows)}"


def _span(times: Sequence[NamedTime]) -> str:
    """The shortest and the longest of some times, which are sorted."""
    first, last = times[0], times[-1]
    return f"{fmt.duration_ms(first.step_ms)} (`{first.name}`) to {fmt.duration_ms(last.step_ms)} (`{last.name}`)"


def _speeds(answer: Answer) -> list[str]:
    match answer.outcome:
        case "nothing_measured":
            return ["No step time was measured."]
        case "no_verdict":
            return [_no_verdict(answer), *_other_batches(answer.other_batches)]
        case "other_batches":
            return _other_batches(answer.other_batches)
        case "estimated":
            # What is known without the estimates comes first where they decide nothing.
            known = [] if answer.known is None else [known_in_words(answer.known)]
            return known + [estimated_sentence(by_gpu) for by_gpu in answer.estimated]
        case "no_difference":
            return [
                "No measurable difference.",
                *_clause(answer.unjudged, "without a verdict"),
                *_other_batches(answer.other_batches),
            ]
        case "faster" | "unconfirmed" | "none_faster":
            return _compared(answer)


def _compared(answer: Answer) -> list[str]:
    """The sentences where a variant is faster, slower, or measured apart."""
    sentences: list[str] = []
    if answer.chosen is not None:
        sentences += [_faster(answer, answer.chosen), *_alike(answer, answer.chosen)]
        sentences += _clause(answer.faster, "faster, too", ratios=True)
    elif answer.outcome == "none_faster":
        sentences.append("No variant is faster.")
    sentences += _unconfirmed(answer)
    sentences += _clause(answer.slower, "slower", ratios=True)
    sentences += _clause(answer.same_speed, "as fast as the baseline")
    if answer.undecided:
        sentences.append(f"No measurable difference: {_speed_names(answer.undecided)}.")
    sentences += _clause(answer.unjudged, "without a verdict")
    return [*sentences, *_other_batches(answer.other_batches)]


def _other_batches(rows: Sequence[Speed]) -> list[str]:
    """The variants whose steps take other numbers of samples than their baselines', compared by sample.

    Each has its verdict on the time per sample, where there is one, and its samples per second.
    """
    if not rows:
        return []
    if len(rows) > MOST_NAMED:
        return [f"{len(rows)} variants have other batches than their baselines, so step times do not compare them."]
    first = rows[0]
    named = fmt.enumeration([_per_sample(row) for row in rows])
    bases = {row.baseline for row in rows}
    before = f", against {_rate(first.baseline_samples, first.baseline_ms)} of `{first.baseline}`"
    return [f"Batches differ, so samples are compared, not steps: {named}{before if len(bases) == 1 else ''}."]


#: The verdict on the time per sample, behind the variant's name.
_VERDICT_PER_SAMPLE: Final = {
    "faster": "is faster per sample",
    "slower": "is slower per sample",
    "same": "is as fast per sample",
    "undecided": "is not shown to differ per sample",
}


def _per_sample(row: Speed) -> str:
    """A variant with its samples per second, and its verdict per sample where it has one."""
    rate = _rate(row.samples, row.step_ms)
    ratio = row.ratio_per_sample
    verdict = None if ratio is None else _VERDICT_PER_SAMPLE.get(ratio.verdict or "")
    return f"`{row.name}` has {rate}" if verdict is None else f"`{row.name}` {verdict} ({_ratio(ratio)}; {rate})"


def _rate(samples: int | None, step_ms: float | None) -> str:
    if samples is None or not step_ms:
        return fmt.NOT_MEASURED
    return f"{fmt.significant(samples / step_ms * 1000, 3)} samples/s"


def _alike(answer: Answer, chosen: Speed) -> list[str]:
    """The variants that are not shown to be slower or faster than the chosen one.

    If one of them measured a shorter step, the sentence says why it is not the chosen one.
    """
    shorter = [row for row in answer.alike if _is_shorter(row, chosen)]
    sentences = []
    if shorter:
        times = sorted(row.step_ms for row in shorter if row.step_ms is not None)
        span = " to ".join(dict.fromkeys(map(fmt.duration_ms, (times[0], times[-1]))))
        verb = "is" if len(shorter) == 1 else "are"
        sentences.append(
            f"{_speed_names(shorter)} measured {span}, but {verb} not shown to be faster than `{chosen.name}`, which "
            "changes the fewest settings."
        )
    sentences += _clause([row for row in answer.alike if row not in shorter], "about equally fast")
    if sentences and answer.section is not None:
        sentences[-1] = f"{sentences[-1].removesuffix('.')}; {_told_apart(answer.section)}."
    return sentences


def _is_shorter(row: Speed, chosen: Speed) -> bool:
    """Whether its step measured shorter than the chosen one's, by more than noise."""
    if row.step_ms is None or chosen.step_ms is None:
        return False
    return row.step_ms < chosen.step_ms * (1 - NOISE_FLOOR)


def _faster(answer: Answer, chosen: Speed) -> str:
    instead = ""
    if chosen.baseline_ms is not None:
        instead = f": {fmt.duration_ms(chosen.step_ms)} per step instead of {fmt.duration_ms(chosen.baseline_ms)}"
    by = f"{_ratio(chosen.ratio)} faster than `{chosen.baseline}`{_interval(answer, chosen.ratio)}"
    return f"`{chosen.name}` is {by}{instead}{_WRONG.get(chosen.equivalence, '')}."


def _ratio(ratio: RatioToBaseline | None) -> str:
    return fmt.NOT_MEASURED if ratio is None else fmt.ratio(ratio.value, ratio.low, ratio.high)


def _interval(answer: Answer, ratio: RatioToBaseline | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None or fmt.is_narrow(ratio.low, ratio.high):
        return ""
    return f" ({fmt.setting(answer.confidence)} interval {fmt.ratio_interval(ratio.low, ratio.high)})"


def _unconfirmed(answer: Answer) -> list[str]:
    """The variants that measured apart from their baselines without a verdict, with their step times, and why."""
    apart = answer.unconfirmed
    if not apart:
        return []
    faster = [row for row in apart if _value(row) > 1]
    slower = [row for row in apart if _value(row) <= 1]
    sentences = [*_apart(faster, "faster"), *_apart(slower, "slower")]
    confidence = fmt.setting(answer.confidence)
    excludes = f"their {confidence} intervals exclude" if len(apart) > 1 else f"its {confidence} interval excludes"
    runs = fmt.plural(answer.unconfirmed_runs or 0, "run")
    few = f"{runs} per variant are too few for a verdict"
    if answer.candidates is not None:
        few += f" (correction: {correction_in_words(answer.candidates)})"
    return [*sentences, f"Not certain yet: {excludes} 1, but {few}."]


def _value(row: Speed) -> float:
    return 1.0 if row.ratio is None else row.ratio.value


def _apart(rows: Sequence[Speed], word: str) -> list[str]:
    """The variants that measured faster, or slower, than their baselines."""
    if not rows:
        return []
    names = _speed_names(rows, ratios=True)
    if len(rows) > MOST_NAMED:
        ratios = sorted(map(_value, rows))
        names += f" ({fmt.ratio(ratios[0])} to {fmt.ratio(ratios[-1])})"
    if len({row.baseline for row in rows}) > 1:
        return [f"{names} measured {word} than their baselines."]
    times = sorted(row.step_ms for row in rows if row.step_ms is not None)
    span = " to ".join(dict.fromkeys(map(fmt.duration_ms, (times[0], times[-1]))))
    before = fmt.duration_ms(rows[0].baseline_ms)
    return [f"{names} measured {word} than `{rows[0].baseline}`: {span} per step instead of {before}."]


def _no_verdict(answer: Answer) -> str:
    """Why there is no verdict, with the step times that there are."""
    reason = _NO_VERDICT[answer.no_verdict or "other"].format(baseline=answer.baseline)
    times = answer.times
    if len(times) > MOST_NAMED:
        reason += f"; shortest and longest of {len(times)} step times"
        times = (times[0], times[-1])
    return f"{reason}: {', '.join(f'`{row.name}` {fmt.duration_ms(row.step_ms)}' for row in times)}."


def _clause(rows: Sequence[Speed], words: str, *, ratios: bool = False) -> list[str]:
    """ "`a` and `b` are slower."; if there are many variants, their number instead of their names."""
    if not rows:
        return []
    verb = "is" if len(rows) == 1 else "are"
    return [f"{_speed_names(rows, ratios=ratios)} {verb} {words}."]


def _speed_names(rows: Sequence[Speed], *, ratios: bool = False) -> str:
    """The variants' names; if they are many, their number."""
    if len(rows) > MOST_NAMED:
        return f"{len(rows)} variants"
    shown = (f" ({_ratio(row.ratio)})" if ratios and row.ratio is not None else "" for row in rows)
    return fmt.enumeration([f"`{row.name}`{ratio}" for row, ratio in zip(rows, shown, strict=True)])


def _names(names: Sequence[str]) -> str:
    """Names of variants; if they are many, their number."""
    if len(names) > MOST_NAMED:
        return f"{len(names)} variants"
    return fmt.enumeration([f"`{name}`" for name in names])


def reason_of(answer: Answer) -> str:
    """Why the chosen variant is faster; empty where nothing says it."""
    reason = answer.reason
    if answer.removals and answer.matrix:
        return _WHY_BLOCKED_IS_NO_COST
    if reason is None:
        return ""
    text = why_in_words(reason)
    if text and answer.chosen is None:  # no sentence before it names the variant
        text = f"with `{reason.name}` {text}"
    return text or _saved_gpu_work(reason) or _fewer(reason)


def _saved_gpu_work(reason: WhyFaster) -> str:
    """How much GPU work the variant saves, and by which kernels; empty where that is not the larger part."""
    if reason.gpu_saved_ms is None:
        return ""
    text = f"By the estimate `{reason.name}` has {fmt.band_ms(*reason.gpu_saved_ms)} less GPU work per step"
    kinds = [
        f"{gpu_class.kind} ({fmt.band_ms(*gpu_class.saved_ms)})" for gpu_class in reason.gpu_classes[:_MOST_CLASSES]
    ]
    return f"{text}, most of it in {fmt.enumeration(kinds)}." if kinds else f"{text}."


def _fewer(reason: WhyFaster) -> str:
    """What the variant has fewer of, and whether it limits the baseline; empty if it has fewer of nothing."""
    words = [
        f"{fmt.count(row.now)} {reason.sync_source + ' ' if row.what == 'syncs' else ''}{row.what} per step instead of "
        f"{fmt.count(row.before)}"
        for row in reason.fewer
    ]
    if reason.gpu_work_ms is not None and reason.baseline_gpu_work_ms is not None:
        now, before = fmt.band_ms(*reason.gpu_work_ms), fmt.band_ms(*reason.baseline_gpu_work_ms)
        words.append(f"{now} of GPU work instead of {before}")
    if not words:
        return ""
    text = f"`{reason.name}` has {fmt.enumeration(words)}."
    if reason.limited_by is None:
        return text
    return f"A step of `{reason.baseline}` is limited by {_LIMITS[reason.limited_by]}: {text}"


def checks_of(answer: Answer) -> tuple[str, ...]:
    """Whether all variants compute the same, and broken gates; a sentence each."""
    return tuple(filter(None, (_same(answer.same), _gates(answer.gates_broken))))


def syncs_of(answer: Answer) -> str:
    """The syncs of all variants; empty where the reason, or what is known of a variant, names them."""
    is_named = answer.syncs is None or (answer.known is not None and answer.known.syncs is not None)
    return "" if answer.syncs is None or is_named else _syncs(answer.syncs)


def _syncs(syncs: SyncsOfVariants) -> str:
    source = syncs.source
    counts = syncs.per_step
    if not counts:
        return "Syncs were neither measured nor predicted."
    values = set(counts.values())
    left = f"; of {_names(syncs.not_covered)} not all is covered" if syncs.not_covered else ""
    if len(values) == 1:
        return f"Syncs per step, {source}: {fmt.count(values.pop())} in every variant{left}."
    if len(counts) > 2 * MOST_NAMED:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        counted = f"{fmt.count(counts[least])} (`{least}`) to {fmt.count(counts[most])} (`{most}`)"
    else:
        counted = ", ".join(f"`{name}` {fmt.count(count)}" for name, count in counts.items())
    return f"Syncs per step, {source}: {counted}{left}."


def _same(same: SameAnswer) -> str:
    """Whether the variants compute the same, by the check against the float64 reference."""
    statuses = set(same.by_status)
    if statuses == {"same"}:
        several = len(same.by_status["same"]) > 1
        return "All variants compute the same." if several else "It computes what the reference does."
    if statuses == {"not comparable"} and same.not_comparable is not None:
        return f"Losses and gradients cannot be compared: {not_comparable_text(same.not_comparable)}."
    return " ".join(
        f"{_names(same.by_status[status])}: {word}." for status, word in _NOT_SAME.items() if status in same.by_status
    )


def _gates(broken: int) -> str:
    return f"{fmt.plural(broken, 'gate')} {'is' if broken == 1 else 'are'} broken." if broken else ""


def advice_in_words(advice: Advice) -> tuple[str, ...]:
    """What to do, a sentence each, the most important first; empty if there is no advice."""
    on_gpu = f"{_command(advice, 'scale=gpu')}"
    measure = f"measure on a GPU: {on_gpu}."
    match advice.to_do:
        case "no_advice":
            return ()
        case "use":
            what = (_use(advice.variant), *_lines(advice))
            if not advice.cpu_timings:
                return what
            care = "These are CPU timings: on a GPU another variant may be the fastest."
            return (*what, care, f"Run it there: {on_gpu}.")
        case "keep":
            return (f"Keep {_name(advice.variant)}: no other variant of this study is faster.",)
        case "try_on_gpu":
            note = f"These are CPU timings, where a sync costs nothing, so measure it there: {on_gpu}."
            return (*_try(advice), note)
        case "confirm":
            command = _command(advice, f"scale={advice.scale} repeats={advice.runs}")
            what = (f"Take {advice.runs} runs of each variant: {command} adds those that are missing.",)
            if advice.if_confirmed is None:
                return what
            return (*what, f"If they confirm it, {_use(advice.if_confirmed, verb='use')}")
        case "take_more_runs":
            return (
                (
                    f"Take more runs (`--config repeats={advice.runs}`) on a machine without other work: 4x the runs "
                    "halves the interval."
                ),
            )
        case "use_estimated":
            variant = advice.variant
            changed = variant is not None and variant.baseline is not None
            to_do = _use(variant) if changed else f"Keep {_name(variant)}."
            estimated = f"This is estimated for {fmt.enumeration(list(advice.gpus))}; {measure}"
            return (to_do, *_lines(advice), estimated)
        case "try_estimated":
            return (*_try(advice), *_lines(advice), f"The estimates do not decide, so {measure}")
        case "measure":
            return (f"The estimates do not decide, so {measure}",)


def _command(advice: Advice, config: str) -> str:
    return f"`snakemake --cores all --config 'studies=[{advice.study}]' {config}`"


def _name(variant: ChangedSettings | None) -> str:
    return "" if variant is None else f"`{variant.name}`"


def _try(advice: Advice) -> tuple[str, ...]:
    """Which variant has the fewest syncs, and how to get it."""
    variant = advice.variant
    changes = _changes(variant)
    what = (
        (
            f"On a GPU try {_name(variant)}: {fmt.plural(advice.syncs_now or 0, 'sync')} per step instead of "
            f"{fmt.count(advice.syncs_before)}."
        ),
    )
    if variant is None or not changes:
        return what
    return (*what, f"To get it from `{variant.baseline}`, {changes}.")


def _use(variant: ChangedSettings | None, *, verb: str = "Use") -> str:
    """The variant to use, and what it changes, in one sentence, which is the first one that a reader sees."""
    changes = _changes(variant)
    if variant is None or variant.baseline is None or not changes:
        return f"{verb} {_name(variant)}."
    return f"{verb} `{variant.name}` instead of `{variant.baseline}`: {changes}."


def _changes(variant: ChangedSettings | None) -> str:
    """What to change in the baseline to get a variant."""
    if variant is None:
        return ""
    words = [f"set {_codes(variant.set)}"] if variant.set else []
    words += [f"remove {_codes(variant.remove)}"] if variant.remove else []
    return " and ".join(words)


def _codes(texts: Iterable[str]) -> str:
    return fmt.enumeration([f"`{text}`" for text in texts])


def _lines(advice: Advice) -> list[str]:
    """The lines at which the variant no longer syncs, or launches less, and what that saves; empty without any."""
    sentences = _lines_of_launches(advice.lines_of_launches)
    if gone := fmt.lines_of((row.file, row.line) for row in advice.lines_without_sync):
        sentences.append(f"No sync is left at {fmt.enumeration(gone)}.")
    if advice.waits_ms is not None and advice.waits_gpu is not None and advice.variant is not None:
        cost = most_waiting_in_words(advice.waits_ms, advice.waits_gpu)
        sentences.append(f"All syncs of `{advice.variant.baseline}` together cost {cost}.")
    return sentences


def _lines_of_launches(lines: Sequence[LineOfLaunches]) -> list[str]:
    """The lines at which most launches are saved, each with its counts and the host's time."""
    words = []
    for row in lines:
        counts = f"{fmt.count(row.now)} launches per step instead of {fmt.count(row.before)}"
        words.append(f"`{fmt.place(row.file, row.line)}` ({counts}, {fmt.band_ms(*row.saved_ms)} less for the host)")
    if not words:
        return []
    what = "line that saves most launches is" if len(words) == 1 else f"{len(words)} lines that save most launches are"
    return [f"The {what} {fmt.enumeration(words)}."]
