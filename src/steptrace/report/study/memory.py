"""The section "Memory" of a study's page: peaks and what held them, and what ran out."""

from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.run import RunMemory
from steptrace.report.draw.memory import CATEGORIES, category_bars, memory_curve
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import variants_shown

#: More curves than this start folded.
_MANY: Final = 4
#: A host's memory of which less is used is no matter.
_SMALL_PART: Final = 0.05
#: What to try where memory ran out, the surest first.
_ADVICE: Final = (
    "A smaller batch: `data.batch_size=N`; `steptrace predict --gpu GPU --batch 8,16` estimates the largest that fits.",
    "Gradient accumulation (`step.accumulate=K`): K smaller batches go into each optimizer step.",
    "Activation checkpointing (`torch.utils.checkpoint`): keeps fewer activations, for about a third more work.",
    "A 16-bit format (`precision=bf16`), unless it is in use: about half the activations.",
)


def memory(study: Comparison) -> Html | None:
    """Table, bars and curves of every variant's memory, and how those that ran out did so; None without any."""
    variants = [v for v in study.variants if v.device_memory is not None or (v.memory is not None and v.memory.oom)]
    if not variants or all(map(_says_nothing, variants)):
        return None
    measured = [(v.name, v.device_memory) for v in variants if v.device_memory is not None]
    drawn = {variant.name for variant in variants_shown(study)}
    curves = [(v.name, _curve(v)) for v in variants if v.name in drawn]
    bars = category_bars([(name, entry.by_category) for name, entry in measured], "Bytes at the peak by category.")
    on_cpu = any(entry.device_type == "cpu" for _, entry in measured)
    return render(
        "study/memory",
        variants=variants,
        on_cpu=on_cpu,
        incomplete=[name for name, entry in measured if not entry.complete],
        ran_out=[_ran_out(v, v.memory) for v in variants if v.memory is not None and v.memory.oom is not None],
        names={name: word for name, (word, _) in CATEGORIES.items()},
        bars=bars,
        curves=[(name, curve) for name, curve in curves if curve is not None],
        many=len(curves) > _MANY,
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


def _ran_out(variant: VariantResult, memory: RunMemory) -> dict[str, Any]:
    """One variant that ran out of memory: what happened in a sentence, and what to do."""
    return {"name": variant.name, "sentence": _sentence(variant, memory), "advice": _ADVICE}


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
