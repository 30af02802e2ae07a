"""Most of a GPU's memory is never used, and the GPU is not busy all the time."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.findings.rule import BaseFigures, Match, Rule, Threshold, Words, advise
from steptrace.findings.window import Window
from steptrace.format import share, size_bytes

#: A device whose peak takes less than this share of its memory leaves room for a larger batch.
_USED: Final = Threshold(0.50, "a batch of twice the size fits where half of the memory is free")
#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util).
_BUSY: Final = Threshold(0.50, "PyTorch's TensorBoard plugin advises a larger batch below it")


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Memory that a GPU has left at its peak, and how busy the GPU is."""

    device: Annotated[int | None, field("Number of the GPU.")]
    unused_share: Annotated[float, field("Share of its memory that is never used.")]
    capacity_bytes: Annotated[int, field("Its memory.")]
    peak_allocated_bytes: Annotated[int | None, field("Most bytes allocated at once.")]
    peak_reserved_bytes: Annotated[int | None, field("Most bytes reserved at once.")]
    busy_share: Annotated[float | None, field("Share of the time with the GPU busy, if that is low.")]
    multiprocessors_share: Annotated[float | None, field("Share of the multiprocessors in use, if that is low.")]


def _low(percent: float | None) -> float | None:
    """A percentage as a share of 1, if it is below the threshold."""
    return percent / 100 if percent is not None and percent / 100 < _BUSY.value else None


def _find(window: Window) -> Iterator[Match[Figures]]:
    entry = window.entry
    busy = _low(entry.gpu_busy_pct)
    multiprocessors = _low(entry.sm_weighted_pct)
    device = next((device_memory for device_memory in entry.memory or () if device_memory.device == entry.device), None)
    if device is None or not device.capacity_bytes or device.headroom_bytes is None:
        return
    unused = device.headroom_bytes / device.capacity_bytes
    if (busy is None and multiprocessors is None) or 1 - unused >= _USED.value:
        return
    yield Match(
        severity="info",
        figures=Figures(
            device=device.device,
            unused_share=unused,
            capacity_bytes=device.capacity_bytes,
            peak_allocated_bytes=device.peak_allocated_bytes,
            peak_reserved_bytes=device.peak_reserved_bytes,
            busy_share=busy,
            multiprocessors_share=multiprocessors,
        ),
    )


def _words(figures: Figures) -> Words:
    unused = "over 99 %" if figures.unused_share > 0.99 else share(figures.unused_share)
    peak = f"at the peak {size_bytes(figures.peak_allocated_bytes)} allocated"
    if figures.peak_reserved_bytes is not None:
        peak += f" and {size_bytes(figures.peak_reserved_bytes)} reserved"
    evidence = [f"{peak} of {size_bytes(figures.capacity_bytes)}"]
    if figures.busy_share is not None:
        evidence.append(f"GPU busy: {share(figures.busy_share)}")
    if figures.multiprocessors_share is not None:
        evidence.append(f"multiprocessors in use: {share(figures.multiprocessors_share)}")
    return Words(
        f"{unused} of the memory of GPU {figures.device} is never used and the GPU is not busy all the time: a larger "
        "batch may fit and make better use of it",
        tuple(evidence),
    )


RULE: Final = Rule(
    name="unused_memory",
    topic="memory",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="the peak takes less than {used} of a GPU's memory, and the GPU is busy, or its multiprocessors are, for "
    "less than {busy} of the time",
    thresholds={"used": _USED, "busy": _BUSY},
    advice=advise("Try a larger batch: each kernel does more work, so launches cost less per sample."),
    counter_check="Samples per second must grow, not the step alone. In a training the result changes with the batch "
    "size.",
    study="memory",
)
