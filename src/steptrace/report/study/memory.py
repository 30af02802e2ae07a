"""The section "Memory" of a study's page: peaks and what held them, what ran out, and the batch that should fit."""

from math import ceil
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, MemoryFit, MemoryOfVariant
from steptrace.documents.comparison.window import OutOfMemoryOfVariant
from steptrace.report.draw.memory import CATEGORIES, category_bars, fit_chart, memory_curve
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import variants_shown

#: More curves than this start folded.
_MANY: Final = 4
#: With a larger residual there is no prediction; `compare.memory` judges by the same figure.
_MOST_RESIDUAL: Final = 0.10


#: A host's memory of which less is used is no matter.
_SMALL_PART = 0.05


def memory(study: Comparison) -> Html | None:
    """Table, bars and curves of every variant's memory, and how those that ran out did so; None without any."""
    variants = [(item.name, item.memory) for item in study.variants if item.memory is not None]
    if not variants or all(_says_nothing(found) for _, found in variants):
        return None
    measured = [(name, found) for name, found in variants if found.peak_allocated_bytes is not None]
    fits = study.memory_fit
    drawn = {variant.name for variant in variants_shown(study)}
    curves = [(name, memory_curve(found, f"Memory of {name}")) for name, found in measured if name in drawn]
    bars = category_bars([(name, found.by_category) for name, found in measured], "Bytes at the peak by category.")
    on_cpu = any(found.device_type == "cpu" for _, found in variants)
    return render(
        "study/memory",
        variants=variants,
        on_cpu=on_cpu,
        incomplete=[name for name, found in measured if not found.complete],
        ran_out=[_ran_out(study, name, found, found.oom) for name, found in variants if found.oom is not None],
        names={name: word for name, (word, _) in CATEGORIES.items()},
        bars=bars,
        curves=[(name, curve) for name, curve in curves if curve is not None],
        many=len(curves) > _MANY,
        fits=[_fit(fit) for fit in fits],
    )


def _says_nothing(found: MemoryOfVariant) -> bool:
    """Whether a small part of a host's memory was used: no choice between variants depends on it."""
    peak, capacity = found.peak_allocated_bytes, found.capacity_bytes
    small = peak is not None and capacity is not None and peak < _SMALL_PART * capacity
    return found.device_type == "cpu" and found.oom is None and small


def _ran_out(study: Comparison, name: str, found: MemoryOfVariant, oom: OutOfMemoryOfVariant) -> dict[str, Any]:
    """One variant that ran out of memory: what happened in a sentence, and what to do."""
    fit = next((fit for fit in study.memory_fit if name in fit.variants), None)
    return {
        "name": name,
        "sentence": _sentence(found, oom),
        "advice": _advice(found.batch_size, fit),
    }


def _sentence(found: MemoryOfVariant, oom: OutOfMemoryOfVariant) -> str:
    """ "Run 0 (1 of 3) ran out of memory at a batch of 64: it asked for 64 MiB with ..." """
    runs = fmt.enumeration([str(repeat) for repeat in oom.runs])
    who = f"{'Run' if len(oom.runs) == 1 else 'Runs'} {runs} ({len(oom.runs)} of {oom.of})"
    asked = "asked for more" if oom.requested_bytes is None else f"asked for {fmt.size_bytes(oom.requested_bytes)}"
    room = "" if found.capacity_bytes is None else f" of {fmt.size_bytes(found.capacity_bytes)}"
    # What the failing operators held for the moment is gone when the error is caught.
    taken = "" if oom.used_bytes is None else f"; {fmt.size_bytes(oom.used_bytes)}{room} were taken after it"
    batch = "" if found.batch_size is None else f" at a batch of {fmt.count(found.batch_size)}"
    return f"{who} ran out of memory{batch}: it {asked}{taken}."


def _advice(batch: int | None, fit: MemoryFit | None) -> list[str]:
    """What to try, the surest first."""
    largest = None if fit is None else fit.largest_batch
    if fit is not None and largest and batch is not None and largest < batch:
        parts = ceil(batch / largest)
        part = ceil(batch / parts)
        sizes = fmt.enumeration([fmt.count(size) for size, _ in fit.peaks])
        smaller = (
            f"A smaller batch: {fmt.count(largest)} should fit, by the line through the peaks at batches of {sizes}."
        )
        accumulated = (
            f"Gradient accumulation: `step.accumulate={parts}` with `data.batch_size={part}` makes steps of "
            f"{fmt.count(parts * part)} samples with the memory of the smaller batch."
        )
    else:
        smaller = "A smaller batch: `data.batch_size=N`."
        accumulated = "Gradient accumulation (`step.accumulate=K`): K smaller batches go into each optimizer step."
    checkpointing = (
        "Activation checkpointing (`torch.utils.checkpoint`; in the study `memory`, `model.checkpointed=true`): keeps "
        "fewer activations and computes them again, for about a third more work."
    )
    narrow = "A 16-bit format (`precision=bf16`), unless it is in use: about half the activations."
    return [smaller, accumulated, checkpointing, narrow]


def _fit(fit: MemoryFit) -> dict[str, Any]:
    """A line with its chart and the sentence on what it predicts."""
    fixed = fit.fixed_bytes
    line = f"peak = {fmt.size_bytes(fit.per_sample_bytes)} × batch {'-+'[fixed >= 0]} {fmt.size_bytes(abs(fixed))}"
    residual = fit.residual
    trust = "two sizes, so no residual" if residual is None else f"residual {fmt.share(residual)}"
    if fit.largest_batch is None:
        bent = (residual or 0) > _MOST_RESIDUAL or fit.per_sample_bytes <= 0
        outcome = "the capacity is not known"
        if bent:
            outcome = "peak memory is not linear in batch size, so there is no prediction"
    else:
        holds = (
            f"should hold a batch of {fmt.count(fit.largest_batch)}" if fit.largest_batch else "hold no batch at all"
        )
        outcome = f"{fmt.size_bytes(fit.capacity_bytes)} {holds}"
        if fit.failed_batch is not None:
            outcome += f"; {fmt.count(fit.failed_batch)} ran out of memory"
    return {"chart": fit_chart(fit), "sentence": f"{line} ({trust}): {outcome}."}
