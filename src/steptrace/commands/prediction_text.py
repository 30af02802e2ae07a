"""What is said of a prediction: its syncs and their places, kinds of steps, and estimates on named GPUs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.commands.console import columns
from steptrace.documents.estimate import COMPILED, Estimate
from steptrace.documents.prediction import (
    FollowedWork,
    PredictedPlace,
    PredictedStep,
    PredictedSync,
    predicted_in_words,
)
from steptrace.documents.syncs import PredictedBranch, place_of
from steptrace.engine.kinds import counts_in_words, groups_by_count, to_show_period
from steptrace.estimate.gpus import Gpu
from steptrace.periods import are_regular

#: A warm-up step with so many times the syncs of the others does something else.
_MANY_TIMES: Final = 10
_HEAD: Final = (
    "GPU", "batch", "step", "samples/s", "GPU work", "GPU busy", "MFU", "limited by", "launches", "memory",
    "largest batch", "tested",
)  # fmt: skip
#: Classes of kernels that are listed, those with most of the GPU's work.
_CLASSES: Final = 8
_NONE: Final = "-"
#: So many operators without a rule are listed.
_LISTED: Final = 5


def text_of(
    name: str, prediction: PredictedStep, of_gpus: Sequence[Estimate] = (), more_steps: str = "--steps"
) -> list[str]:
    """The lines that say what was predicted, with its estimates.

    `more_steps` comes before the number of steps that would show more.
    """
    batch, steps, by_site = prediction.batch_size, prediction.by_step, prediction.sites_by_step
    head = f"{name}: {predicted_in_words(prediction)} predicted"
    of_steps = f" (mean of {len(steps)} steps)" if len(set(steps)) > 1 and are_regular(by_site) else ""
    lines = [head + (f" (batch of {batch})" if batch is not None else of_steps)]
    lines += kind_lines(steps, prediction.warmup_by_step, more_steps, prediction.branches, by_site=by_site)
    if prediction.sites:
        rows = [
            (s.site.how_often, s.kind, s.op, s.phase, s.label or "-", _place(s), s.code or "")
            for s in _most_first(prediction.sites)
        ]
        lines += columns(("count", "kind", "operator", "phase", "label", "line", "code"), rows)
    if prediction.unknown:
        lines.append("  not covered, so there may be more:")
        lines += [_listed(place) for place in prediction.unknown]
    if prediction.early_reads:
        lines.append("  read before the copy to the host is known to be over, so the value may be wrong:")
        lines += [_listed(place) for place in prediction.early_reads]
        lines.append("    record an event behind the copy, and wait for it before the value is read")
    if prediction.assumed:
        lines.append("  assumed, not computed: counts after these lines may differ:")
        lines += [_listed(place) for place in prediction.assumed]
    ranks = prediction.by_rank
    if len(set(ranks)) > 1:
        lines.append(f"  of rank 0; syncs of all ranks: {', '.join(map(fmt.count, ranks))}")
    sections = ", ".join(
        f"{fmt.count(count)} in {label}" for label, count in prediction.operators_per_step_by_label.items()
    )
    lines.append(
        f"  operators per step: {fmt.count(prediction.operators_per_step)}"
        + (f", of these {sections}" if sections else "")
    )
    if len({one.gpu for one in of_gpus}) > 1 and (gpu := prediction.gpu) is not None:
        lines.append(f"  the program was told that its GPU is the first of these, {gpu}")
    return lines + (table(of_gpus, ranks=len(ranks)) if of_gpus else [])


def _listed(place: PredictedPlace) -> str:
    """The line of a place that may sync, or where a value was assumed."""
    return f"    {place.op} at {_place(place)} ({place.site.how_often_in_words}): {place.reason}"


def kind_lines(
    steps: Sequence[int],
    warmup: Sequence[int],
    more_steps: str = "--steps",
    branches: Sequence[PredictedBranch] = (),
    *,
    by_site: Sequence[Sequence[int]] = (),
) -> list[str]:
    """Which steps make how many syncs where they differ, what the warm-up showed alone, and how to see more."""
    if not steps:
        return []
    words, more = counts_in_words(steps, by_site), to_show_period(len(warmup) + len(steps))
    lines = [f"  {words}"] if words else []
    comes_round = any(branch.every <= len(steps) for branch in branches)
    if words and min(map(len, groups_by_count(steps))) == 1 and not comes_round:
        often = f"{more_steps} {to_show_period(len(steps))} shows how often it comes"
        lines.append(f"  only one such step was seen: {often}")
    if warmup and max(warmup) > _MANY_TIMES * max(1, *steps):  # else it is what a start costs
        often = f"{more_steps} {more} shows whether that comes back"
        lines.append(f"  a warm-up step makes {fmt.plural(max(warmup), 'sync')}: {often}")
    if not lines:
        seen = f"as many in each of {len(steps)} steps" if len(steps) > 1 else "one step was followed"
        lines.append(f"  {seen}; {more_steps} {more} shows what comes less often")
    for branch in branches:
        whole = f": {more_steps} {branch.every} follows all of it" if branch.every > len(steps) else ""
        lines.append(f"  {branch.place} does something else every {branch.every} steps{whole}")
    return lines


def _most_first(sites: Sequence[PredictedSync]) -> list[PredictedSync]:
    """The sites by line, the line with most syncs first, else as the step comes to them."""
    by_line: dict[str, float] = defaultdict(float)
    for site in sites:
        by_line[_place(site)] += site.count_per_step
    ranked = sorted(by_line, key=lambda line: -by_line[line])
    return sorted(sites, key=lambda site: ranked.index(_place(site)))


def instead(sites: Sequence[PredictedSync]) -> list[str]:
    """What usually replaces the operations at some sites, with the lines that it is for."""
    if not sites:
        return []
    # Imports pandas and pyarrow, which takes a second that `--help` has no use for.
    from steptrace.findings.replacements import by_replacement

    groups = by_replacement(site.site for site in _most_first(sites))
    lines = [f"    {', '.join(dict.fromkeys(map(place_of, of)))}: {advice}" for advice, of in groups.items()]
    return ["  instead:", *lines] if lines else []


def _place(place: PredictedPlace) -> str:
    if place.file is None:
        return "no line of the program"
    line = f"{place.file}:{place.line}"
    return line if place.program_file is None else f"{place.program_file}:{place.program_line} (in {line})"


def estimates(predictions: Mapping[int | None, PredictedStep], gpus: Sequence[Gpu]) -> list[Estimate]:
    """The estimate of each batch on each GPU; `predictions` by batch, None where it is not known."""
    from steptrace.estimate.step import estimate_prediction  # imports numpy, as `--help` need not

    peaks = _peaks(predictions)
    return [
        estimate_prediction(replace(prediction, batch_size=batch), gpu, peaks=peaks)
        for gpu in gpus
        for batch, prediction in predictions.items()
    ]


def estimates_of_study(
    by_variant: Mapping[str, Mapping[int | None, PredictedStep]], baseline: str, gpus: Sequence[Gpu]
) -> dict[str, list[Estimate]]:
    """The same of the variants of a study, each compared with the baseline at the same batch."""
    from steptrace.estimate.step import estimate_variants, followed_step

    found: dict[str, list[Estimate]] = {name: [] for name in by_variant}
    batches = list(dict.fromkeys(batch for predictions in by_variant.values() for batch in predictions))
    for gpu in gpus:
        for batch in batches:
            followed = {
                name: followed_step(replace(predictions[batch], batch_size=batch))
                for name, predictions in by_variant.items()
                if batch in predictions
            }
            peaks = {name: _peaks(by_variant[name]) for name in followed}
            for name, one in estimate_variants(followed, dict.fromkeys(followed, baseline), gpu, peaks=peaks).items():
                found[name].append(one)
    return found


def _peaks(predictions: Mapping[int | None, PredictedStep]) -> dict[int, int]:
    """Peak memory by batch, where both are known."""
    return {
        batch: prediction.peak_memory_bytes
        for batch, prediction in predictions.items()
        if batch is not None and prediction.peak_memory_bytes is not None
    }


def as_json(prediction: PredictedStep, of_gpus: Sequence[Estimate] | None) -> dict[str, Any]:
    """A prediction for `--json`: prediction.json without what estimates are made from, with those asked for."""
    without = replace(prediction, followed=FollowedWork(steps=prediction.followed.steps, operator_calls=(), queue=()))
    document: dict[str, Any] = msgspec.to_builtins(without)
    del document["followed"]
    return document if of_gpus is None else {**document, "estimate": msgspec.to_builtins(of_gpus)}


def table(listed: Sequence[Estimate], *, ranks: int = 1) -> list[str]:
    """The lines of the table, and under it why a row has no figure and what no rule covers; `ranks` of the program."""
    lines = ["  estimated, not measured:", *columns(_HEAD, [_row(one) for one in listed])]
    lines += [f"    {_name(one)}: not estimated: {one.reason}" for one in listed if one.reason is not None]
    if ranks > 1:
        lines.append(f"    one of {ranks} GPUs, as NCCL connects those of one machine")
    for one in listed:
        lines += _compared(one)
    for one in listed[:1]:
        lines += _work(one)
        missing = [call for call in one.not_estimated if call.name != COMPILED]
        for call in missing[:_LISTED]:
            place = "" if call.file is None else f", {call.file}:{call.line}"
            share = f"{fmt.count(call.calls)}x per step, {fmt.percent(call.share_pct)} of the GPU work"
            lines.append(f"    not covered: {call.name}, {share}{place}: {call.reason}")
        if len(missing) > _LISTED:
            lines.append(f"    and {len(missing) - _LISTED} more in --json")
        if one.assumed:
            share = f"{fmt.percent(sum(copy.share_pct for copy in one.assumed))} of the GPU work"
            lines.append(f"    assumed: copies with the host, {share}, {one.assumed[0].reason}")
    return lines


def _row(one: Estimate) -> tuple[str, ...]:
    # Imports numpy, which `--help` need not.
    from steptrace.findings.estimated import busy_words, memory_words, rate_words, step_words

    return (
        one.gpu,
        _NONE if one.batch is None else str(one.batch),
        step_words(one),
        _NONE if one.samples_per_s is None else rate_words(one.samples_per_s),
        _NONE if one.gpu_ms is None else fmt.band_ms(*one.gpu_ms),
        busy_words(one),
        _NONE if one.mfu_pct is None else fmt.band_percent(*one.mfu_pct),
        one.limited_by or _NONE,
        _NONE if one.launches is None else fmt.count(one.launches),
        memory_words(one),
        _NONE if one.largest_batch is None else str(one.largest_batch),
        _NONE if one.tested_pct is None else f"{fmt.percent(one.tested_pct)}",
    )


def _compared(one: Estimate) -> list[str]:
    """What a step saves against its study's baseline, and what it waits for other GPUs."""
    from steptrace.findings.estimated import difference_words

    lines = []
    if one.difference is not None:
        lines.append(f"    {_name(one)}, against {one.difference.baseline}: {difference_words(one)}")
    if one.exposed_ms is not None and one.communication_ms is not None and one.communication_bytes:
        sent = f"{fmt.size_bytes(one.communication_bytes)} in {fmt.band_ms(*one.communication_ms)}"
        waits = f"kernels wait {fmt.band_ms(*one.exposed_ms)} for it"
        lines.append(f"    {_name(one)}: {one.devices} GPUs, collectives of {sent} per step; {waits}")
    return lines


def _work(one: Estimate) -> list[str]:
    """What each class of kernels does, of the classes with most of the GPU's work."""
    from steptrace.findings.estimated import tested_words

    shown = [work for work in one.work if work.share_pct >= 1][:_CLASSES]
    if not shown:
        return []
    head = ("share", "class", "format", "TFLOP", "GB", "launches", "held to measurements")
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
    return [f"    GPU work by class on {one.gpu}, per step:", *(f"  {row}" for row in columns(head, rows))]


def _name(one: Estimate) -> str:
    return one.gpu if one.batch is None else f"{one.gpu}, batch {one.batch}"
