"""The section "Memory" of a study's page: peaks and what held them, what ran out, and the batch that should fit."""

from math import ceil
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, MemoryFit, VariantResult
from steptrace.documents.run import RunMemory
from steptrace.limits import MOST_RESIDUAL
from steptrace.report.draw.memory import CATEGORIES, category_bars, fit_chart, memory_curve
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import variants_shown

#: More curves than this start folded.
_MANY: Final = 4
#: A host's memory of which less is used is no matter.
_SMALL_PART = 0.05


def memory(study: Comparison) -> Html | None:
    """Table, bars and curves of every variant's memory, and how those that ran out did so; None without any."""
    variants = [v for v in study.variants if v.device_memory is not None or (v.memory is not None and v.memory.oom)]
    if not variants or all(map(_says_nothing, variants)):
        return None
    measured = [(v.name, v.device_memory) for v in variants if v.device_memory is not None]
    fits = study.memory_fit
    drawn = {variant.name for variant in variants_shown(study)}
    curves = [(v.name, _curve(v)) for v in variants if v.name in drawn]
    bars = category_bars([(name, entry.by_category) for name, entry in measured], "Bytes at the peak by category.")
    on_cpu = any(entry.device_type == "cpu" for _, entry in measured)
    return render(
        "study/memory",
        variants=variants,
        on_cpu=on_cpu,
        incomplete=[name for name, entry in measured if not entry.complete],
        ran_out=[_ran_out(study, v, v.memory) for v in variants if v.memory is not None and v.memory.oom is not None],
        names={name: word for name, (word, _) in CATEGORIES.items()},
        bars=bars,
        curves=[(name, curve) for name, curve in curves if curve is not None],
        many=len(curves) > _MANY,
        fits=[_fit(fit) for fit in fits],
    )


def _curve(variant: VariantResult) -> InlineSvg | None:
    """The step that holds the peak, or the window if no step does."""
    entry = variant.device_memory
    if entry is None or variant.trace is None:
        return None
    spans = [(step.start_ns, step.start_ns + step.dur_ns) for step in variant.trace.steps]
    step = next((span for span in spans if span[0] <= entry.peak_ts < span[1]), None)
    return memory_curve(entry, f"Memory of {variant.name}", step)


def _says_nothing(variant: VariantResult) -> bool:
    """Whether a small part of a host's memory was used: no choice between variants depends on it."""
    entry, record = variant.device_memory, variant.memory
    if entry is None or entry.device_type != "cpu" or (record is not None and record.oom is not None):
        return False
    return entry.capacity_bytes is not None and entry.peak_allocated_bytes < _SMALL_PART * entry.capacity_bytes


def _ran_out(study: Comparison, variant: VariantResult, memory: RunMemory) -> dict[str, Any]:
    """One variant that ran out of memory: what happened in a sentence, and what to do."""
    fit = next((fit for fit in study.memory_fit if variant.name in fit.variants), None)
    return {"name": variant.name, "sentence": _sentence(variant, memory), "advice": _advice(memory.batch_size, fit)}


def _sentence(variant: VariantResult, memory: RunMemory) -> str:
    """ "Run 0 (1 of 3) ran out of memory at a batch of 64: it asked for 64 MiB with ..." """
    repeats, oom = [run.repeat for run in variant.runs if run.status == "oom"], memory.oom
    who = f"{'Run' if len(repeats) == 1 else 'Runs'} {fmt.enumeration([str(repeat) for repeat in repeats])}"
    who += f" ({len(repeats)} of {len(variant.runs)})"
    requested, used = (None, None) if oom is None else (oom.requested_bytes, oom.used_bytes)
    asked = "asked for more" if requested is None else f"asked for {fmt.size_bytes(requested)}"
    # What the failing operators held for the moment is gone when the error is caught.
    room = fmt.size_bytes(memory.capacity_bytes)
    taken = "" if used is None else f"; {fmt.size_bytes(used)} of {room} were taken after it"
    return f"{who} ran out of memory at a batch of {fmt.count(memory.batch_size)}: it {asked}{taken}."


def _advice(batch: int, fit: MemoryFit | None) -> list[str]:
    """What to try, the surest first."""
    largest = None if fit is None else fit.largest_batch
    if fit is not None and largest and largest < batch:
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
        bent = (residual or 0) > MOST_RESIDUAL or fit.per_sample_bytes <= 0
        outcome = "the capacity is unknown"
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
