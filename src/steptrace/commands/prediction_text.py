"""The text on a prediction: its syncs and their places, kinds of steps, and estimates for named GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from steptrace import format as fmt
from steptrace.advice.compiled import against_recompilation, instead_of_break
from steptrace.advice.replacements import by_replacement, replacement
from steptrace.documents.estimate import COMPILED, Estimate, NotEstimated
from steptrace.documents.prediction import PredictedStep, PredictedSync
from steptrace.documents.syncs import PredictedBranch, place_of
from steptrace.engine.kinds import groups_by_count, step_groups, to_show_period
from steptrace.words.compiled import compiled_estimate_lines, compiled_lines
from steptrace.words.estimate import (
    busy_words,
    memory_words,
    rate_words,
    reason_words,
    saved_words,
    step_words,
    tested_words,
    uncovered_words,
)
from steptrace.words.prediction import awaited_in_words, most_first, places_in_words, predicted_in_words
from steptrace.words.syncs import step_groups_in_words

#: A warm-up step with this many times the syncs of the other steps counts as a different kind of step.
_MANY_TIMES: Final = 10
#: Nobody is advised to follow more steps than this.
_MOST_ADVISED: Final = 1000
_HEAD: Final = (
    "GPU", "batch", "step", "samples/s", "GPU work", "GPU busy", "MFU", "limited by", "launches", "memory",
    "largest batch", "tested",
)  # fmt: skip
#: The most classes of kernels that are listed, those with most of the GPU's work.
_CLASSES: Final = 8
_NONE: Final = "-"
#: The most operators without a rule that are listed.
_LISTED: Final = 5


def text_of(
    name: str,
    prediction: PredictedStep,
    estimates: Sequence[Estimate] = (),
    more_steps: str | None = "--steps",
    most: int | None = None,
    advice: Sequence[str] = (),
) -> list[str]:
    """The lines that say what was predicted, what to do about it, and last its estimates.

    Args:
        name: of the program or the variant.
        prediction: what was predicted.
        estimates: its estimates.
        more_steps: the option, or the command with it, that a line names with the number of steps that would show
            more. None for a study's variant: its study says how many steps are followed, and `study_lines` has the
            figures of its estimates.
        most: the most places of syncs that are listed; None: all.
        advice: lines on what to do about the syncs.
    """
    batch = prediction.batch_size
    steps = prediction.by_step
    notes = [] if batch is None else [f"batch of {batch}"]
    lines = [f"{name}: {predicted_in_words(prediction, ' predicted', notes)}"]
    lines += kind_lines(
        steps, prediction.warmup_by_step, more_steps, prediction.branches, by_site=prediction.sites_by_step
    )
    lines += [f"  {awaited_in_words(branch, len(steps))}" for branch in prediction.awaited]
    lines += places_in_words(prediction, most)
    if prediction.followed.compiled is not None:
        lines += compiled_lines(prediction.followed.compiled, instead_of_break, against_recompilation)
    ranks = prediction.by_rank
    if len(set(ranks)) > 1:
        lines.append(f"  of rank 0; syncs of all ranks: {', '.join(map(fmt.count, ranks))}")
    # The operators of each label are in the answer of --json only: in a line they would be a dozen figures.
    lines.append(f"  operators per step: {fmt.count(prediction.operators_per_step)}")
    lines += advice
    if not estimates:
        return lines
    if more_steps is None:
        return lines + beside_figures(estimates, ranks=len(ranks))
    return [*lines, *_told_lines(prediction, estimates), *table(estimates, ranks=len(ranks))]


def _told_lines(prediction: PredictedStep, estimates: Sequence[Estimate]) -> list[str]:
    """The line that says as which of several GPUs the virtual device posed; none if there is a single GPU."""
    if len({estimate.gpu for estimate in estimates}) < 2 or prediction.gpu is None:
        return []
    return [f"  the program was told that its GPU is the first of these, {prediction.gpu}"]


def study_lines(
    study: str, variants: Mapping[str, tuple[PredictedStep, Sequence[Estimate]]], baseline: str | None = None
) -> list[str]:
    """The lines that a study's prediction begins with: a sentence, and a table of all variants.

    Args:
        study: its name.
        variants: the prediction and the estimates of each variant, by the variant's name as a reader sees it.
        baseline: the name of the variant that the estimates of the others are compared with.
    """
    syncs = [prediction.syncs_per_step for prediction, _ in variants.values()]
    low = fmt.count(min(syncs))
    high = fmt.plural(max(syncs), "sync")
    between = high if min(syncs) == max(syncs) else f"{low} to {high}"
    lines = [f"{study}: {fmt.plural(len(variants), 'variant')}, {between} per step predicted"]
    if not any(estimates for _, estimates in variants.values()):
        counts = [
            (name, fmt.count(prediction.syncs_per_step), fmt.count(prediction.operators_per_step))
            for name, (prediction, _) in variants.items()
        ]
        return [*lines, *fmt.columns(("variant", "syncs per step", "operators per step"), counts)]
    head = ("variant", "syncs per step", *_HEAD[:3], f"saves against {baseline}", *_HEAD[4:6], *_HEAD[7:])
    rows: list[tuple[str, ...]] = []
    for name, (prediction, estimates) in variants.items():
        for number, estimate in enumerate(estimates):
            # Only the first row of a variant has its name and its syncs.
            first_cells = (name, fmt.count(prediction.syncs_per_step)) if number == 0 else ("", "")
            gpu, batch, step, _, work, busy, _, *rest = _row(estimate)
            rows.append((*first_cells, gpu, batch, step, _saved(estimate), work, busy, *rest))
    first_prediction, first_estimates = next(iter(variants.values()))
    return [
        *lines,
        *_told_lines(first_prediction, first_estimates),
        "  estimated, not measured:",
        *_with_figures(head, rows),
    ]


def _saved(estimate: Estimate) -> str:
    return _NONE if estimate.difference is None else saved_words(estimate.difference)


def kind_lines(
    steps: Sequence[int],
    warmup: Sequence[int],
    more_steps: str | None = "--steps",
    branches: Sequence[PredictedBranch] = (),
    *,
    by_site: Sequence[Sequence[int]] = (),
) -> list[str]:
    """Lines on steps with different numbers of syncs, on steps seen in the warm-up only, and on how to see more."""
    if not steps:
        return []

    def to_see_more(number: int, what: str, before: str = ": ") -> str:
        return "" if more_steps is None else f"{before}{more_steps} {number} {what}"

    groups, often = step_groups(steps, by_site)
    words = step_groups_in_words(map(asdict, groups), often)
    more = to_show_period(len(warmup) + len(steps))
    lines = [f"  {words}"] if words else []
    comes_round = any(branch.every <= len(steps) for branch in branches)
    if words and min(map(len, groups_by_count(steps))) == 1 and not comes_round:
        lines.append(
            "  only one such step was seen" + to_see_more(to_show_period(len(steps)), "shows how often it comes")
        )
    if warmup and max(warmup) > _MANY_TIMES * max(1, *steps):  # fewer syncs are the cost of a start
        makes = f"{fmt.plural(max(warmup), 'sync')}" + to_see_more(more, "shows whether that comes back")
        # Before the first step a program sets up, which cannot always be told from the step.
        lines.append(
            f"  the first step, with the set-up before it, makes {makes}"
            if max(warmup) == warmup[0]
            else f"  a warm-up step makes {makes}"
        )
    if not lines:
        seen = f"as many in each of {len(steps)} steps" if len(steps) > 1 else "one step was followed"
        lines.append(f"  {seen}" + to_see_more(more, "shows what comes less often", before="; "))
    for branch in branches:
        whole = ""
        if branch.every > _MOST_ADVISED:
            whole = f", which {fmt.plural(len(steps), 'followed step')} may not show"
        elif branch.every > len(steps):
            whole = to_see_more(branch.every, "follows all of it")
        lines.append(f"  {branch.place} does something else every {fmt.count(branch.every)} steps{whole}")
    return lines


def instead(sites: Sequence[PredictedSync]) -> list[str]:
    """Lines on what usually replaces the operations at some sites, each with the places that it applies to."""
    if not sites:
        return []
    groups = by_replacement(site.site for site in most_first(sites))
    lines = [
        f"    {', '.join(dict.fromkeys(map(place_of, places)))}: {' '.join(replacement(places[0]) or ())}"
        for places in groups
    ]
    return ["  instead:", *lines] if lines else []


def table(estimates: Sequence[Estimate], *, ranks: int = 1) -> list[str]:
    """The lines of the table of estimates; below it why a row has no figure, and which operators no rule covers."""
    rows = [_row(estimate) for estimate in estimates if _has_figures(estimate)]
    lines = ["  estimated, not measured:", *_with_figures(_HEAD, rows)]
    return [*lines, *beside_figures(estimates, ranks=ranks), *_work(estimates[0])]


def beside_figures(estimates: Sequence[Estimate], *, ranks: int = 1) -> list[str]:
    """The lines below a table's figures: why a row has none, what compiling changes, and what no rule covers."""
    lines = [
        f"    {_name(estimate)}: not estimated: {reason_words(estimate)}"
        for estimate in estimates
        if estimate.step_ms is None
    ]
    if ranks > 1:
        lines.append(f"    one of {ranks} GPUs, as NCCL connects those of one machine")
    for estimate in estimates:
        lines += [*_communication(estimate), *compiled_estimate_lines(_name(estimate), estimate)]
    for estimate in estimates[:1]:
        missing = [call for call in estimate.not_estimated if call.name != COMPILED]
        for call in missing[:_LISTED]:
            place = "" if call.file is None else f", {call.file}:{call.line}"
            share = f"{fmt.count(call.calls)}x per step, {fmt.percent(call.share_pct)} of the GPU work"
            lines.append(f"    not covered: {call.name}, {share}{place}: {uncovered_words(call)}")
        if len(missing) > _LISTED:
            lines.append(f"    and {len(missing) - _LISTED} more in --json")
        lines += assumed_lines(estimate)
    return lines


def assumed_lines(estimate: Estimate) -> list[str]:
    """A line for each assumption of an estimate: the operators that it is about, and their share of the GPU work."""
    same: dict[tuple[Any, ...], list[NotEstimated]] = {}
    for call in estimate.assumed:
        same.setdefault((call.code, call.arithmetic_pct, call.bandwidth_pct), []).append(call)
    lines = []
    for calls in same.values():
        share = fmt.percent(sum(call.share_pct for call in calls))
        names = list(dict.fromkeys(call.name.removesuffix(".default") for call in calls))
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        lines.append(
            f"    assumed: {', '.join(names[:_LISTED])}{more}, {share} of the GPU work, {uncovered_words(calls[0])}"
        )
    return lines


def _has_figures(estimate: Estimate) -> bool:
    """Whether an estimate has a figure besides the GPU and the batch; if not, a line below the table says why."""
    figures = (
        estimate.step_ms,
        estimate.samples_per_s,
        estimate.gpu_ms,
        estimate.gpu_busy_pct,
        estimate.mfu_pct,
        estimate.limited_by,
        estimate.launches,
        estimate.peak_memory_bytes,
        estimate.largest_batch,
        estimate.tested_pct,
    )
    return any(figure is not None for figure in figures)


def _with_figures(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without its empty columns; none without rows."""
    if not rows:
        return []
    kept = [column for column in range(len(head)) if any(row[column] != _NONE for row in rows)]
    return fmt.columns([head[column] for column in kept], [[row[column] for column in kept] for row in rows])


def _row(estimate: Estimate) -> tuple[str, ...]:
    return (
        estimate.gpu,
        _NONE if estimate.batch is None else str(estimate.batch),
        step_words(estimate),
        _NONE if estimate.samples_per_s is None else rate_words(estimate.samples_per_s),
        _NONE if estimate.gpu_ms is None else fmt.band_ms(*estimate.gpu_ms),
        busy_words(estimate),
        _NONE if estimate.mfu_pct is None else fmt.band_percent(*estimate.mfu_pct),
        estimate.limited_by or _NONE,
        _NONE if estimate.launches is None else fmt.count(estimate.launches),
        memory_words(estimate),
        _NONE if estimate.largest_batch is None else str(estimate.largest_batch),
        _NONE if estimate.tested_pct is None else f"{fmt.percent(estimate.tested_pct)}",
    )


def _communication(estimate: Estimate) -> list[str]:
    """The line on a step's waiting for other GPUs; none without them."""
    if estimate.exposed_ms is None or estimate.communication_ms is None or not estimate.communication_bytes:
        return []
    sent = f"{fmt.size_bytes(estimate.communication_bytes)} in {fmt.band_ms(*estimate.communication_ms)}"
    waits = f"kernels wait {fmt.band_ms(*estimate.exposed_ms)} for it"
    return [f"    {_name(estimate)}: {estimate.devices} GPUs, collectives of {sent} per step; {waits}"]


def _work(estimate: Estimate) -> list[str]:
    """The lines on the classes of kernels with most of the GPU's work."""
    shown = [work for work in estimate.work if work.share_pct >= 1][:_CLASSES]
    if not shown:
        return []
    head = ("share", "class", "format", "TFLOP", "GB", "launches", "tested")
    rows = [
        (
            fmt.percent(work.share_pct),
            work.kind,
            _NONE if work.format == "none" else f"{work.format} bit" if work.format.isdigit() else work.format.upper(),
            fmt.significant(work.flop / 1e12) if work.flop else _NONE,
            fmt.significant(work.bytes / 1e9),
            fmt.count(work.launches),
            tested_words(work),
        )
        for work in shown
    ]
    return [f"    GPU work by class on {estimate.gpu}, per step:", *(f"  {row}" for row in _with_figures(head, rows))]


def _name(estimate: Estimate) -> str:
    return estimate.gpu if estimate.batch is None else f"{estimate.gpu}, batch {estimate.batch}"
